"""The key of a relation's records: the change's identity first, the topic's own key before today's catalog."""

from __future__ import annotations

import pytest

from cdcd.errors import KeyChanged, Retry
from cdcd.model import Column, Relation, ReplicaIdentity
from cdcd.schema.keys import key_of, registered_columns

DEFAULT, INDEX = ReplicaIdentity.DEFAULT, ReplicaIdentity.INDEX
FULL, NOTHING = ReplicaIdentity.FULL, ReplicaIdentity.NOTHING


def relation(identity: ReplicaIdentity, flagged: tuple[str, ...] = ("a", "b")) -> Relation:
    columns = tuple(Column(name, 23, -1, identity is FULL or name in flagged) for name in ("a", "b", "c"))
    return Relation(1, "s", "t", identity, columns)


@pytest.mark.parametrize(
    ("identity", "catalog", "registered", "expected"),
    [
        # the flags are the change's own; the catalog gives the order
        (DEFAULT, None, None, ("a", "b")),
        (DEFAULT, (), None, ("a", "b")),
        (DEFAULT, ("b", "a"), None, ("b", "a")),
        (DEFAULT, ("c",), None, ("a", "b")),
        (INDEX, ("b", "a"), None, ("b", "a")),
        # FULL flags every column, so the catalog says which; a key that is partly unpublished is none
        (FULL, None, None, ()),
        (FULL, (), None, ()),
        (FULL, ("c",), None, ("c",)),
        (FULL, ("c", "unpublished"), None, ()),
        (NOTHING, ("a", "b"), None, ()),
        # a part of a key is none: rows that differ in the rest would share it
        (DEFAULT, ("a", "b", "unpublished"), None, ()),
        (DEFAULT, ("a", "b", "c"), None, ("a", "b")),  # all of it is sent: the key has grown since (F44)
        (DEFAULT, ("a", "b", "later"), ("b", "a"), ("b", "a")),
        # F44: the table, its key or the key's order is gone since; the topic's own key stands
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
    """F45: rows written before and after would not share a key."""
    with pytest.raises(KeyChanged) as caught:
        key_of(relation(identity, flagged), catalog, registered)
    assert caught.value.retry is Retry.OPERATOR
    assert caught.value.context == {"table": "s.t"}


def test_the_columns_of_a_registered_key_have_their_names_in_postgresql() -> None:
    schema = {"fields": [{"name": "order_u0020id", "pg.name": "order id"}, {"name": "line"}]}
    assert registered_columns(schema) == ("order id", "line")
