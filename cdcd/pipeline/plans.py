"""A plan for each relation that the server describes: catalog, topic, schemas and their ids, combined once.

In: Relation messages (or the catalog's columns, for a snapshot).  Out: `RelationPlan`s by relid.
Invariant: a plan is made before the first row that it encodes, and belongs to one session (F43); look-ups happen
here, between items, never per row. Several threads make the plans of several relations, one thread for each relation.
Two relations never share a topic undetected.
Must not: cache a relation across sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import structlog

from cdcd.avro.logical_message import encode_logical_message, message_key_schema, message_value_schema
from cdcd.avro.plan import HEADER_BYTES, RelationPlan, compile_plan
from cdcd.avro.transaction import TransactionContext
from cdcd.avro.transaction_metadata import (
    Place,
    encode_metadata,
    encode_snapshot_metadata,
    metadata_key_schema,
    metadata_value_schema,
)
from cdcd.errors import CdcdError, KeyChanged, SchemaIncompatible
from cdcd.lru_cache import LruCache
from cdcd.model import PgType, Record, Relation, ReplicaIdentity
from cdcd.pipeline.key_warnings import KeyWarnings, Say, warn
from cdcd.pipeline.registered_attnums import Registered, numbered_before, with_registered
from cdcd.registry.subjects import Strategy, SubjectPart, full_record_name, subject_of
from cdcd.schema.codec import AvroSchema
from cdcd.schema.exact_keys import merged_key_columns
from cdcd.schema.identity import OldTuples, PartitionIdentity, old_tuples
from cdcd.schema.keys import is_required, key_of, nullable_columns, registered_columns, required_columns
from cdcd.schema.named_types import with_full_names
from cdcd.schema.names import key_record, value_record
from cdcd.schema.policy import Policies
from cdcd.schema.relation_schema import RelationSchemas, relation_schemas
from cdcd.sink.names import message_topic, own_topics, refuse_second_owner, topic_name, transaction_topic
from cdcd.source.key_index import TableKeys
from cdcd.source.start import quote_identifier
from cdcd.threads import in_thread
from cdcd.txn.events import LogicalMessage
from cdcd.txn.lookahead import Lookahead
from cdcd.waits import WaitKind

_LOG = structlog.stdlib.get_logger("cdcd.plans")
PLANNED_AT_ONCE = 8
_PLANS_OF_A_TOPIC = 16
"""How many recent plans of a topic `of_record` can find: enough for the records that are not durable yet."""


class Catalog(Protocol):
    """The catalog of the database, as plans use it (blocking)."""

    def types(self, oids: Any) -> dict[int, PgType]: ...  # noqa: D102
    def keys(self, relid: int) -> TableKeys | None: ...  # noqa: D102
    def attnums(self, relation: Relation) -> tuple[int, ...] | None: ...  # noqa: D102


class Topics(Protocol):
    """The topics, as plans use them (blocking)."""

    def ensure(self, names: Any) -> dict[str, int]: ...  # noqa: D102
    def ensure_new(self, names: Any) -> dict[str, int]: ...  # noqa: D102
    def has_records(self, name: str) -> bool: ...  # noqa: D102


class Registry(Registered, Protocol):
    """The schema registry, as plans use it (blocking)."""

    def schema_id(self, subject: str, schema: Any, *, is_forced: bool = False) -> int: ...  # noqa: D102
    def latest(self, subject: str) -> dict[str, Any] | None: ...  # noqa: D102


Waiting = Callable[[WaitKind, str], contextlib.AbstractContextManager[None]]
"""Encloses a call that may wait for a server."""


def not_waiting(_kind: WaitKind, _what: str) -> contextlib.AbstractContextManager[None]:
    """Report no wait."""
    return contextlib.nullcontext()


Incompatible = Literal["halt", "new_topic", "register_with_none"]
"""The policy for a schema that readers of the table's topic could not read."""


class _Key(NamedTuple):
    """The columns of a relation's key, () without one; whether none of them can be null.

    `nullable`: the key columns that may be null in the topic's values nevertheless. `is_unique`: False if two rows
    may have the same key.
    """

    columns: tuple[str, ...]
    is_required: bool
    nullable: frozenset[str]
    is_unique: bool


