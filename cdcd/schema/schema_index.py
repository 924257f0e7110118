"""The content of a schema topic: the schema of each id, and the versions of each subject.

In: the topic's records, in the order of its log.  Out: schemas by id, by subject and version; ids for new schemas.
Invariant: the first record in the log that uses an id, or a version of a subject, owns it, so every reader of the log
gets the same result. An id is a hash of the schema's text, so each writer assigns a schema the same id independently,
also after an abort or a restart, and in a topic that was emptied. The log resolves a collision of two texts in the 31
bits of an id: a writer that finds the id in use tries the next one (`claim`), and a writer that finds the collision
only after its write gives up (`holds`).
Must not: do I/O.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from cdcd.bounded import json_of
from cdcd.errors import SchemasUnreadable

__all__ = ["RegisteredVersion", "SchemaIndex", "dump", "id_of", "key_of", "load", "schema_of", "text_of"]

FORMAT = 1
MAX_RECORD_BYTES = 8 << 20
MAX_INDEX_CHARACTERS = 256 << 20
"""Limit on all schemas of a topic in memory: other programs may be allowed to write to the topic."""
_MOST = (1 << 31) - 1
_FOREIGN = (
    "cdcd did not write this record: revoke the write ACLs of all other principals for the topic, produce a record "
    "without a value under the same key (kafka-console-consumer shows the key), have Kafka compact the topic "
    "(docs/registry.md), then `cdcd resume`"
)
_KEYS = {
    "format": int,
    "subject": str,
    "version": int,
    "id": int,
    "schema": str,
    "compatibility": str,
    "slot": str,
}


@dataclass(frozen=True, slots=True)
class RegisteredVersion:
    """One version of a subject. `compatibility` is the level of its check, `slot` the writer's slot."""

    subject: str
    version: int
    schema_id: int
    text: str
    compatibility: str
    slot: str


def text_of(schema: Mapping[str, Any]) -> str:
    """Return the text with which a schema is registered; equal schemas have equal texts."""
    return json.dumps(schema, separators=(",", ":"), ensure_ascii=False)


def id_of(text: str, attempt: int = 0) -> int:
    """Return the id of a schema's text, from 1 to 2^31 - 1; `attempt` is the number of ids found in use."""
    salt = f"\n{attempt}" if attempt else ""
    number = int.from_bytes(hashlib.sha256((text + salt).encode()).digest()[:4], "big") & 0x7FFFFFFF
    return number or 1


def key_of(one: RegisteredVersion) -> bytes:
    """Return the record's key, which is different for each schema of a subject, so compaction retains all of them."""
    digest = hashlib.sha256(one.text.encode()).hexdigest()
    return json.dumps({"subject": one.subject, "sha256": digest}).encode()


def dump(one: RegisteredVersion) -> bytes:
    """Return the record's value."""
    document = {
        "format": FORMAT,
        "subject": one.subject,
        "version": one.version,
        "id": one.schema_id,
        "schema": one.text,
        "compatibility": one.compatibility,
        "slot": one.slot,
    }
    return json.dumps(document, ensure_ascii=False).encode()


def load(value: bytes) -> RegisteredVersion:
    """Return the version that `dump` was given. Raises SchemasUnreadable: a guessed id would decode rows wrongly."""
    if len(value) > MAX_RECORD_BYTES:
        raise SchemasUnreadable(
            f"a record of the schema topic has more than {MAX_RECORD_BYTES} bytes", hint=_FOREIGN
        )
    try:
        document = json_of(value)
    except ValueError as error:
        raise SchemasUnreadable("a record of the schema topic is not JSON", hint=_FOREIGN) from error
    if not isinstance(document, dict) or type(document.get("format")) is not int:
        raise SchemasUnreadable("a record of the schema topic is not in cdcd's format", hint=_FOREIGN)
    if document["format"] != FORMAT:
        raise SchemasUnreadable("a record of the schema topic has a format that this version cannot read")
    wrong = [name for name, kind in _KEYS.items() if type(document.get(name)) is not kind]
    if wrong or len(document) != len(_KEYS):
        raise SchemasUnreadable(
            "a record of the schema topic lacks a field or has an unknown one",
            hint=_FOREIGN,
            fields=",".join(wrong) or None,
        )
    if not 0 < document["id"] <= _MOST or not 0 < document["version"] <= _MOST:
        raise SchemasUnreadable(
            "a record of the schema topic has an id or a version out of range", hint=_FOREIGN
        )
    return RegisteredVersion(
        document["subject"],
        document["version"],
        document["id"],
        document["schema"],
        document["compatibility"],
        document["slot"],
    )


