"""The schemas of topics in the registry: read once in a session, registered, looked up.

In: topics, relations, schemas.  Out: registered schemas and their ids.
Invariant: after a registration, the topic's newest schema is the registered one, without another request.
Must not: decide about a key, a topic or an incompatible schema.  Every method here may block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol

from cdcd.model import Relation
from cdcd.pipeline.registered_attnums import Registered, numbered_before, with_registered
from cdcd.registry.subjects import Strategy, SubjectPart, full_record_name, subject_of
from cdcd.schema.attnums import KnownAttnums
from cdcd.schema.codec import AvroSchema
from cdcd.schema.names import key_record, value_record
from cdcd.schema.policy import Policies
from cdcd.schema.relation_schema import RelationSchemas
from cdcd.waits import WaitKind


class Registry(Registered, Protocol):
    """The schema registry, as plans use it (blocking)."""

    def schema_id(self, subject: str, schema: Any, *, is_forced: bool = False) -> int: ...  # noqa: D102
    def latest(self, subject: str) -> dict[str, Any] | None: ...  # noqa: D102


Waiting = Callable[[WaitKind, str], contextlib.AbstractContextManager[None]]
"""Encloses a call that may wait for a server."""


def not_waiting(_kind: WaitKind, _what: str) -> contextlib.AbstractContextManager[None]:
    """Report no wait."""
    return contextlib.nullcontext()


class TopicSchemas:
    """The registered schemas of one session's topics, under the subjects of the strategy."""

    def __init__(
        self, registry: Registry, name: str, policies: Policies, subjects: Strategy, waiting: Waiting
    ) -> None:
        self._registry = registry
        self._name = name
        self._policies = policies
        self._subjects = subjects
        self._waiting = waiting
        self._keys: dict[str, dict[str, Any] | None] = {}
        self._values: dict[str, dict[str, Any] | None] = {}

    def value(self, topic: str, relation: Relation) -> dict[str, Any] | None:
        """Return the topic's newest value schema, read once in a session."""
        if topic not in self._values:
            is_flat = self._policies.table(f"{relation.schema}.{relation.name}").value == "flat"
            record = value_record(self._name, relation.schema, relation.name, is_flat=is_flat)
            self._values[topic] = self._latest(subject_of(self._subjects, topic, "value", record))
        return self._values[topic]

    def key(self, topic: str, relation: Relation) -> dict[str, Any] | None:
        """Return the topic's newest key schema, read once in a session."""
        return self.key_named(topic, key_record(self._name, relation.schema, relation.name))

    def key_named(self, topic: str, record: str) -> dict[str, Any] | None:
        """Return the topic's newest key schema by the full name of its record, read once in a session."""
        if topic not in self._keys:
            self._keys[topic] = self._latest(subject_of(self._subjects, topic, "key", record))
        return self._keys[topic]

    def _latest(self, subject: str) -> dict[str, Any] | None:
        with self._waiting("registry", f"subject {subject}"):
            return self._registry.latest(subject)

    def has(self, topic: str, value: AvroSchema) -> bool:
        """Whether the topic has this value schema, as it is or with other attnums."""
        subject = subject_of(self._subjects, topic, "value", full_record_name(value))
        with self._waiting("registry", f"subject {subject}"):
            is_known = self._registry.knows(subject, value)
            return is_known or bool(numbered_before(self._registry, subject, value, is_lenient=True))

    def with_registered(self, topic: str, schemas: RelationSchemas, known: KnownAttnums) -> RelationSchemas:
        """Return the schemas with the attnums that the topic's registered value schema has."""
        subject = subject_of(self._subjects, topic, "value", full_record_name(schemas.value))
        with self._waiting("registry", f"subject {subject}"):
            return with_registered(self._registry, subject, schemas, known)

    def register_value(self, topic: str, schema: dict[str, Any], *, is_forced: bool) -> int:
        """Register a table's value schema, the newest one from now on; return its id."""
        number = self.register(topic, "value", schema, is_forced)
        self._values[topic] = schema
        return number

    def set_key(self, topic: str, schema: dict[str, Any]) -> None:
        """Store a registered key schema as the topic's newest one."""
        self._keys[topic] = schema

    def register(self, topic: str, part: SubjectPart, schema: AvroSchema, is_forced: bool = False) -> int:
        """Register a schema; return its id. Raises SchemaIncompatible unless `is_forced`."""
        subject = subject_of(self._subjects, topic, part, full_record_name(schema))
        with self._waiting("registry", f"subject {subject}"):
            return self._registry.schema_id(subject, schema, is_forced=is_forced)
