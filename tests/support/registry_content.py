"""The content of a schema registry, behind the interface of a client: what a registry answers, without a server.

In: the first id that it assigns.  Out: the replies of Confluent's API, and the number of requests for each operation.
Must not: decide about compatibility.
"""

from __future__ import annotations

from collections import Counter

from cdcd.registry.rest import RegisteredSchema, RegistryErrorAnswer


class RegistryContent:
    """`subjects`: by subject the (id, text) of each version. `requests`: by method."""

    def __init__(self, first_id: int = 1) -> None:
        self.subjects: dict[str, list[tuple[int, str]]] = {}
        self.levels: dict[str, str] = {}
        self.texts: dict[int, str] = {}
        self.requests: Counter[str] = Counter()
        self._next_id = first_id

    def versions(self, subject: str) -> list[int]:
        self.requests["versions"] += 1
        return [number + 1 for number in range(len(self._of(subject)))]

    def version(self, subject: str, number: int | None) -> RegisteredSchema:
        self.requests["version"] += 1
        schema_id, text = self._of(subject)[-1 if number is None else number - 1]
        return RegisteredSchema(text, "AVRO", schema_id)

    def by_id(self, number: int) -> RegisteredSchema:
        self.requests["by_id"] += 1
        if number not in self.texts:
            raise RegistryErrorAnswer(404, 40403, "Schema not found")
        return RegisteredSchema(self.texts[number], "AVRO", number)

    def look_up(self, subject: str, text: str, *, normalize: bool) -> int:
        self.requests["look_up"] += 1
        for schema_id, registered in self._of(subject):
            if registered == text:
                return schema_id
        raise RegistryErrorAnswer(404, 40403, "Schema not found")

    def register(self, subject: str, text: str, *, normalize: bool) -> int:
        self.requests["register"] += 1
        schema_id, self._next_id = self._next_id, self._next_id + 1
        self.texts[schema_id] = text
        self.subjects.setdefault(subject, []).append((schema_id, text))
        return schema_id

    def level(self, subject: str | None) -> str:
        return self.levels.get(subject or "", "BACKWARD_TRANSITIVE")

    def set_level(self, subject: str, level: str) -> None:
        self.levels[subject] = level

    def close(self) -> None:
        pass

    def _of(self, subject: str) -> list[tuple[int, str]]:
        if subject not in self.subjects:
            raise RegistryErrorAnswer(404, 40401, "Subject not found")
        return self.subjects[subject]