@dataclass(frozen=True, slots=True)
class _Made:
    """A plan, and what it was made from. `attnums`: None if they were not known."""

    relation: Relation
    key: _Key
    old: OldTuples | None
    attnums: tuple[int, ...] | None
    plan: RelationPlan

    def has(
        self, relation: Relation, key: _Key, old: OldTuples | None, attnums: tuple[int, ...] | None
    ) -> bool:
        """Whether the plan is that of this description. Attnums that were known remain if they are not known now."""
        is_same = (self.relation, self.key, self.old) == (relation, key, old)
        return is_same and attnums in (None, self.attnums)


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
        policies: Policies,
        subjects: Strategy = "topic_name",
        incompatible: Incompatible = "halt",
        waiting: Waiting = not_waiting,
        say: Say = warn,
    ) -> None:
        """`say` is called with the warnings for readers of a table's topic."""
        self._waiting = waiting
        self._say = say
        self._warnings = KeyWarnings(say)
        self.by_relid: dict[int, RelationPlan] = {}
        self.is_sure = True
        """Whether table descriptions are reliable: not while transactions are streamed (`option_downgrade`)."""
        self._described: dict[int, Relation] = {}
        self._partitions: dict[int, dict[int, Relation]] = {}
        self._root_of: dict[int, int] = {}
        self._identities: dict[int, PartitionIdentity] = {}
        self._made: dict[tuple[int, str], _Made] = {}
        self._by_header: dict[str, LruCache[bytes, RelationPlan]] = {}
        self._flaws: dict[int, str | None] = {}
        self._key_schemas: dict[str, dict[str, Any] | None] = {}
        self._value_schemas: dict[str, dict[str, Any] | None] = {}
        self._owners: dict[str, tuple[str, str]] = dict.fromkeys(own_topics(name), ("cdcd", "itself"))
        self._own_topics: dict[str, Place] = {}
        self._one_topic = threading.Lock()
        self._one_thread: dict[int, threading.Lock] = {}
        """By relid: the stream and an incremental snapshot may make the plan of one relation at the same time."""
        self._prepared: dict[str, int] = {}
        """The partition numbers of topics that `prepare` created for later plans."""
        self._asked_for: set[str] = set()
        """Topics that `prepare` has handled."""
        self._catalog = catalog
        self._topics = topics
        self._registry = registry
        self._name = name
        self._template = template
        self._policies = policies
        self._subjects = subjects
        self._incompatible = incompatible

    @property
    def partitions(self) -> dict[str, int]:
        """The number of partitions over which keys are hashed, by topic."""
        made = list(self._made.values())  # a copy in one step: a thread may add a plan meanwhile
        return {one.plan.topic: one.plan.partitions for one in made}

    def begin_stream(self, *, is_sure: bool) -> None:
        """Forget all table descriptions: from here on the stream describes each table before its rows (F43).

        A description of the snapshot must not hide that the stream's own is missing. `is_sure` as above.
        """
        self.by_relid.clear()
        self._described.clear()
        self._partitions.clear()
        self._root_of.clear()
        self._identities.clear()
        self.is_sure = is_sure

    def of_record(self, record: Record) -> RelationPlan | None:
        """Return the plan that a record was encoded by; None if it is not a table's, or not recent."""
        plans = self._by_header.get(record.topic)
        return None if plans is None else plans.get((record.value or b"")[:HEADER_BYTES])

    def describe(self, relation: Relation) -> None:
        """Store the server's description; the plan is made when a row needs it.

        The server describes a partition together with the root that its rows are published as (F50): without a row of
        its own the partition gets no topic.
        """
        was = self._described.get(relation.relid)
        if was is not None and was.identity is not relation.identity:
            # F45: the columns in `before` change from here on; if the key changes too, cdcd halts.
            _LOG.warning(
                "replica_identity_changed",
                table=f"{relation.schema}.{relation.name}",
                was=was.identity.name,
                now=relation.identity.name,
            )
        if was != relation:
            # The server describes a root again with each of its partitions.
            for relid in (relation.relid, *self._partitions.get(relation.relid, ())):
                self._identities.pop(relid, None)
        self._described[relation.relid] = relation
        self.by_relid.pop(relation.relid, None)
        self._note_partition(relation)

    def _note_partition(self, relation: Relation) -> None:
        """Store from which partitions a table's rows may come: its plan depends on their identities (F78)."""
        was, root = self._root_of.pop(relation.relid, None), relation.published_as
        if was is not None:
            del self._partitions[was][relation.relid]
            self.by_relid.pop(was, None)
        if root is not None:
            self._root_of[relation.relid] = root
            self._partitions.setdefault(root, {})[relation.relid] = relation
            self.by_relid.pop(root, None)

    async def ready(self, relids: Iterable[int]) -> None:
        """Make the plans of these relations if they were described; else the encoder raises RelationUnknown."""
        new = dict.fromkeys(
            relid for relid in relids if relid not in self.by_relid and relid in self._described
        )
        await self.plan_all([self._described[relid] for relid in new])

    async def plan_tables(self, relations: Sequence[Relation]) -> list[RelationPlan]:
        """Create the topics of these tables by one request, then return their plans. Raises as `plan_all`."""
        described = {relation.relid: relation for relation in relations}
        await self.prepare(Lookahead(set(described), described))
        return await self.plan_all(relations)

    async def plan_all(self, relations: Sequence[Relation]) -> list[RelationPlan]:
        """Return the plans of relations, made concurrently: each waits for the registry most of its time.

        Raises the first error; then no other plan is begun.
        """
        if len(relations) == 1:
            return [await self.plan(relations[0])]
        made: dict[int, RelationPlan] = {}
        waiting = iter(relations)

        async def work() -> None:
            for relation in waiting:
                made[relation.relid] = await self.plan(relation)

        workers = [asyncio.ensure_future(work()) for _ in range(min(PLANNED_AT_ONCE, len(relations)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return [made[relation.relid] for relation in relations]

    def has_prepared(self, relids: Iterable[int]) -> bool:
        """Return whether `prepare` has handled the topics of all these relations, as far as they were described."""
        relations = (self._described.get(relid) for relid in relids)
        return all(one is None or self._topic(one) in self._asked_for for one in relations)

    async def prepare(self, ahead: Lookahead) -> None:
        """Create the topics of relations that will need a plan, by one request; the plans are made later.

        Only topics without records are created here: a table that continues in another topic does not need its first.
        """
        relids = ahead.relids - self.by_relid.keys()
        relations = [ahead.described.get(relid) or self._described.get(relid) for relid in relids]
        topics = {self._topic(relation) for relation in relations if relation is not None} - self._asked_for
        self._asked_for |= topics
        if len(topics) > 1:
            with self._waiting("kafka", "the topics of new tables"):
                self._prepared |= await in_thread(self._topics.ensure_new, topics)

    async def plan(self, relation: Relation) -> RelationPlan:
        """Return the plan of a relation; the same description gives the same plan without compiling it again.

        Raises KeyChanged and SchemaIncompatible, depending on the policy.
        """
        self._described[relation.relid] = relation
        plan = self.by_relid[relation.relid] = await in_thread(self.place, relation)
        self._warnings.keyless(plan, self._flaws.get(plan.relation.relid))
        return plan

    def place(self, relation: Relation) -> RelationPlan:
        """Return the plan in a topic whose readers can read it (blocking). It is not added to `by_relid`."""
        with self._one_thread.setdefault(relation.relid, threading.Lock()):
            return self._placed(relation, self._topic(relation))

    def _placed(self, relation: Relation, topic: str) -> RelationPlan:
        if self._incompatible == "new_topic":
            return self._among_topics(relation, topic)
        try:
            return self._in_topic(relation, topic)
        except SchemaIncompatible as refusal:
            if self._incompatible == "halt" or not self.is_sure:
                raise
            self._say_incompatible(relation, topic, refusal)
            return self._in_topic(relation, topic, is_forced=True)

    def _say_incompatible(self, relation: Relation, topic: str, refusal: CdcdError) -> None:
        table = f"{relation.schema}.{relation.name}"
        self._say("incompatible_schema", table=table, topic=topic, reason=refusal.message)

    def _topic(self, relation: Relation) -> str:
        return topic_name(self._template, name=self._name, schema=relation.schema, table=relation.name)

    def _among_topics(self, relation: Relation, first: str) -> RelationPlan:
        """Return the plan in the newest topic of a table that has this schema, or can have it, else in a new topic.

        A schema stays in its topic, so that a row that is sent again goes to the same topic.
        """
        topics = [first]
        while self._registered_value(following := f"{first}.v{len(topics) + 1}", relation) is not None:
            topics.append(following)
        if len(topics) > 1:
            for topic in reversed(topics):
                if self._has_schema(relation, topic):
                    return self._in_topic(relation, topic)
        try:
            return self._in_topic(relation, topics[-1])
        except (SchemaIncompatible, KeyChanged) as refusal:
            if not self.is_sure:
                raise
            self._say_incompatible(relation, following, refusal)
            return self._in_topic(relation, following)

    def _registered_value(self, topic: str, relation: Relation) -> dict[str, Any] | None:
        """Return the topic's newest value schema, read once in a session."""
        if topic not in self._value_schemas:
            is_flat = self._policies.table(f"{relation.schema}.{relation.name}").value == "flat"
            record = value_record(self._name, relation.schema, relation.name, is_flat=is_flat)
            subject = subject_of(self._subjects, topic, "value", record)
            with self._waiting("registry", f"subject {subject}"):
                self._value_schemas[topic] = self._registry.latest(subject)
        return self._value_schemas[topic]

    def _has_schema(self, relation: Relation, topic: str) -> bool:
        try:
            schemas = self._schemas_of(relation, self._key(relation, topic), None)
        except KeyChanged:
            return False
        subject = subject_of(self._subjects, topic, "value", full_record_name(schemas.value))
        with self._waiting("registry", f"subject {subject}"):
            is_known = self._registry.knows(subject, schemas.value)
            return is_known or bool(numbered_before(self._registry, subject, schemas.value, is_lenient=True))

    def _in_topic(self, relation: Relation, topic: str, *, is_forced: bool = False) -> RelationPlan:
        key = self._key(relation, topic)
        made = self._made.get((relation.relid, topic))
        old, attnums = self._old_tuples(relation, key), self._catalog.attnums(relation)
        if made is None or not made.has(relation, key, old, attnums):
            plan = self._compile(relation, topic, key, old, attnums, is_forced)
            made = self._made[relation.relid, topic] = _Made(relation, key, old, attnums, plan)
            self._by_header.setdefault(topic, LruCache(_PLANS_OF_A_TOPIC)).put(plan.value_header, plan)
        return made.plan

    def _old_tuples(self, relation: Relation, key: _Key) -> OldTuples | None:
        partitions = self._partitions.get(relation.relid)
        if partitions:
            return old_tuples([self._identity_of(one, relation) for one in partitions.values()], key.columns)
        # A key on a generated column, which PostgreSQL does not send up to 17, makes the table itself such a case.
        own = old_tuples([_described_identity(relation)], key.columns)
        return own if own is not None and own.short else None

    def _identity_of(self, partition: Relation, root: Relation) -> PartitionIdentity:
        """Return a partition's identity as the stream describes it or, if it cannot, as the catalog first had it.

        PostgreSQL 15 to 18 describe a partition by the attribute numbers of its root's column list, which are other
        columns if the partition has another column order. The description is right for the columns that it shows.
        """
        found = self._identities.get(partition.relid)
        if found is None:
            found = self._identities[partition.relid] = self._looked_up(partition, root)
        return found

    def _looked_up(self, partition: Relation, root: Relation) -> PartitionIdentity:
        described = _described_identity(partition)
        names = {column.name for column in partition.columns}
        is_all_shown = names == {column.name for column in root.columns}
        if described.columns is None or (is_all_shown and described.columns):
            return described
        keys = self._catalog.keys(partition.relid) or TableKeys()
        if is_all_shown:
            return described if keys.of(partition.identity) is not None else replace(described, columns=None)
        now = frozenset(keys.sent(partition.identity))
        is_as_shown = now and now & names == described.columns
        return replace(described, columns=now if is_as_shown else described.columns, is_sure=False)

    def _key(self, relation: Relation, topic: str) -> _Key:
        record = key_record(self._name, relation.schema, relation.name)
        key_schema = self._registered_key(topic, record)
        keys = self._catalog.keys(relation.relid)
        index = None if keys is None else keys.of(relation.identity)
        is_flawed = index is not None and index.flaw is not None
        self._flaws[relation.relid] = None if index is None else index.flaw
        catalog_key = None if keys is None else () if index is None or is_flawed else index.columns
        shared = index.columns if index is not None and is_flawed else ()
        policy = self._policies.table(f"{relation.schema}.{relation.name}")
        value = self._registered_value(topic, relation)
        # While open transactions are streamed, a table may have a key although its description has none.
        believed = nullable_columns(value) if self.is_sure else ()
        registered = registered_columns(key_schema, policy)
        columns = key_of(relation, catalog_key, registered, policy, believed, shared)
        # A key column that the topic's values do not have yet would be a new field without a default.
        nullable = frozenset[str]() if value is None else frozenset(columns) - required_columns(value)
        is_chosen = set(columns) == set(policy.key_columns) or (policy.keyless == "row" and not catalog_key)
        is_unique = keys is None or not columns or not is_chosen or keys.is_unique(columns)
        return _Key(columns, is_required(relation, catalog_key, key_schema, shared), nullable, is_unique)

    def _registered_key(self, topic: str, record: str) -> dict[str, Any] | None:
        """Return the topic's key schema, read once in a session."""
        if topic not in self._key_schemas:
            subject = subject_of(self._subjects, topic, "key", record)
            with self._waiting("registry", f"subject {subject}"):
                self._key_schemas[topic] = self._registry.latest(subject)
        return self._key_schemas[topic]

    def _schemas_of(self, relation: Relation, key: _Key, attnums: tuple[int, ...] | None) -> RelationSchemas:
        types = self._catalog.types([column.type_oid for column in relation.columns])
        return relation_schemas(
            relation,
            types,
            key.columns,
            self._name,
            self._policies,
            is_key_required=key.is_required,
            nullable=key.nullable,
            attnums=attnums,
        )

    def _registered_schemas(
        self, relation: Relation, topic: str, key: _Key, attnums: tuple[int, ...] | None
    ) -> RelationSchemas:
        schemas = self._schemas_of(relation, key, attnums)
        subject = subject_of(self._subjects, topic, "value", full_record_name(schemas.value))
        with self._waiting("registry", f"subject {subject}"):
            return with_registered(self._registry, subject, schemas)

    def _compile(
        self,
        relation: Relation,
        topic: str,
        key: _Key,
        old: OldTuples | None,
        attnums: tuple[int, ...] | None,
        is_forced: bool,
    ) -> RelationPlan:
        refuse_second_owner(self._owners, topic, (relation.schema, relation.name))
        table = f"{relation.schema}.{relation.name}"
        schemas = self._registered_schemas(relation, topic, key, attnums)
        merged = merged_key_columns(relation, schemas)
        self._warnings.shared(relation, key.columns, merged, is_unique=key.is_unique)
        partitions = self._prepared.pop(topic, None) or self._ensured(topic)
        had_values = self._registered_value(topic, relation) is not None
        # The value schema first: a topic gets a key schema only if its values are accepted too.
        value_id = self._schema_id(topic, "value", schemas.value, is_forced)
        self._value_schemas[topic] = schemas.value
        key_id = (
            None if schemas.key is None else self._key_schema_id(topic, schemas.key, had_values, is_forced)
        )
        return compile_plan(
            relation,
            schemas,
            topic=topic,
            partitions=partitions,
            key_schema_id=key_id,
            value_schema_id=value_id,
            tombstones=self._policies.table(table).tombstones,
            old_tuples=old,
        )

    def _key_schema_id(self, topic: str, schema: dict[str, Any], had_values: bool, is_forced: bool) -> int:
        was = self._registered_key(topic, full_record_name(schema))
        number = self._schema_id(topic, "key", schema, is_forced)
        if was is not None and with_full_names(was)["fields"] != with_full_names(schema)["fields"]:
            self._warnings.schema_changed(topic, number)
        elif was is None and had_values and self._has_records(topic):
            self._warnings.added(topic, number)
        self._key_schemas[topic] = schema
        return number

    def _has_records(self, topic: str) -> bool:
        """Whether the topic has records, or may get records that are queued.

        An interrupted start may have registered a table's value schema only, without writing a record.
        """
        return any(topic == planned for _, planned in self._made) or self._topics.has_records(topic)

    def _schema_id(self, topic: str, part: SubjectPart, schema: AvroSchema, is_forced: bool = False) -> int:
        subject = subject_of(self._subjects, topic, part, full_record_name(schema))
        with self._waiting("registry", f"subject {subject}"):
            return self._registry.schema_id(subject, schema, is_forced=is_forced)

    def _ensured(self, topic: str) -> int:
        with self._waiting("kafka", f"topic {topic}"), self._one_topic:
            return self._topics.ensure([topic])[topic]

    async def logical_message(self, message: LogicalMessage, tx: TransactionContext | None) -> Record:
        """Return the record of a logical message, in `<name>.message`."""
        topic = message_topic(self._name)
        place = await self._own_place(topic, self.place_messages)
        return encode_logical_message(
            **place,
            prefix=message.prefix,
            content=message.content,
            transactional=message.transactional,
            lsn=message.lsn,
            tx=tx,
        )

    async def metadata(self, tx: TransactionContext, *, is_end: bool) -> Record:
        """Return the transaction's BEGIN or END, in `<name>.transaction`."""
        topic = transaction_topic(self._name)
        place = await self._own_place(topic, self.place_transactions)
        return encode_metadata(tx, place, is_end=is_end)

    async def snapshot_metadata(
        self, tx: TransactionContext, table: str, rows: int | None, now_ms: int, name: str | None = None
    ) -> Record:
        """Return the BEGIN of a table's snapshot, or its END with the number of rows, in `<name>.transaction`.

        `name`: the snapshot's id, None for the one at its commit LSN.
        """
        place = await self._own_place(transaction_topic(self._name), self.place_transactions)
        return encode_snapshot_metadata(tx, place, table=table, rows=rows, now_ms=now_ms, name=name)

    async def _own_place(self, topic: str, make: Callable[[], Place]) -> Place:
        """Prepare a topic that is not a table's, once in a session; return its partitions and schema ids."""
        place = self._own_topics.get(topic)
        if place is None:
            place = self._own_topics[topic] = await in_thread(make)
        return place

    def place_messages(self) -> Place:
        """Prepare the topic of logical messages (blocking). Raises the registry's error for its schemas."""
        key, value = message_key_schema(self._name), message_value_schema(self._name)
        return self._ready_topic(message_topic(self._name), key, value)

    def place_transactions(self) -> Place:
        """Prepare the topic of transactions (blocking). Raises the registry's error for its schemas."""
        return self._ready_topic(
            transaction_topic(self._name), metadata_key_schema(), metadata_value_schema()
        )

    def _ready_topic(self, topic: str, key: AvroSchema, value: AvroSchema) -> Place:
        return Place(
            topic=topic,
            partitions=self._ensured(topic),
            key_schema_id=self._schema_id(topic, "key", key),
            value_schema_id=self._schema_id(topic, "value", value),
        )


def _described_identity(relation: Relation) -> PartitionIdentity:
    is_indexed = relation.identity in (ReplicaIdentity.DEFAULT, ReplicaIdentity.INDEX)
    return PartitionIdentity(
        f"{quote_identifier(relation.schema)}.{quote_identifier(relation.name)}",
        relation.identity is ReplicaIdentity.FULL,
        frozenset(column.name for column in relation.columns if column.is_key) if is_indexed else None,
    )
