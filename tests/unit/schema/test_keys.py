"""The key of a relation's records: first the change's replica identity, then the topic's key, then the catalog."""

from __future__ import annotations

from typing import Any

import pytest

from cdcd.errors import KeyChanged, Retry, SchemaError
from cdcd.model import Column, PgType, Relation, ReplicaIdentity
from cdcd.schema.keys import is_required, key_of, nullable_columns, registered_columns, required_columns
from cdcd.schema.policy import Policies, Policy
from cdcd.schema.relation_schema import relation_schemas

DEFAULT, INDEX = ReplicaIdentity.DEFAULT, ReplicaIdentity.INDEX
FULL, NOTHING = ReplicaIdentity.FULL, ReplicaIdentity.NOTHING


def relation(identity: ReplicaIdentity, flagged: tuple[str, ...] = ("a", "b")) -> Relation:
    columns = tuple(Column(name, 23, -1, identity is FULL or name in flagged) for name in ("a", "b", "c"))
    return Relation(1, "s", "t", identity, columns)


@pytest.mark.parametrize(
    ("identity", "catalog", "registered", "expected"),
    [
        # the key flags come from the change, their order from the catalog
        (DEFAULT, None, None, ("a", "b")),
        (DEFAULT, (), None, ("a", "b")),
        (DEFAULT, ("b", "a"), None, ("b", "a")),
        (DEFAULT, ("c",), None, ("a", "b")),
        (INDEX, ("b", "a"), None, ("b", "a")),
        # FULL flags every column, so the catalog has the key; a partly unpublished key is not used
        (FULL, None, None, ()),
        (FULL, (), None, ()),
        (FULL, ("c",), None, ("c",)),
        (FULL, ("c", "unpublished"), None, ()),
        (NOTHING, ("a", "b"), None, ()),
        # a part of a key is not a key: rows that differ in the rest would share it
        (DEFAULT, ("a", "b", "unpublished"), None, ()),
        (
            DEFAULT,
            ("a", "b", "c"),
            None,
            ("a", "b"),
        ),  # all flagged columns are sent: the key has grown since (F44)
        (DEFAULT, ("a", "b", "later"), ("b", "a"), ("b", "a")),
        # F44: the table, its key or the key's order has changed since; the topic's own key applies
        (DEFAULT, None, ("b", "a"), ("b", "a")),
        (DEFAULT, ("a", "b"), ("b", "a"), ("b", "a")),
        (DEFAULT, ("c",), ("b", "a"), ("b", "a")),
        (FULL, None, ("c", "a"), ("c", "a")),
        (FULL, ("a", "c"), ("c", "a"), ("c", "a")),
    ],
)
def test_the_key(
    identity: ReplicaIdentity,
    catalog: tuple[str, ...] | None,
    registered: tuple[str, ...] | None,
    expected: tuple[str, ...],
) -> None:
    assert key_of(relation(identity), catalog, registered) == expected


@pytest.mark.parametrize(
    ("identity", "flagged", "shared", "policy", "expected"),
    [
        # F82: PostgreSQL flags the key, but rows may share it until the end of a statement; nor is a part of it a key
        (DEFAULT, ("a", "b"), ("b", "a"), Policy(), ()),
        (DEFAULT, ("a",), ("a", "unpublished"), Policy(), ()),
        (INDEX, ("a",), ("a",), Policy(), ()),
        (FULL, (), ("a",), Policy(), ()),
        (FULL, (), ("a",), Policy(key_columns=("a",)), ("a",)),  # configured explicitly
        (FULL, (), ("a",), Policy(keyless="row"), ("a", "b", "c")),
        (DEFAULT, ("a", "b"), ("c",), Policy(), ("a", "b")),  # the key was different at that time (F44)
        (DEFAULT, ("a", "b"), ("a",), Policy(), ("a", "b")),
    ],
)
def test_what_rows_may_share_for_a_moment_is_no_key(
    identity: ReplicaIdentity,
    flagged: tuple[str, ...],
    shared: tuple[str, ...],
    policy: Policy,
    expected: tuple[str, ...],
) -> None:
    assert key_of(relation(identity, flagged), (), None, policy, shared=shared) == expected


