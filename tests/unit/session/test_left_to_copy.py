"""What a start has left to copy of an interrupted snapshot, as its checks know it."""

from __future__ import annotations

import re
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.model import CopyState
from cdcd.recovery.start_decision import CopyLeft, Snapshot
from cdcd.session.start_checks import position, standby
from cdcd.snapshot.selection import CopyRule, Selection
from cdcd.snapshot.units import CopiedTable

OUT = CopyRule(re.compile(r"public\.out"), include=False)
NAMES = {1: "pending", 2: "given_up", 3: "excluded", 4: "out"}


@pytest.mark.parametrize(
    ("state", "left"),
    [
        (CopyState(pending=(1,)), {1}),
        (CopyState(partial=(2, 4)), {2}),
        (CopyState(excluded=(3, 4)), {3}),
        (CopyState(pending=(1,), partial=(2,), excluded=(3,)), {1, 2, 3}),
        (CopyState(partial=(4, 5)), set()),
    ],
)
def test_tables_that_are_included_again_are_left_to_copy(
    state: CopyState, left: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were excluded or given up; the start copies them as it does the others."""

    def published(_source: object, relids: Collection[int]) -> list[CopiedTable]:
        named = (relid for relid in relids if relid in NAMES)
        return [CopiedTable(relid, "public", NAMES[relid], (), None, is_partitioned=False) for relid in named]

    monkeypatch.setattr(position, "tables_to_continue", published)
    snapshot = SimpleNamespace(selection=lambda: Selection((OUT,)), copies_tables=True)
    known: Any = SimpleNamespace(config=SimpleNamespace(snapshot=snapshot), source=None)
    known.verdict = Snapshot(False, (), left=CopyLeft(state, 1, 0))
    known.left = position.left_to_copy(known, known.verdict)
    assert known.left == left
    assert standby.would_copy(known) == bool(left)
    decision: Any = SimpleNamespace(verdict=known.verdict, halt=None, new_snapshot=None)
    text = f"copies the {len(left)} tables" if left else "the snapshot is complete"
    assert position._start_summary(decision, known).startswith(text)


def test_a_start_copies_while_nothing_is_known_or_all_is_left() -> None:
    unknown: Any = SimpleNamespace(verdict=None, left=frozenset())
    anew: Any = SimpleNamespace(verdict=Snapshot(False, ()), left=frozenset())
    assert standby.would_copy(unknown)
    assert standby.would_copy(anew)
