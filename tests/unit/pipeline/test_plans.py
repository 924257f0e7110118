"""The plans of tables: which table a topic belongs to, and which descriptions of a relation are trusted."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdcd.avro.encode import encode_batch
from cdcd.avro.plan import HEADER_BYTES
from cdcd.avro.transaction import TransactionContext
from cdcd.errors import KeyChanged, RegistryUnavailable, SchemaIncompatible, TopicMismatch
from cdcd.model import Column, PgType, Record, Relation, ReplicaIdentity, TransactionInfo
from cdcd.pgoutput import messages as m
from cdcd.pipeline.plans import PLANNED_AT_ONCE, Incompatible, Plans
from cdcd.schema.attnums import KnownAttnums, NumberedColumn, known_attnums
from cdcd.schema.policy import Policies, Policy
from cdcd.source.key_index import KeyIndex, TableKeys
from cdcd.txn.lookahead import Lookahead
from tests.support.hints import settings_in
from tests.support.pgoutput_encode import row_batch_of

PRIMARY = KeyIndex(True, False, ("id",), True, None, True)
TYPES = {23: PgType(23, "pg_catalog", "int4", "b"), 25: PgType(25, "pg_catalog", "text", "b")}


def relation(*keys: str, name: str = "t", schema: str = "s", kind: int = 25, relid: int = 1) -> Relation:
    columns = (Column("id", 23, -1, "id" in keys), Column("v", kind, -1, "v" in keys))
    return Relation(relid, schema, name, ReplicaIdentity.DEFAULT, columns)


class Catalog:
    """A catalog without tables. `numbers`: the attnums of relations, as far as they are known.

    `columns`: the present columns of the table in place of `numbers`.
    """

    def __init__(self) -> None:
        self.numbers: dict[Relation, tuple[int, ...]] = {}
        self.columns: tuple[NumberedColumn, ...] = ()

    def types(self, oids: Iterable[int]) -> dict[int, PgType]:
        return {oid: TYPES[oid] for oid in oids}

    def keys(self, relid: int) -> TableKeys | None:
        return None

    def attnums(self, relation: Relation) -> KnownAttnums:
        if self.columns:
            return known_attnums(relation, self.columns, self.columns[-1].attnum)
        return KnownAttnums(self.numbers.get(relation))


class Topics:
    def ensure(self, names: Iterable[str]) -> dict[str, int]:
        return dict.fromkeys(names, 1)

    ensure_new = ensure

    def has_records(self, _name: str) -> bool:
        return True


def without_attnums(schema: Any) -> Any:
    """Return the schema without the property."""
    if isinstance(schema, list):
        return [without_attnums(one) for one in schema]
    if isinstance(schema, dict):
        return {name: without_attnums(part) for name, part in schema.items() if name != "pg.attnum"}
    return schema


class Registry:
    """A registry that rejects each change of a subject's fields as incompatible, except for attnums."""

    def __init__(self) -> None:
        self.registers = True
        self.versions: dict[str, list[dict[str, Any]]] = {}

    def latest(self, subject: str) -> dict[str, Any] | None:
        return self.versions[subject][-1] if subject in self.versions else None

    def registered(self, subject: str) -> list[dict[str, Any]]:
        return self.versions.get(subject, [])[::-1]

    def knows(self, subject: str, schema: dict[str, Any]) -> bool:
        return schema in self.versions.get(subject, [])

    def schema_id(self, subject: str, schema: dict[str, Any], *, is_forced: bool = False) -> int:
        versions = self.versions.setdefault(subject, [])
        if (
            versions
            and schema not in versions
            and not is_forced
            and without_attnums(schema) != without_attnums(versions[-1])
        ):
            raise SchemaIncompatible("another schema", subject=subject)
        if schema not in versions:
            versions.append(schema)
        return versions.index(schema) + 1


def plans(incompatible: Incompatible = "halt", template: str = "{name}.{schema}.{table}") -> Plans:
    return Plans(
        Catalog(),
        Topics(),
        Registry(),
        name="shop",
        template=template,
        policies=Policies(),
        incompatible=incompatible,
    )


@pytest.mark.parametrize("incompatible", ["new_topic", "register_with_none"])
async def test_what_is_streamed_is_not_believed_when_it_would_change_a_topic(
    incompatible: Incompatible,
) -> None:
    """F45: with streaming the server may describe a table wrongly; without streaming its description is right."""
    one = plans(incompatible)
    await one.plan(relation("id"))
    one.is_sure = False
    with pytest.raises(SchemaIncompatible):
        await one.plan(relation("id", kind=23))
    with pytest.raises(KeyChanged):
        await one.plan(relation())
    one.is_sure = True
    assert (await one.plan(relation("id", kind=23))).topic == (
        "shop.s.t.v2" if incompatible == "new_topic" else "shop.s.t"
    )


