"""A plan for each relation the server describes: catalog, topic, schemas and their ids, put together once.

In: Relation messages (or the catalog's word, for a snapshot).  Out: `RelationPlan`s by relid.
Invariant: a plan is made before the first row it reads and belongs to one session (F43); look-ups happen here,
between items, never per row. Two relations never share a topic unawares.
Must not: cache a relation across sessions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import structlog

from cdcd.avro.logical_message import encode_logical_message, message_key_schema, message_value_schema
from cdcd.avro.plan import RelationPlan, compile_plan
from cdcd.avro.transaction import TransactionContext
from cdcd.errors import TopicMismatch
from cdcd.model import PgType, Record, Relation, ReplicaIdentity
from cdcd.runtime.threads import in_thread
from cdcd.schema.relation_schema import relation_schemas
from cdcd.sink.names import message_topic, topic_name
from cdcd.txn.events import LogicalMessage

_LOG = structlog.stdlib.get_logger("cdcd.plans")
_KEYLESS_HINT = (
    "its records have a null key and go to one partition, and a compacted topic refuses them; "
    "give it a primary key"
)


class Catalog(Protocol):
    """What plans ask of the database (blocking)."""

    def types(self, oids: Any) -> dict[int, PgType]: ...  # noqa: D102
    def primary_key(self, relid: int) -> tuple[str, ...]: ...  # noqa: D102
    def identity_key(self, relid: int) -> tuple[str, ...]: ...  # noqa: D102


class Topics(Protocol):
    """What plans ask of the topics (blocking)."""

    def ensure(self, names: Any) -> dict[str, int]: ...  # noqa: D102


class Registry(Protocol):
    """What plans ask of the schema registry (blocking)."""

    def schema_id(self, subject: str, schema: Any) -> int: ...  # noqa: D102


class Plans:
    """The plans of one session."""

    def __init__(
        self,
        catalog: Catalog,
        topics: Topics,
        registry: Registry,
        *,
        name: str,
        template: str,
        tombstones: bool,
    ) -> None:
        self.by_relid: dict[int, RelationPlan] = {}
        self._described: dict[int, Relation] = {}
        self._made: dict[int, tuple[Relation, tuple[str, ...], RelationPlan]] = {}
        self._keyless: set[int] = set()
        self._relid_of_topic: dict[str, tuple[int, str]] = {}
        self._message_ids: tuple[int, int, int] | None = None
        self._catalog = catalog
        self._topics = topics
        self._registry = registry
        self._name = name
        self._template = template
        self._tombstones = tombstones

    def describe(self, relation: Relation) -> None:
        """Take the server's description; the plan is made when a row needs it.

        A partition is described along with the root that its rows are published as (F50): without a row of its
        own it gets no topic.
        """
        self._described[relation.relid] = relation
        self.by_relid.pop(relation.relid, None)

    async def ready(self, relids: Iterable[int]) -> None:
        """Make the plans of these relations if they were described; RelationUnknown is the encoder's to say."""
        for relid in relids:
            if relid not in self.by_relid and relid in self._described:
                await self.plan(self._described[relid])

    async def plan(self, relation: Relation) -> RelationPlan:
        """Return the plan of a relation; the same description gives the same plan without compiling it again."""
        self._described[relation.relid] = relation
        key_columns = await self._key_columns(relation)
        made = self._made.get(relation.relid)
        if made is None or made[:2] != (relation, key_columns):
            plan = await in_thread(self._compile, relation, key_columns)
            self._say_keyless(plan)
            made = self._made[relation.relid] = (relation, key_columns, plan)
        self.by_relid[relation.relid] = made[2]
        return made[2]

    def _say_keyless(self, plan: RelationPlan) -> None:
        """Say once in a session that a table's records have a null key (F45)."""
        if not plan.key_indexes and plan.relation.relid not in self._keyless:
            self._keyless.add(plan.relation.relid)
            _LOG.warning("relation_without_key", table=plan.table, topic=plan.topic, hint=_KEYLESS_HINT)

    async def _key_columns(self, relation: Relation) -> tuple[str, ...]:
        """Key columns in key order: FULL flags every column, so only the catalog knows the primary key (F45)."""
        flagged = tuple(column.name for column in relation.columns if column.is_key)
        if relation.identity is ReplicaIdentity.FULL:
            return await in_thread(self._catalog.primary_key, relation.relid)
        if len(flagged) < 2:
            return flagged
        ordered = await in_thread(self._catalog.identity_key, relation.relid)
        # The catalog may have moved on since this row was written (F44): then the message's own order stands.
        return ordered if set(ordered) == set(flagged) else flagged

    def _compile(self, relation: Relation, key_columns: tuple[str, ...]) -> RelationPlan:
        topic = topic_name(self._template, name=self._name, schema=relation.schema, table=relation.name)
        self._claim(topic, relation)
        types = self._catalog.types([column.type_oid for column in relation.columns])
        schemas = relation_schemas(relation, types, key_columns, self._name)
        partitions = self._topics.ensure([topic])[topic]
        key_id = None
        if schemas.key is not None:
            key_id = self._registry.schema_id(f"{topic}-key", schemas.key)
        value_id = self._registry.schema_id(f"{topic}-value", schemas.value)
        return compile_plan(
            relation,
            schemas,
            topic=topic,
            partitions=partitions,
            key_schema_id=key_id,
            value_schema_id=value_id,
            tombstones=self._tombstones,
        )

    def _claim(self, topic: str, relation: Relation) -> None:
        name = f"{relation.schema}.{relation.name}"
        owner = self._relid_of_topic.setdefault(topic, (relation.relid, name))
        if owner[1] != name:
            raise TopicMismatch(
                f"two tables would be written to one topic: {owner[1]} and {name}",
                hint="change sink.topics.template",
                topic=topic,
            )

    async def logical_message(self, message: LogicalMessage, tx: TransactionContext | None) -> Record:
        """Return the record of a logical message, in `<name>.message`."""
        topic = message_topic(self._name)
        if self._message_ids is None:
            self._message_ids = await in_thread(self._message_topic, topic)
        key_id, value_id, partitions = self._message_ids
        return encode_logical_message(
            topic=topic,
            partitions=partitions,
            key_schema_id=key_id,
            value_schema_id=value_id,
            prefix=message.prefix,
            content=message.content,
            transactional=message.transactional,
            lsn=message.lsn,
            tx=tx,
        )

    def _message_topic(self, topic: str) -> tuple[int, int, int]:
        partitions = self._topics.ensure([topic])[topic]
        key_id = self._registry.schema_id(f"{topic}-key", message_key_schema(self._name))
        value_id = self._registry.schema_id(f"{topic}-value", message_value_schema(self._name))
        return key_id, value_id, partitions
