"""Schemas from the topic of a daemon without a registry, read with the connection that reads the rows.

In: a `TopicAccess`, an id or a subject.  Out: schemas, as the daemon wrote them.
Invariant: only committed schemas count. A schema is committed with the first rows that use it, but its partition may
get the marker later than theirs, so an unknown id is looked for again, a limited time.
Must not: write, skip a record that it cannot read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from cdcd.errors import SparkReadError
from cdcd.schema.schema_index import RegisteredVersion, SchemaIndex
from cdcd.spark.clients.connection import TopicAccess
from cdcd.spark.clients.kafka import Cluster, Tail
from cdcd.spark.decoding.schema_source import Version

FOUND_WITHIN_S = 20.0
PAUSE_S = 0.5
_HINT = (
    "read with the prefix (`name`) and the brokers of the daemon that wrote the topics; a daemon with a registry "
    "needs the option schema.registry.url"
)
_T = TypeVar("_T")


class TopicSchemas:
    """A `SchemaSource`. Errors: SinkUnavailable, SinkAuthorization, SchemasUnreadable, SparkReadError."""

    def __init__(self, access: TopicAccess) -> None:
        self._access = access
        self._index = SchemaIndex()
        self._position = 0
        self._lock = threading.Lock()

    def by_id(self, number: int) -> str:
        """Return the text of the schema with this id."""
        deadline_s = time.monotonic() + FOUND_WITHIN_S
        while True:
            text = self._found(lambda index: index.text(number))
            if text is not None:
                return text
            if time.monotonic() > deadline_s:
                raise SparkReadError(
                    "the schema topic has no schema with this id",
                    hint=_HINT,
                    topic=self._access.topic,
                    schema_id=number,
                )
            time.sleep(PAUSE_S)

    def newest(self, subject: str) -> Version | None:
        """Return the newest version of a subject, None if there is no such subject."""
        versions = self.versions(subject)
        return versions[-1] if versions else None

    def versions(self, subject: str) -> list[Version]:
        """Return the versions of a subject, the oldest first; none if there is no such subject."""
        with self._lock:
            self._read()
            return [_version(one) for one in self._index.versions(subject)]

    def _found(self, look: Callable[[SchemaIndex], _T | None]) -> _T | None:
        with self._lock:
            found = look(self._index)
            if found is None:
                self._read()
                found = look(self._index)
            return found

    def _read(self) -> None:
        """Read what was committed since the last call."""
        access, properties = self._access, self._access.read_properties()
        tail = Tail(
            access.brokers, properties, access.topic, Cluster(access.brokers, properties), self._position
        )
        try:
            for message in tail.messages():
                self._index.take(message.key() or b"", message.value())
            self._position = tail.position
        finally:
            tail.close()
        if not tail.exists:
            raise SparkReadError("there is no schema topic", hint=_HINT, topic=access.topic)


def _version(one: RegisteredVersion) -> Version:
    return Version(one.subject, one.version, one.schema_id, one.text)