async def test_a_primary_key_that_may_hold_nulls_is_not_the_whole_row() -> None:
    """F44: rows of a dropped table that are read after a restart have the key of the topic."""
    one = plans()
    one._policies = Policies(Policy(keyless="row"))
    one._catalog.keys = lambda relid: TableKeys()  # type: ignore[method-assign]
    assert (await one.plan(relation())).key_indexes == ()
    one._catalog.keys = lambda relid: TableKeys((PRIMARY,))  # type: ignore[method-assign]
    full = replace(relation(), identity=ReplicaIdentity.FULL)
    assert (await one.plan(full)).key_indexes == (0,)
    assert one._schemas._keys["shop.s.t"]["fields"][0]["type"] == ["null", "int"]  # type: ignore[index]
    one._catalog.keys = lambda relid: None  # type: ignore[method-assign]
    assert (await one.plan(full)).key_indexes == (0,)


async def test_rows_under_both_keys_in_unwritten_transactions_go_on_as_the_hint_says_first() -> None:
    """F45: ADD COLUMN between rows of one transaction. Each reading of it would register the former key again."""
    former = replace(relation(), identity=ReplicaIdentity.FULL)
    later = replace(former, columns=(*former.columns, Column("w", 23, -1, False)))

    def as_row(incompatible: Incompatible, registry: Registry) -> Plans:
        one = plans(incompatible)
        one._policies = Policies(Policy(keyless="row"))
        one._catalog.keys = lambda relid: TableKeys()  # type: ignore[method-assign]
        one._schemas._registry = registry  # type: ignore[assignment]
        return one

    registry = Registry()
    for is_deleted in (False, True):
        if is_deleted:
            del registry.versions["shop.s.t-key"]
        one = as_row("halt", registry)
        await one.plan(former)
        with pytest.raises(KeyChanged) as caught:
            await one.plan(later)
    (setting,) = settings_in(caught.value.advice.partition(";")[0]).items()
    assert setting == ("registry.incompatible", "new_topic")
    one = as_row("new_topic", registry)
    assert [(await one.plan(each)).topic for each in (former, later)] == ["shop.s.t", "shop.s.t.v2"]


async def test_what_a_snapshot_knew_describes_no_row_of_the_stream() -> None:
    """F43: a row without a Relation message is an error of the encoder, even for a copied table."""
    one = plans()
    made = await one.plan(relation("id"))
    one.begin_stream(is_sure=True)
    await one.ready([1])
    assert one.by_relid == {}
    one.describe(relation("id"))
    await one.ready([1])
    assert one.by_relid[1] is made


async def test_another_key_goes_to_a_new_topic_only_where_that_is_wanted() -> None:
    one = plans("new_topic")
    assert (await one.plan(relation("id"))).topic == "shop.s.t"
    assert (await one.plan(relation("v"))).topic == "shop.s.t.v2"
    assert (await one.plan(relation("id"))).topic == "shop.s.t"
    assert (await one.plan(relation("id", "v"))).topic == "shop.s.t.v3"
    for incompatible in ("halt", "register_with_none"):
        other = plans(incompatible)
        await other.plan(relation("id"))
        with pytest.raises(KeyChanged):
            await other.plan(relation("v"))


@pytest.mark.parametrize("change", ["add_column", "add_column_and_drop_table", "add_primary_key"])
async def test_a_key_that_is_the_whole_row_halts_if_it_gets_other_columns(change: str) -> None:
    """F45: no later record would delete the rows under the former key."""
    one = plans("register_with_none")
    one._policies = Policies(Policy(keyless="row"))
    one._catalog.keys = lambda relid: TableKeys()  # type: ignore[method-assign]
    whole = replace(relation("id", "v"), identity=ReplicaIdentity.FULL)
    assert (await one.plan(whole)).key_indexes == (0, 1)
    if change == "add_primary_key":
        one._catalog.keys = lambda relid: TableKeys((PRIMARY,))  # type: ignore[method-assign]
    else:
        whole = replace(whole, columns=(*whole.columns, Column("w", 23, -1, True)))
    if change == "add_column_and_drop_table":
        one._catalog.keys = lambda relid: None  # type: ignore[method-assign]
    with pytest.raises(KeyChanged):
        await one.plan(whole)


