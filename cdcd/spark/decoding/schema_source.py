"""The interface to a source of schemas: a registry, the schema topic of a daemon without one, or given schemas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cdcd.errors import SparkReadError
from cdcd.spark.clients.connection import GivenAccess


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a subject; `text` is its Avro schema as JSON."""

    subject: str
    version: int
    schema_id: int
    text: str


class SchemaSource(Protocol):
    """Schemas by id and by subject. Raises CdcdError with a hint."""

    def by_id(self, number: int) -> str:
        """Return the text of the schema with this id."""

    def newest(self, subject: str) -> Version | None:
        """Return the newest version of a subject, None if there is no such subject."""

    def versions(self, subject: str) -> list[Version]:
        """Return the versions of a subject, the oldest first; none if there is no such subject."""


class GivenSchemas:
    """A `SchemaSource` of given schemas."""

    def __init__(self, access: GivenAccess) -> None:
        self._texts, self._subjects = dict(access.texts), dict(access.subjects)

    def by_id(self, number: int) -> str:
        """Return the text of the schema with this id."""
        if number not in self._texts:
            raise SparkReadError("no schema with this id is known", schema_id=number)
        return self._texts[number]

    def newest(self, subject: str) -> Version | None:
        """Return the newest version of a subject, None if there is no such subject."""
        versions = self.versions(subject)
        return versions[-1] if versions else None

    def versions(self, subject: str) -> list[Version]:
        """Return the versions of a subject, the oldest first; none if there is no such subject."""
        return [
            Version(subject, number, schema_id, self._texts[schema_id])
            for number, schema_id in enumerate(self._subjects.get(subject, ()), 1)
        ]
