"""The effect of a table's new file on its copy: a table of cases (F81). Real files: test_snapshot_copy.py."""

from __future__ import annotations

from itertools import product

import pytest

from cdcd.snapshot.replaced_files import Fate, ReplacedFile, fate_of

SAME = ReplacedFile(7, is_own=True, is_empty=False, may_be_anothers=False, sees_rows=True)
EMPTY = ReplacedFile(7, is_own=True, is_empty=True, may_be_anothers=False, sees_rows=False)
SWAPPED = ReplacedFile(7, is_own=True, is_empty=False, may_be_anothers=False, sees_rows=False)


@pytest.mark.parametrize(
    ("files", "fate"),
    [
        ([], Fate.SAME),
        ([SAME], Fate.SAME),
        ([EMPTY], Fate.EMPTIED),
        ([SWAPPED], Fate.STALE),
        ([SAME._replace(may_be_anothers=True)], Fate.STALE),
        ([SAME._replace(is_own=False)], Fate.STALE),
        ([EMPTY._replace(is_own=False, may_be_anothers=True)], Fate.EMPTIED),
        # one partition decides for the table
        ([SAME, EMPTY], Fate.EMPTIED),
        ([SAME, EMPTY, SWAPPED], Fate.STALE),
        ([SWAPPED, EMPTY, SAME], Fate.STALE),
    ],
)
def test_the_fate_of_a_table(files: list[ReplacedFile], fate: Fate) -> None:
    assert fate_of(files) is fate


def test_whatever_is_not_proven_is_stale() -> None:
    for is_own, is_empty, may_be_anothers, sees_rows in product((False, True), repeat=4):
        fate = fate_of([ReplacedFile(7, is_own, is_empty, may_be_anothers, sees_rows)])
        is_proven = is_empty or (is_own and sees_rows and not may_be_anothers)
        assert (fate is not Fate.STALE) == is_proven


def test_a_snapshot_of_a_standby_proves_nothing_for_a_file_with_rows() -> None:
    """VACUUM FULL on the primary omits rows that only the standby's snapshot sees."""
    assert fate_of([], is_standby=True) is Fate.SAME
    assert fate_of([EMPTY], is_standby=True) is Fate.EMPTIED
    for files in ([SAME], [SAME, EMPTY], [SWAPPED]):
        assert fate_of(files, is_standby=True) is Fate.STALE