async def test_a_first_key_is_said() -> None:
    """F45: earlier records have no key."""
    one = plans()
    with capture_logs() as lines:
        await one.plan(relation())
    assert [line["event"] for line in lines] == ["relation_without_key"]
    again = plans("register_with_none")
    again._schemas._registry = one._schemas._registry
    with capture_logs() as lines:
        await again.plan(relation("id"))
    assert "key_added" in [line["event"] for line in lines]


async def test_a_key_is_not_a_first_one_where_nothing_was_written_without() -> None:
    """An interrupted start has registered the table's value schema, but not its key schema."""
    cut_off, again = plans(), plans()
    key = cut_off._schemas._registry.versions  # type: ignore[attr-defined]
    await cut_off.plan(relation("id"))
    del key["shop.s.t-key"]
    again._schemas._registry = cut_off._schemas._registry
    again._topics.has_records = lambda _name: False  # type: ignore[method-assign]
    with capture_logs() as lines:
        await again.plan(relation("id"))
    assert lines == []


async def test_the_columns_of_a_first_key_that_come_with_it_may_be_null_in_the_value() -> None:
    """A column that is added to a topic's values needs a default; in the key the column is required."""
    one = plans("register_with_none")
    keyless = relation()
    await one.plan(replace(keyless, columns=keyless.columns[1:]))
    keyed = await one.plan(relation("id"))
    assert (keyed.key_indexes, keyed.is_key_required) == ((0,), True)
    assert not any(column.is_required for column in keyed.columns)


async def test_a_null_from_before_the_first_key_of_a_full_table_is_written() -> None:
    """UPDATE t SET id = ... WHERE id IS NULL and ADD PRIMARY KEY, before cdcd has read the rows (F44)."""
    full = replace(relation("id", "v"), identity=ReplicaIdentity.FULL)
    one = plans("register_with_none")
    one._catalog.keys = lambda relid: TableKeys()  # type: ignore[method-assign]
    assert (await one.plan(full)).key_indexes == ()
    one._catalog.keys = lambda relid: TableKeys((PRIMARY,))  # type: ignore[method-assign]
    keyed = await one.plan(full)
    change = m.Update(1, m.OldTuple(b"O", values(None, b"a")), values(b"5", b"a"))
    info = TransactionInfo(7, 500, 1)
    tx = TransactionContext(info, timeline=1, name="shop", database="d", now_us=1, version="1")
    written = encode_batch(row_batch_of([(50, change)]), {1: keyed}, tx)
    keys = [(record.key or b"")[HEADER_BYTES:] for record in written]
    assert keys == [b"\x00", b"\x00", b"\x02\x0a"]
    assert [record.value is None for record in written] == [False, True, False]


def values(*found: bytes | None) -> m.TupleData:
    return m.TupleData(tuple(m.NULL if one is None else m.text(one) for one in found))


async def test_a_refused_value_leaves_the_topic_without_a_key() -> None:
    """Otherwise rows that are sent again from before the change would find a key that the topic never had."""
    one = plans()
    await one.plan(relation())
    with pytest.raises(SchemaIncompatible):
        await one.plan(relation("id", kind=23))
    assert "shop.s.t-key" not in one._schemas._registry.versions  # type: ignore[attr-defined]
    assert (await one.plan(relation())).key_indexes == ()


@pytest.mark.parametrize("is_sure", [True, False])
async def test_rows_from_before_the_first_key_are_read_again(is_sure: bool) -> None:
    """F44: the catalog already has the key. While open transactions are streamed the description is not trusted."""
    one = plans()
    await one.plan(relation())
    assert (await one.plan(relation("id"))).key_indexes == (0,)
    again = plans()
    again._schemas._registry = one._schemas._registry
    again._catalog.keys = lambda relid: TableKeys((PRIMARY,))  # type: ignore[method-assign]
    again.is_sure = is_sure
    if not is_sure:
        with pytest.raises(KeyChanged):
            await again.plan(relation())
        return
    assert (await again.plan(relation())).key_indexes == ()
    assert (await again.plan(relation("id"))).key_indexes == (0,)


@pytest.mark.parametrize("table", ["__progress", "__schemas", "__dead_letters", "message", "transaction"])
async def test_no_table_is_written_to_a_topic_of_cdcds_own(table: str) -> None:
    with pytest.raises(TopicMismatch):
        await plans(template="{name}.{table}").plan(relation("id", name=table))


