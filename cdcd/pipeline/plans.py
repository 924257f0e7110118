"""A plan for each relation that the server describes: catalog, topic, schemas and their ids, combined once.

In: Relation messages (or the catalog's columns, for a snapshot).  Out: `RelationPlan`s by relid.
Invariant: a plan is made before the first row that it encodes, and belongs to one session (F43); look-ups happen
here, between items, never per row. Several threads make the plans of several relations, one thread for each relation.
Two relations never share a topic undetected.
Must not: cache a relation across sessions.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol

import structlog

from cdcd.avro.plan import HEADER_BYTES, RelationPlan, compile_plan
from cdcd.errors import CdcdError, KeyChanged, SchemaIncompatible
from cdcd.lru_cache import LruCache
from cdcd.model import PgType, Record, Relation
from cdcd.pipeline.key_warnings import KeyWarnings, Say, warn
from cdcd.pipeline.made_plans import MadePlan, PlanKey
from cdcd.pipeline.own_topics import OwnTopics
from cdcd.pipeline.partition_identities import PartitionIdentities
from cdcd.pipeline.topic_schemas import Registry, TopicSchemas, Waiting, not_waiting
from cdcd.registry.subjects import Strategy, full_record_name
from cdcd.schema.attnums import KnownAttnums
from cdcd.schema.exact_keys import merged_key_columns
from cdcd.schema.identity import OldTuples
from cdcd.schema.keys import (
    is_required,
    is_whole_row,
    key_of,
    nullable_columns,
    registered_columns,
    required_columns,
)
from cdcd.schema.named_types import with_full_names
from cdcd.schema.policy import Policies
from cdcd.schema.relation_schema import RelationSchemas, relation_schemas
from cdcd.sink.names import own_topics, refuse_second_owner, topic_name
from cdcd.source.key_index import TableKeys
from cdcd.threads import in_thread
from cdcd.txn.lookahead import Lookahead

_LOG = structlog.stdlib.get_logger("cdcd.plans")
PLANNED_AT_ONCE = 8
_PLANS_OF_A_TOPIC = 16
_IDENTITY_HINT = "no action is needed: from this change on, `before` has other columns (docs/evolution.md)"
"""How many recent plans of a topic `of_record` can find: enough for the records that are not durable yet."""


class Catalog(Protocol):
    """The catalog of the database, as plans use it (blocking)."""

    def types(self, oids: Any) -> dict[int, PgType]: ...  # noqa: D102
    def keys(self, relid: int) -> TableKeys | None: ...  # noqa: D102
    def attnums(self, relation: Relation) -> KnownAttnums: ...  # noqa: D102


class Topics(Protocol):
    """The topics, as plans use them (blocking)."""

    def ensure(self, names: Any) -> dict[str, int]: ...  # noqa: D102
    def ensure_new(self, names: Any) -> dict[str, int]: ...  # noqa: D102
    def has_records(self, name: str) -> bool: ...  # noqa: D102


Incompatible = Literal["halt", "new_topic", "register_with_none"]
"""The policy for a schema that readers of the table's topic could not read."""


