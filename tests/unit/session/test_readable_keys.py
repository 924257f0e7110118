"""Of which tables an interrupted copy is continued while the stream sends values in binary format."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.model import Column, Relation, ReplicaIdentity
from cdcd.schema.policy import Policy
from cdcd.session.snapshot_copy import may_have_text
from cdcd.session.snapshot_handover import SnapshotHandover
from cdcd.snapshot.units import CopiedTable
from cdcd.source.key_index import KeyIndex, TableKeys

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


@pytest.mark.parametrize(("is_binary", "found"), [(False, (7,)), (True, ())])
def test_only_a_binary_stream_needs_the_text(is_binary: bool, found: tuple[int, ...]) -> None:
    """The attempt that has begun the copy may have had another format: `source.protocol.binary` was changed."""
    handover: Any = object.__new__(SnapshotHandover)
    catalog = SimpleNamespace(relation=lambda _relid: RELATION, keys=lambda _relid: keys_of("f"))
    handover._clients, handover._is_binary_stream = SimpleNamespace(catalog=catalog), is_binary
    handover._policies = SimpleNamespace(table=lambda _title: Policy())
    tables = [CopiedTable(7, "public", "t", (), None, is_partitioned=False)]
    assert handover._readable(tables) == found