def test_a_topic_with_a_key_that_rows_may_share_halts_with_what_to_do() -> None:
    for identity in (DEFAULT, FULL):
        with pytest.raises(KeyChanged) as caught:
            key_of(relation(identity, ("a",)), (), ("a",), shared=("a",))
        assert "NOT DEFERRABLE" in caught.value.advice
    chosen = Policy(key_columns=("a",))
    assert key_of(relation(FULL), (), ("a",), chosen, shared=("a",)) == ("a",)


@pytest.mark.parametrize(
    ("identity", "flagged", "catalog", "registered"),
    [
        (DEFAULT, ("a",), ("a",), ("a", "b")),
        (DEFAULT, (), (), ("a",)),
        (FULL, (), (), ("a",)),
        (FULL, (), ("b",), ("a",)),
        (FULL, (), ("a", "unpublished"), ("a",)),
        (FULL, (), None, ("gone",)),
        (NOTHING, (), ("a",), ("a",)),
    ],
)
def test_another_key_than_the_topics_halts(
    identity: ReplicaIdentity,
    flagged: tuple[str, ...],
    catalog: tuple[str, ...] | None,
    registered: tuple[str, ...],
) -> None:
    """F45: records of a row before and after the change would have different keys."""
    with pytest.raises(KeyChanged) as caught:
        key_of(relation(identity, flagged), catalog, registered)
    assert caught.value.retry is Retry.OPERATOR
    assert caught.value.context == {"table": "s.t"}


def test_the_columns_of_a_registered_key_have_their_names_in_postgresql() -> None:
    schema = {
        "fields": [
            {"name": "order_u0020id", "type": "int", "pg.name": "order id"},
            {"name": "line", "type": "int"},
        ]
    }
    assert registered_columns(schema) == ("order id", "line")
    assert registered_columns(None) is None


CHOSEN, ROW = Policy(key_columns=("c", "a")), Policy(keyless="row")


@pytest.mark.parametrize(
    ("identity", "catalog", "registered", "policy", "expected"),
    [
        (FULL, (), None, CHOSEN, ("c", "a")),
        (FULL, None, None, CHOSEN, ("c", "a")),
        (FULL, ("b",), None, CHOSEN, ("b",)),  # a primary key takes precedence over the configured key
        (FULL, (), ("a", "c"), CHOSEN, ("a", "c")),  # the order of the topic's key
        (FULL, (), None, ROW, ("a", "b", "c")),
        (DEFAULT, ("b", "a"), None, CHOSEN, ("b", "a")),
        (NOTHING, (), None, CHOSEN, ("c", "a")),
        (NOTHING, (), None, ROW, ()),
    ],
)
def test_the_key_of_a_table_that_the_database_gives_none(
    identity: ReplicaIdentity,
    catalog: tuple[str, ...] | None,
    registered: tuple[str, ...] | None,
    policy: Policy,
    expected: tuple[str, ...],
) -> None:
    assert key_of(relation(identity), catalog, registered, policy) == expected


def test_a_configured_key_that_is_not_the_topics_halts() -> None:
    with pytest.raises(KeyChanged):
        key_of(relation(FULL), (), ("a",), CHOSEN)


@pytest.mark.parametrize(
    ("catalog", "registered"),
    [
        ((), ("a", "b")),  # ADD COLUMN
        ((), ("a", "b", "c", "d")),  # DROP COLUMN
        ((), ("a", "b", "d")),  # RENAME COLUMN
        (("a",), ("a", "b", "c")),  # ADD PRIMARY KEY
    ],
)
def test_another_key_than_the_whole_row_of_the_topics_key_halts(
    catalog: tuple[str, ...], registered: tuple[str, ...]
) -> None:
    """F45: the earlier record of a row would remain the last one of its key, although the row is deleted."""
    with pytest.raises(KeyChanged):
        key_of(relation(FULL), catalog, registered, ROW)
    assert key_of(relation(FULL), (), ("c", "a", "b"), ROW) == ("c", "a", "b")