class _TopicPartitions:
    """The number of partitions of topics, each created if it is missing. One thread at a time asks Kafka."""

    def __init__(self, topics: Topics, waiting: Waiting) -> None:
        self._topics = topics
        self._waiting = waiting
        self._one_topic = threading.Lock()

    def of(self, topic: str) -> int:
        with self._waiting("kafka", f"topic {topic}"), self._one_topic:
            return self._topics.ensure([topic])[topic]


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
        note_written: Callable[[int, str], None] = lambda _relid, _topic: None,
        note_altered: Callable[[], None] = lambda: None,
    ) -> None:
        """`say` is called with the warnings for readers of a table's topic.

        `note_written` is called with relid and topic of each relation before rows of the stream follow.
        `note_altered` is called when the stream describes a table with other columns than before.
        """
        self._note_written, self._note_altered = note_written, note_altered
        self._waiting = waiting
        self._say = say
        self._warnings = KeyWarnings(say)
        self.by_relid: dict[int, RelationPlan] = {}
        self.is_sure = True
        """Whether table descriptions are reliable: not while transactions are streamed (`option_downgrade`)."""
        self._described: dict[int, Relation] = {}
        self._identities = PartitionIdentities(catalog)
        self._made: dict[tuple[int, str], MadePlan] = {}
        self._by_header: dict[str, LruCache[bytes, RelationPlan]] = {}
        self._flaws: dict[int, str | None] = {}
        self._schemas = TopicSchemas(registry, name, policies, subjects, waiting)
        self._owners: dict[str, tuple[str, str]] = dict.fromkeys(own_topics(name), ("cdcd", "itself"))
        self._one_thread: dict[int, threading.Lock] = {}
        """By relid: the stream and an incremental snapshot may make the plan of one relation at the same time."""
        self._prepared: dict[str, int] = {}
        """The partition numbers of topics that `prepare` created for later plans."""
        self._asked_for: set[str] = set()
        """Topics that `prepare` has handled."""
        self._catalog = catalog
        self._topics = topics
        self._partitions = _TopicPartitions(topics, waiting)
        self._name = name
        self._template = template
        self._policies = policies
        self._incompatible = incompatible
        own = OwnTopics(name, self._schemas, self._partitions.of)
        self.logical_message, self.metadata = own.logical_message, own.metadata
        self.snapshot_metadata = own.snapshot_metadata
        self.place_messages, self.place_transactions = own.place_messages, own.place_transactions

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
                hint=_IDENTITY_HINT,
            )
        if was != relation:
            self._identities.forget(relation)
        if was is not None and was.columns != relation.columns:
            self._note_altered()
        self._described[relation.relid] = relation
        for relid in (relation.relid, *self._identities.note(relation)):
            self.by_relid.pop(relid, None)

    async def ready(self, relids: Iterable[int]) -> None:
        """Make the plans of these relations if they were described; else the encoder raises RelationUnknown."""
        new = dict.fromkeys(
            relid for relid in relids if relid not in self.by_relid and relid in self._described
        )
        for plan in await self.plan_all([self._described[relid] for relid in new]):
            self._note_written(plan.relation.relid, plan.topic)

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
        while self._schemas.value(following := f"{first}.v{len(topics) + 1}", relation) is not None:
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

    def _has_schema(self, relation: Relation, topic: str) -> bool:
        try:
            schemas = self._schemas_of(relation, self._key(relation, topic), None)
        except KeyChanged:
            return False
        return self._schemas.has(topic, schemas.value)

    def _in_topic(self, relation: Relation, topic: str, *, is_forced: bool = False) -> RelationPlan:
        key = self._key(relation, topic)
        made = self._made.get((relation.relid, topic))
        old, known = self._identities.old_tuples(relation, key.columns), self._catalog.attnums(relation)
        if made is None or not made.has(relation, key, old, known):
            plan = self._compile(relation, topic, key, old, known, is_forced)
            made = self._made[relation.relid, topic] = MadePlan(relation, key, old, known.described, plan)
            self._by_header.setdefault(topic, LruCache(_PLANS_OF_A_TOPIC)).put(plan.value_header, plan)
        return made.plan

    def _key(self, relation: Relation, topic: str) -> PlanKey:
        key_schema = self._schemas.key(topic, relation)
        keys = self._catalog.keys(relation.relid)
        index = None if keys is None else keys.of(relation.identity)
        is_flawed = index is not None and index.flaw is not None
        self._flaws[relation.relid] = None if index is None else index.flaw
        policy = self._policies.table(f"{relation.schema}.{relation.name}")
        value = self._schemas.value(topic, relation)
        is_unknown = keys is None and not is_whole_row(key_schema, value, relation, policy)
        catalog_key = None if is_unknown else () if index is None or is_flawed else index.columns
        shared = index.columns if index is not None and is_flawed else ()
        # While open transactions are streamed, a table may have a key although its description has none.
        believed = nullable_columns(value) if self.is_sure else ()
        registered = registered_columns(key_schema)
        columns = key_of(relation, catalog_key, registered, policy, believed, shared)
        # A key column that the topic's values do not have yet would be a new field without a default.
        nullable = frozenset[str]() if value is None else frozenset(columns) - required_columns(value)
        is_chosen = set(columns) == set(policy.key_columns) or (policy.keyless == "row" and not catalog_key)
        is_unique = keys is None or not columns or not is_chosen or keys.is_unique(columns)
        required = is_required(relation, catalog_key, key_schema, shared, nullable)
        return PlanKey(columns, required, nullable, is_unique)

    def _schemas_of(
        self, relation: Relation, key: PlanKey, attnums: tuple[int, ...] | None
    ) -> RelationSchemas:
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

    def _compile(
        self,
        relation: Relation,
        topic: str,
        key: PlanKey,
        old: OldTuples | None,
        known: KnownAttnums,
        is_forced: bool,
    ) -> RelationPlan:
        refuse_second_owner(self._owners, topic, (relation.schema, relation.name))
        table = f"{relation.schema}.{relation.name}"
        schemas = self._schemas_of(relation, key, known.described)
        schemas = self._schemas.with_registered(topic, schemas, known)
        merged = merged_key_columns(relation, schemas)
        self._warnings.shared(relation, key.columns, merged, is_unique=key.is_unique)
        partitions = self._prepared.pop(topic, None) or self._partitions.of(topic)
        had_values = self._schemas.value(topic, relation) is not None
        # The value schema first: a topic gets a key schema only if its values are accepted too.
        value_id = self._schemas.register_value(topic, schemas.value, is_forced=is_forced)
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
        was = self._schemas.key_named(topic, full_record_name(schema))
        number = self._schemas.register(topic, "key", schema, is_forced)
        if was is not None and with_full_names(was)["fields"] != with_full_names(schema)["fields"]:
            self._warnings.schema_changed(topic, number)
        elif was is None and had_values and self._has_records(topic):
            self._warnings.added(topic, number)
        self._schemas.set_key(topic, schema)
        return number

    def _has_records(self, topic: str) -> bool:
        """Whether the topic has records, or may get records that are queued.

        An interrupted start may have registered a table's value schema only, without writing a record.
        """
        return any(topic == planned for _, planned in self._made) or self._topics.has_records(topic)