async def test_two_tables_never_share_a_topic() -> None:
    one = plans(template="{name}.{table}")
    await one.plan(relation("id"))
    with pytest.raises(TopicMismatch):
        await one.plan(relation("id", schema="other", relid=2))
    await plans(template="{name}.{table}").plan(relation("id", schema="a.b", name="c"))


async def test_who_asks_for_the_topics_may_do_so_while_a_thread_plans_a_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = plans()
    first = await one.plan(relation("id"))

    class Meanwhile:
        """A plan whose partitions are read while another plan is added."""

        topic = first.topic

        @property
        def partitions(self) -> int:
            key, made = next(iter(one._made.items()))
            one._made[key[0] + 1, *key[1:]] = made
            return 3

    (key,) = one._made
    meanwhile: Any = Meanwhile()
    monkeypatch.setitem(one._made, key, replace(one._made[key], plan=meanwhile))
    assert one.partitions == {first.topic: 3}


async def test_the_plans_of_versions_that_have_passed_give_way() -> None:
    """Plans are needed while their records are not durable; a session may see any number of ALTER TABLE."""
    one = plans("register_with_none")
    made = [await one.plan(with_column(number)) for number in range(100)]
    records = [Record(plan.topic, 0, None, plan.value_header + b"row") for plan in made]
    found = [one.of_record(record) for record in records]
    assert found[-8:] == made[-8:]
    assert sum(plan is not None for plan in found) < 20


def with_column(number: int) -> Relation:
    described = relation("id")
    return replace(described, columns=(*described.columns, Column(f"c{number}", 25, -1, False)))


class Together(Registry):
    """Answers a lookup of a value schema only when two lookups run at once."""

    def __init__(self) -> None:
        super().__init__()
        self.meeting = threading.Barrier(2, timeout=30)

    def latest(self, subject: str) -> dict[str, Any] | None:
        if subject.endswith("-value"):
            self.meeting.wait()
        return super().latest(subject)


async def test_plans_of_several_relations_are_made_at_once_and_returned_in_order() -> None:
    """Planning mostly waits for the registry."""
    one = plans()
    one._schemas._registry = Together()
    relations = [relation("id", name=f"t{number}", relid=number) for number in range(8)]
    made = await one.plan_all(relations)
    assert [plan.topic for plan in made] == [f"shop.s.t{number}" for number in range(8)]
    assert sorted(one.by_relid) == list(range(8))


async def test_where_one_plan_fails_no_other_is_begun() -> None:
    one = plans()
    registry = one._schemas._registry
    asked: list[str] = []

    def refused(subject: str) -> dict[str, Any] | None:
        asked.append(subject)
        raise RegistryUnavailable("away")

    registry.latest = refused  # type: ignore[method-assign]
    relations = [relation("id", name=f"t{number}", relid=number) for number in range(100)]
    with pytest.raises(RegistryUnavailable):
        await one.plan_all(relations)
    assert len(asked) <= PLANNED_AT_ONCE


async def test_topics_are_seen_to_once_however_often_a_table_is_described() -> None:
    """The server describes a root again with each of its partitions; the lookahead runs once."""
    one, a, b = plans(), relation(name="a", relid=1), relation(name="b", relid=2)
    one.describe(a)
    assert not one.has_prepared([1])
    await one.prepare(Lookahead({1, 2}, {2: b}))
    one.describe(b)
    await one.ready([1, 2])
    one.describe(a)
    assert 1 not in one.by_relid
    assert one.has_prepared([1, 2])
    one.describe(relation(name="c", relid=1))
    assert not one.has_prepared([1])


def test_other_columns_of_a_table_are_noted() -> None:
    """A description that is repeated, or the first one after a reconnect, is none."""
    one, noted = plans(), list[str]()
    one._note_altered = lambda: noted.append("altered")
    one.describe(relation("id"))
    one.describe(relation("id"))
    one.describe(relation("id", relid=2))
    assert noted == []
    one.describe(relation("id", kind=23))
    assert noted == ["altered"]
    one.begin_stream(is_sure=True)
    one.describe(relation("id"))
    assert noted == ["altered"]


def numbered(number: int | None) -> dict[Relation, tuple[int, ...]]:
    return {} if number is None else {relation("id"): (1, number)}


def schemas_of(one: Plans) -> list[dict[str, Any]]:
    registry = one._schemas._registry
    assert isinstance(registry, Registry)
    return registry.versions["shop.s.t-value"]