def schema_of(one: RegisteredVersion) -> Any:
    """Return a version's schema. Raises SchemasUnreadable where its text is not JSON."""
    try:
        return json_of(one.text.encode())
    except ValueError as error:
        raise SchemasUnreadable("a schema in the schema topic is not JSON", subject=one.subject) from error


class SchemaIndex:
    """The state of one log. `id_of` computes ids; only a test of collisions replaces it.

    One thread may take records while others read: readers copy a collection in one step before they iterate.
    """

    def __init__(self, id_of: Callable[[str, int], int] = id_of) -> None:
        self._id_of = id_of
        self._texts: dict[int, str] = {}
        self._by_key: dict[bytes, RegisteredVersion] = {}
        self._subjects: dict[str, dict[int, RegisteredVersion]] = {}
        self._characters = 0

    # --- the log ---

    def take(self, key: bytes, value: bytes | None) -> RegisteredVersion | None:
        """Process the log's next record; return its version, None for a deletion. Raises SchemasUnreadable."""
        if value is None:
            self._forget(key)
            return None
        one = load(value)
        if self._by_key.get(key) != one:
            self._forget(key)
            if self._is_free(one):
                self._weigh(one)
                self._texts[one.schema_id] = one.text
                self._by_key[key] = one
                self._subjects.setdefault(one.subject, {})[one.version] = one
        return one

    def _forget(self, key: bytes) -> None:
        """Delete a version. Its id retains its schema: readers may still need it for records."""
        one = self._by_key.pop(key, None)
        if one is not None:
            del self._subjects[one.subject][one.version]
            if not self._subjects[one.subject]:
                del self._subjects[one.subject]

    def _weigh(self, one: RegisteredVersion) -> None:
        if one.schema_id not in self._texts:
            self._characters += len(one.text)
        self._characters += len(one.subject)
        if self._characters > MAX_INDEX_CHARACTERS:
            raise SchemasUnreadable(
                f"the schema topic has more than {MAX_INDEX_CHARACTERS} characters of schemas",
                hint="revoke the write ACLs of other principals for the topic; or distribute the tables over several "
                "daemons with different names",
            )

    def _is_free(self, one: RegisteredVersion) -> bool:
        return self._texts.get(one.schema_id, one.text) == one.text and one.version not in self._subjects.get(
            one.subject, {}
        )

    # --- writing ---

    def claim(
        self,
        subject: str,
        text: str,
        compatibility: str,
        slot: str,
        unwritten: Iterable[RegisteredVersion] = (),
    ) -> RegisteredVersion:
        """Return the existing version of a schema, or else a new one to write.

        `unwritten` are claims of the same writer that are not in the log yet.
        """
        registered = self.find(subject, text)
        if registered is not None:
            return registered
        mine = {one.schema_id: one.text for one in unwritten}
        number = next(
            number
            for attempt in count()
            if self._texts.get(number := self._id_of(text, attempt), text) == text
            and mine.get(number, text) == text
        )
        versions = [
            *self._subjects.get(subject, {}),
            *(one.version for one in unwritten if one.subject == subject),
        ]
        return RegisteredVersion(subject, max(versions, default=0) + 1, number, text, compatibility, slot)

    def holds(self, one: RegisteredVersion) -> bool:
        """Whether a written claim is the first record of its id and of its subject's version."""
        at_version = self._subjects.get(one.subject, {}).get(one.version)
        return at_version is not None and (at_version.schema_id, at_version.text) == (one.schema_id, one.text)

    # --- reading ---

    def find(self, subject: str, text: str) -> RegisteredVersion | None:
        """Return the version of a subject that has exactly this text."""
        for one in self.versions(subject):
            if one.text == text:
                return one
        return None

    def find_equal(self, subject: str, text: str) -> RegisteredVersion | None:
        """Return the version of a subject that is equal to this schema as JSON, whatever its text.

        Raises ValueError, and SchemasUnreadable for a version that is not JSON.
        """
        wanted = json_of(text.encode())
        for one in self.versions(subject):
            if schema_of(one) == wanted:
                return one
        return None

    def text(self, schema_id: int) -> str | None:
        """Return the schema with this id."""
        return self._texts.get(schema_id)

    def places(self, schema_id: int) -> list[RegisteredVersion]:
        """Return the versions that have this id, by subject."""
        found = [one for one in list(self._by_key.values()) if one.schema_id == schema_id]
        return sorted(found, key=lambda one: (one.subject, one.version))

    def subjects(self) -> list[str]:
        """Return the names of all subjects."""
        return sorted(list(self._subjects))  # noqa: C414 - a copy in one step, see the class

    def versions(self, subject: str) -> list[RegisteredVersion]:
        """Return the versions of a subject, the oldest first."""
        found = list(self._subjects.get(subject, {}).values())
        return sorted(found, key=lambda one: one.version)
