"""The interface to a source of schemas: a registry, or the schema topic of a daemon without one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


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
