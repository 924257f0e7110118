"""Of which tables an interrupted copy is continued while the stream sends values in binary format."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.model import Column, Relation, ReplicaIdentity
from cdcd.schema.policy import Policy
from cdcd.session.snapshot_copy import copied_table, may_have_text, with_continuation
from cdcd.session.snapshot_handover import SnapshotHandover
from cdcd.snapshot.units import CopiedTable
from cdcd.source.key_index import KeyIndex, TableKeys
from cdcd.source.publication_catalog import PublishedTable

COLUMNS = (Column("id", 23, -1, is_key=True), Column("f", 701, -1, is_key=False))
RELATION = Relation(7, "public", "t", ReplicaIdentity.DEFAULT, COLUMNS)


def keys_of(*columns: str) -> TableKeys:
    return TableKeys((KeyIndex(True, False, columns, True, None, True),))


@pytest.mark.parametrize(
    ("keys", "policy", "may"),
    [
        (keys_of("id"), Policy(), True),
        (keys_of("f"), Policy(), False),
        (keys_of("id", "f"), Policy(), False),
        (TableKeys(), Policy(key_columns=("id",)), True),
        (TableKeys(), Policy(key_columns=("f",)), False),
        (keys_of("gone"), Policy(), True),
    ],
)
def test_a_key_has_a_text_if_each_of_its_columns_has_one(keys: TableKeys, policy: Policy, may: bool) -> None:
    assert may_have_text(RELATION, keys, policy) is may


def obstacle(keys: TableKeys, *, is_binary: bool = False) -> str:
    """Return why an interrupted copy of the table is not continued."""
    handover: Any = object.__new__(SnapshotHandover)
    catalog = SimpleNamespace(relation=lambda _relid: RELATION, keys=lambda _relid: keys)
    handover._clients, handover._is_binary_stream = SimpleNamespace(catalog=catalog), is_binary
    handover._policies = SimpleNamespace(table=lambda _title: Policy())
    tables = [CopiedTable(7, "public", "t", (), None, is_partitioned=False)]
    return str(handover._obstacles(tables)[7])


def test_only_a_binary_stream_needs_the_text() -> None:
    """The attempt that has begun the copy may have had another format: `source.protocol.binary` was changed."""
    assert obstacle(keys_of("f")) == ""
    assert "binary" in obstacle(keys_of("f"), is_binary=True)


PRIMARY = KeyIndex(True, False, ("id",), True, None, is_total=True)


@pytest.mark.parametrize(
    ("index", "may"),
    [
        (PRIMARY, True),
        (replace(PRIMARY, is_total=False, has_nulls=True), False),  # NOT NULL .. NOT VALID, PostgreSQL 18
        (replace(PRIMARY, has_nulls=True), False),  # the same, NULLS NOT DISTINCT
        (replace(PRIMARY, flaw="index t_pkey is DEFERRABLE"), False),
    ],
)
def test_a_copy_continues_only_by_a_key_that_each_row_has(index: KeyIndex, may: bool) -> None:
    """Neither a new copy that is interrupted, nor one of an earlier version that recorded that it can continue."""
    keys = TableKeys((index,))
    assert (obstacle(keys) == "") is may
    table = PublishedTable(
        7, "public", "t", ("id", "f"), None, ReplicaIdentity.DEFAULT, keys,
        needs_identity=True, via_root=False, is_partitioned=False, has_row_security=False, publications=("p",),
    )  # fmt: skip
    copied = with_continuation(copied_table(table), RELATION, is_binary_stream=False)
    assert copied.can_continue is may
