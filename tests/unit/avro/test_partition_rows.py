"""F78: an old tuple has the columns of the partition's replica identity, but its type letter is the root's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cdcd.avro.plan import compile_plan
from cdcd.errors import ReplicaIdentityIncomplete
from cdcd.model import Column, Relation, ReplicaIdentity
from cdcd.schema.identity import OldTuples, PartitionIdentity, old_tuples

from .test_avro_encode import ID, Table, U, delete, insert, update

FULL, DEFAULT = ReplicaIdentity.FULL, ReplicaIdentity.DEFAULT
V, W = Column("v", 25, -1, False), Column("w", 23, -1, False)
LEAF = '"public"."t1"'
ID_ONLY = frozenset({"id"})


def table(identity: ReplicaIdentity, key: tuple[str, ...] = ("id",), old: OldTuples | None = None) -> Table:
    columns = tuple(replace(column, is_key=identity is FULL or column.name in key) for column in (ID, V, W))
    made = Table(Relation(7, "public", "orders", identity, columns), key)
    plan = made.plan
    made.plan = compile_plan(
        plan.relation,
        made.schemas,
        topic=plan.topic,
        partitions=plan.partitions,
        key_schema_id=11 if key else None,
        value_schema_id=12,
        tombstones=False,
        old_tuples=old,
    )
    return made


def story(one: Table, *messages: tuple[str, bytes]) -> list[Any]:
    """Return of each record: op, before, after, special, unchanged."""
    values = [one.value(record) for record in one.encode(*messages)]
    return [
        (
            value["op"],
            value["before"],
            value["after"],
            value["source"]["special"],
            value["source"]["unchanged"],
        )
        for value in values
    ]


def row(id_: int | None, v: str | None, w: int | None) -> dict[str, Any]:
    return {"id": id_, "v": v, "w": w}


MARKS = {"before.v.not_logged": "true", "before.w.not_logged": "true"}


@pytest.mark.parametrize(("letter", "marks"), [("key", None), ("old", MARKS)])
def test_an_unchanged_value_is_not_filled_from_a_null(letter: str, marks: dict[str, str] | None) -> None:
    """The root is FULL, the partition is not, the key changes."""
    old = old_tuples([PartitionIdentity(LEAF, False, frozenset({"id"}))], ("id",))
    one = table(FULL, old=old)
    assert story(one, ("U", update(["2", U, "1"], **{letter: ["1", None, None]}))) == [
        ("d", row(1, None, None), None, marks, []),
        ("c", None, row(2, None, 1), None, ["v"]),
    ]


@pytest.mark.parametrize("letter", ["key", "old"])
def test_each_column_that_is_there_is_used(letter: str) -> None:
    """A partition may be FULL, or have a larger key, although its root is not and has not."""
    assert story(table(DEFAULT), ("U", update(["1", U, None], **{letter: ["1", "long", "5"]}))) == [
        ("u", row(1, "long", 5), row(1, "long", None), None, [])
    ]


def test_a_table_without_a_key_has_what_the_partition_logged() -> None:
    """The partition logs its key columns; the root has no key."""
    old = old_tuples([PartitionIdentity(LEAF, False, frozenset({"id"}))], ())
    assert old == OldTuples(frozenset({ID_ONLY}), (LEAF,))
    one = table(DEFAULT, (), old)
    assert story(one, ("D", delete(key=["3", None, None]))) == [("d", row(3, None, None), None, MARKS, [])]
    (record,) = one.encode(("D", delete(key=["3", None, None])))
    assert record.key is None


SHORT = OldTuples(frozenset({ID_ONLY}), (LEAF,))
NAMELESS = [
    pytest.param("U", ("id",), update(["1", "a", None]), id="UPDATE without an old tuple"),
    pytest.param("U", ("id",), update(["1", "a", None], key=[None, "a", None]), id="UPDATE without the key"),
    pytest.param(
        "U", ("id", "w"), update(["1", "a", "2"], old=["1", "a", None]), id="UPDATE with a part of the key"
    ),
    pytest.param("D", ("id",), delete(key=[None, "a", "1"]), id="DELETE without the key"),
    pytest.param("U", (), update(["1", "a", None]), id="UPDATE without key and old tuple"),
    pytest.param("D", (), delete(key=[None, None, None]), id="DELETE of nothing"),
]


@pytest.mark.parametrize(("kind", "key", "message"), NAMELESS)
def test_a_change_that_names_no_row_halts(kind: str, key: tuple[str, ...], message: bytes) -> None:
    one = table(DEFAULT, key, SHORT)
    with pytest.raises(ReplicaIdentityIncomplete) as caught:
        one.encode(("I", insert(["1", "a", "1"])), (kind, message))
    text = str(caught.value)
    assert f"ALTER TABLE {LEAF} REPLICA IDENTITY FULL" in text
    assert (caught.value.context["table"], caught.value.context["row"]) == ("public.orders", 1)


def test_a_change_that_names_its_row_goes_on() -> None:
    one = table(DEFAULT, ("id",), SHORT)
    assert story(
        one, ("U", update(["2", "a", None], key=["1", "b", None])), ("D", delete(key=["2", None, None]))
    ) == [
        ("d", row(1, "b", None), None, None, []),
        ("c", None, row(2, "a", None), None, []),
        ("d", row(2, None, None), None, None, []),
    ]


IDENTITIES = {
    "full": PartitionIdentity("full", True),
    "id": PartitionIdentity("id", False, frozenset({"id"})),
    "wide": PartitionIdentity("wide", False, frozenset({"id", "w"})),
    "v": PartitionIdentity("v", False, frozenset({"v"})),
    "none": PartitionIdentity("none", False),
}


@pytest.mark.parametrize(
    ("partitions", "key", "partial", "short"),
    [
        ("id full", ("id",), ("id",), ()),
        ("wide", ("id",), ("wide",), ()),
        ("v id full none", ("id",), ("v", "id"), ("v",)),
        ("id wide", ("id", "w"), ("id", "wide"), ("id",)),
        ("id", (), ("id",), ("id",)),
    ],
)
def test_what_old_tuples_may_lack(
    partitions: str, key: tuple[str, ...], partial: tuple[str, ...], short: tuple[str, ...]
) -> None:
    found = [IDENTITIES[name] for name in partitions.split()]
    wanted = OldTuples(frozenset(IDENTITIES[name].columns for name in partial), short)
    assert old_tuples(found, key) == wanted


@pytest.mark.parametrize(
    "partitions", ["", "full", "none", "full none"]
)  # without an identity PostgreSQL refuses UPDATE
def test_nothing_is_missing_where_all_partitions_are_full(partitions: str) -> None:
    assert old_tuples([IDENTITIES[name] for name in partitions.split()], ("id",)) is None


def test_a_null_is_known_where_the_row_has_other_columns_than_an_identity_that_is_not_full() -> None:
    one = table(FULL, old=OldTuples(frozenset({ID_ONLY}), ()))
    assert story(one, ("D", delete(old=["1", None, "5"])), ("D", delete(key=["1", None, None]))) == [
        ("d", row(1, None, 5), None, None, []),
        ("d", row(1, None, None), None, None, []),
    ]


UNKNOWN = OldTuples(frozenset({ID_ONLY}), (), is_sure=False)


def test_where_an_identity_may_have_been_another_each_null_is_marked() -> None:
    one = table(FULL, old=UNKNOWN)
    assert story(one, ("D", delete(old=["1", None, "5"]))) == [
        ("d", row(1, None, 5), None, {"before.v.not_logged": "true"}, [])
    ]


@pytest.mark.parametrize(
    ("kind", "message"),
    [("D", delete(key=[None, "a", "1"])), ("U", update(["1", "a", None], key=[None, "a", None]))],
)
def test_where_an_identity_may_have_been_another_an_old_row_without_the_key_halts(
    kind: str, message: bytes
) -> None:
    one = table(DEFAULT, old=UNKNOWN)
    assert story(one, ("U", update(["1", "a", None]))) == [("u", None, row(1, "a", None), None, [])]
    with pytest.raises(ReplicaIdentityIncomplete, match="as it was then"):
        one.encode((kind, message))
