"""The content of a schema registry, behind the interface of a client: what a registry answers, without a server.

In: the first id that it assigns.  Out: the replies of Confluent's API, and the number of requests for each operation.
Must not: decide about compatibility.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

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


class AvroJavaContent(RegistryContent):
    """A registry that returns schemas as Avro's Java library writes them, as Confluent's does."""

    def version(self, subject: str, number: int | None) -> RegisteredSchema:
        found = super().version(subject, number)
        return found._replace(text=_by_avro_java(found.text))

    def by_id(self, number: int) -> RegisteredSchema:
        found = super().by_id(number)
        return found._replace(text=_by_avro_java(found.text))


def _by_avro_java(text: str) -> str:
    return json.dumps(with_namespaces(json.loads(text)))


def with_namespaces(schema: Any, space: str = "") -> Any:
    """Return a schema with each full name as a name and a namespace, and without the namespace around it."""
    if isinstance(schema, str):
        outer, _, name = schema.rpartition(".")
        return name if outer == space else schema
    if isinstance(schema, list):
        return [with_namespaces(branch, space) for branch in schema]
    found = dict(schema)
    if schema.get("type") in ("record", "enum", "fixed"):
        outer, _, found["name"] = schema["name"].rpartition(".")
        if outer and outer != space:
            found["namespace"] = outer
        space = outer or space
    if "fields" in found:
        found["fields"] = [{**one, "type": with_namespaces(one["type"], space)} for one in schema["fields"]]
    for part in {"type", "items", "values"} & found.keys():
        found[part] = with_namespaces(found[part], space)
    return found
