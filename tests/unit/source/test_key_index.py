"""Which unique index gives a table's key, and which of its columns PostgreSQL keeps unique (F45, F82)."""

from __future__ import annotations

import pytest

from cdcd.model import ReplicaIdentity
from cdcd.source.key_index import KeyIndex, TableKeys

PRIMARY = KeyIndex(True, False, ("id",), True, None, True)
NAMED = KeyIndex(False, True, ("b", "a"), True, None, True)
LOOSE = KeyIndex(True, False, ("x",), False, "index t_pkey is DEFERRABLE", True)
PARTIAL = KeyIndex(False, False, ("y",), True, None, False)


@pytest.mark.parametrize(
    ("identity", "indexes", "expected"),
    [
        (ReplicaIdentity.DEFAULT, (NAMED, PRIMARY), PRIMARY),
        (ReplicaIdentity.FULL, (NAMED, PRIMARY), PRIMARY),
        (ReplicaIdentity.INDEX, (PRIMARY, NAMED), NAMED),
        (ReplicaIdentity.NOTHING, (PRIMARY, NAMED), None),
        (ReplicaIdentity.FULL, (PARTIAL, NAMED), None),
        (ReplicaIdentity.INDEX, (PRIMARY,), None),
        (ReplicaIdentity.FULL, (LOOSE,), LOOSE),
        (ReplicaIdentity.DEFAULT, (), None),
    ],
)
def test_the_index_of_an_identity(
    identity: ReplicaIdentity, indexes: tuple[KeyIndex, ...], expected: KeyIndex | None
) -> None:
    assert TableKeys(indexes).of(identity) is expected


@pytest.mark.parametrize(
    ("columns", "is_unique"),
    [
        (("id",), True),
        (("v", "id"), True),
        (("a", "b"), True),
        (("a",), False),
        (("x",), False),
        (("y",), False),
        ((), False),
    ],
)
def test_columns_are_unique_when_they_have_all_of_an_index(columns: tuple[str, ...], is_unique: bool) -> None:
    assert TableKeys((PRIMARY, NAMED, LOOSE, PARTIAL)).is_unique(columns) is is_unique
    assert not TableKeys().is_unique(columns)