def test_a_configured_key_that_is_not_published_is_refused() -> None:
    with pytest.raises(SchemaError, match="does not publish: d") as caught:
        key_of(relation(FULL), (), None, Policy(key_columns=("a", "d")))
    assert caught.value.context["table"] == "s.t"


def test_a_key_that_the_database_does_not_guard_may_hold_nulls() -> None:
    required, optional = {"fields": [{"type": "int"}]}, {"fields": [{"type": ["null", "int"]}]}
    assert is_required(relation(DEFAULT), ("a",), None)
    assert is_required(relation(FULL), ("a",), None)
    assert not is_required(relation(FULL), (), None)
    assert not is_required(relation(FULL), None, None)
    # the topic's form stays: another form gives other bytes for the same key
    assert is_required(relation(FULL), (), required)
    assert not is_required(relation(FULL), ("a",), optional)


def test_the_first_key_of_a_full_table_may_hold_the_nulls_of_rows_before_it() -> None:
    """F44: their description does not show that they had no key."""
    assert not is_required(relation(FULL), ("a",), None, nullable={"a"})
    assert is_required(relation(FULL), ("a",), None, nullable=())
    assert is_required(relation(DEFAULT, ("a",)), ("a",), None, nullable={"a"})
    assert is_required(relation(FULL), ("a",), {"fields": [{"type": "int"}]}, nullable={"a"})


def test_a_row_from_before_the_first_key_is_read_again_without_one() -> None:
    """F44 and F45: the topic's value schema shows that the table once had no key; a dropped key still halts."""
    keyless = relation(DEFAULT, ())
    assert key_of(keyless, ("b", "a"), ("a", "b"), nullable={"a", "b", "c"}) == ()
    for catalog, nullable in (
        ((), {"a", "b"}),
        (None, {"a", "b"}),
        (("a",), {"a", "b"}),
        (("a", "b"), {"a"}),
        (("a", "b"), set()),
    ):
        with pytest.raises(KeyChanged):
            key_of(keyless, catalog, ("a", "b"), nullable=nullable)
    with pytest.raises(KeyChanged):
        key_of(relation(DEFAULT, ("c",)), ("a", "b"), ("a", "b"), nullable={"a", "b"})


@pytest.mark.parametrize("is_flat", [False, True])
def test_nullable_columns_of_a_topics_values_stay_nullable(is_flat: bool) -> None:
    """A first key leaves the value schema unchanged, so that the readers of the topic can continue."""
    policies = Policies(default=Policy(value="flat" if is_flat else "envelope"))
    columns = tuple(Column(name, 23, -1, False) for name in ("before", "pg.name", "c"))
    before = Relation(1, "s", "t", DEFAULT, columns)
    types = {23: PgType(23, "pg_catalog", "int4", "b")}
    was = relation_schemas(before, types, (), "shop", policies).value
    assert nullable_columns(was) == {"before", "pg.name", "c"}
    keyed = relation_schemas(before, types, ("c",), "shop", policies, nullable=nullable_columns(was))
    assert keyed.value == was
    assert keyed.key is not None
    assert keyed.key["fields"][0]["type"] == "int"
    fresh = relation_schemas(before, types, ("c",), "shop", policies)
    assert nullable_columns(fresh.value) == {"before", "pg.name"}
    assert nullable_columns(None) == frozenset()
    assert required_columns(fresh.value) == {"c"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": ["null", "string"]},
        {"type": "enum", "name": "E", "symbols": ["A"]},
        {"type": "record", "name": "X", "fields": [{"name": "before", "type": "string"}]},
        {"type": "record", "name": "X", "fields": [{"name": "before", "type": ["null", "string"]}]},
        {
            "type": "record",
            "name": "X",
            "fields": [{"name": "before", "type": {"type": "map", "values": "int"}}],
        },
    ],
)
def test_a_value_schema_of_another_has_no_columns(schema: dict[str, Any]) -> None:
    assert nullable_columns(schema) == required_columns(schema) == frozenset()