async def planned(one: Plans, attnum: int | None) -> int:
    """Return the id of the schema of a table that is described while its second column has this attnum."""
    catalog = one._catalog
    assert isinstance(catalog, Catalog)
    catalog.numbers = numbered(attnum)
    plan = await one.plan(relation("id"))
    return int.from_bytes(plan.value_header[1:], "big")


async def test_a_column_that_was_dropped_and_added_gives_the_same_description_another_schema() -> None:
    one = plans("register_with_none")
    assert [await planned(one, number) for number in (2, 2, 3, 3)] == [1, 1, 2, 2]


async def test_a_description_that_does_not_fit_any_more_has_the_schema_it_had() -> None:
    """In the same session, and in one that reads the same rows again after a later ALTER TABLE."""
    one = plans("register_with_none")
    assert [await planned(one, number) for number in (2, None, 2)] == [1, 1, 1]
    again = plans("register_with_none")
    again._schemas._registry = one._schemas._registry
    assert [await planned(again, number) for number in (None, 2)] == [1, 1]
    assert len(schemas_of(again)) == 1


ID, C = Column("id", 23, -1, True), Column("c", 25, -1, False)
NOW = (
    NumberedColumn("id", 23, -1, 1, False),
    NumberedColumn("c", 25, -1, 3, False),
    NumberedColumn("d", 23, -1, 4, False),
)
"""The columns after DROP c, ADD c, and, after a row that has not been received yet, ADD d."""


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_the_attnum_of_a_dropped_column_is_not_given_to_one_that_was_added_since(
    is_restarted: bool,
) -> None:
    """A mirror would take the value for one of the dropped column, and later rows would not have it."""
    one = plans("register_with_none")
    described = Relation(1, "s", "t", ReplicaIdentity.DEFAULT, (ID, C))
    one._catalog.columns = (NOW[0], NOW[1]._replace(attnum=2))  # type: ignore[attr-defined]
    await one.plan(described)
    again = plans("register_with_none") if is_restarted else one
    again._schemas._registry = one._schemas._registry
    again._catalog.columns = NOW  # type: ignore[attr-defined]
    plan = await again.plan(described)
    assert "pg.attnum" not in str(plan.value_schema)
    assert await again.plan(described) is plan
    assert len(schemas_of(again)) == 2


async def test_rows_from_before_an_alter_table_that_are_read_again_have_their_schema() -> None:
    """One without attnums would be a new version, which may be incompatible with the one since: cdcd would halt."""
    one = plans()
    described = Relation(1, "s", "t", ReplicaIdentity.DEFAULT, (ID, C))
    one._catalog.columns = (NOW[0], NOW[1]._replace(attnum=2))  # type: ignore[attr-defined]
    first = await one.plan(described)
    since, again = plans("register_with_none"), plans()
    for other in (since, again):
        other._schemas._registry = one._schemas._registry
        other._catalog.columns = (NOW[0], NOW[2])  # type: ignore[attr-defined]
    await since.plan(replace(described, columns=(ID, Column("d", 23, -1, False))))
    assert (await again.plan(described)).value_header == first.value_header
    assert len(schemas_of(again)) == 2


async def test_where_the_attnums_were_never_known_the_schema_has_none() -> None:
    one = plans("register_with_none")
    assert await planned(one, None) == 1
    assert await planned(one, 2) == 2
    again = plans("register_with_none")
    again._schemas._registry = one._schemas._registry
    assert await planned(again, None) == 2
    assert len(schemas_of(again)) == 2


async def test_what_others_register_is_used_as_it_is() -> None:
    """With auto_register off an operator may have registered the schema before attnums were in it."""
    one = plans("register_with_none")
    await planned(one, None)
    fixed = plans("register_with_none")
    fixed._schemas._registry = one._schemas._registry
    one._schemas._registry.registers = False  # type: ignore[misc]
    assert [await planned(fixed, number) for number in (2, 3)] == [1, 1]


@pytest.mark.parametrize(("then", "now"), [(2, None), (None, 2), (2, 3)])
async def test_rows_that_are_sent_again_go_to_their_topic_whatever_is_known_of_their_columns(
    then: int | None, now: int | None
) -> None:
    one = plans("new_topic")
    await planned(one, then)
    assert (await one.plan(relation("id", kind=23))).topic == "shop.s.t.v2"
    again = plans("new_topic")
    again._schemas._registry = one._schemas._registry
    await planned(again, now)
    assert again.by_relid[1].topic == "shop.s.t"
