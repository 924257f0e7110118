"""Prepared transactions with restarts at any point, against a model of a server that real servers were compared to.

The model: the server sends a record that begins at or after the session's start. It sends a COMMIT PREPARED without
rows if its PREPARE is before that start, but with all rows if the PREPARE is older than two_phase (F33, F34).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from cdcd.ack.group import CommitPosition, RecordChunk
from cdcd.model import Item
from tests.unit.pipeline.session_items import (
    LENGTH,
    Flow,
    begin,
    commit,
    commit_prepared,
    inserts,
    keepalive,
    prepared,
    relation,
    rollback_prepared,
)

STEP = 10
GIDS = "abc"


@dataclass(frozen=True)
class Entry:
    """One record of the WAL. `prepare_lsn`: of a COMMIT PREPARED or ROLLBACK PREPARED, the LSN of its PREPARE."""

    lsn: int
    kind: str
    xid: int
    gid: str = ""
    prepare_lsn: int = 0


@st.composite
def wals(draw: st.DrawFn) -> list[Entry]:
    """Transactions, PREPAREs under a few reused gids, and their COMMIT or ROLLBACK PREPARED in any order."""
    entries: list[Entry] = []
    undecided: dict[str, Entry] = {}
    for at, (kind, gid) in enumerate(
        draw(
            st.lists(
                st.tuples(st.sampled_from(["plain", "prepare", "commit", "rollback"]), st.sampled_from(GIDS)),
                max_size=25,
            )
        )
    ):
        lsn = (at + 1) * STEP
        if kind == "plain":
            entries.append(Entry(lsn, kind, at + 1))
        elif kind == "prepare" and gid not in undecided:
            undecided[gid] = Entry(lsn, kind, at + 1, gid, lsn)
            entries.append(undecided[gid])
        elif kind in ("commit", "rollback") and gid in undecided:
            before = undecided.pop(gid)
            entries.append(Entry(lsn, kind, before.xid, gid, before.lsn))
    return entries


def sent(wal: list[Entry], start_lsn: int, two_phase_at_lsn: int) -> list[Item]:
    """Return the items that the server sends to a session that starts at `start_lsn`."""
    items: list[Item] = []
    is_described = False
    for entry in (entry for entry in wal if entry.lsn >= start_lsn):
        rows: list[Item] = [inserts("r")] if is_described else [relation(), inserts("r")]
        whole = prepared(entry.xid, entry.prepare_lsn, *rows, gid=entry.gid)
        is_late = entry.prepare_lsn < two_phase_at_lsn
        if entry.kind == "plain":
            items += [begin(entry.lsn, entry.xid), *rows, commit(entry.lsn)]
        elif entry.kind == "prepare":
            items += [] if is_late else whole
        elif entry.kind == "commit":
            items += [*whole, keepalive(entry.lsn)] if is_late else []
            items.append(commit_prepared(entry.xid, entry.lsn, entry.gid))
        else:
            items.append(rollback_prepared(entry.xid, entry.prepare_lsn, entry.lsn, entry.gid))
        is_described = is_described or rows[-1] in items
        items.append(keepalive(entry.lsn + LENGTH))
    return items


class Line(Flow):
    """A flow that records each commit position with the number of records before it."""

    def __init__(self, start_lsn: int, written_commit_lsn: int) -> None:
        self.durable: list[tuple[int, CommitPosition]] = []
        super().__init__(start_lsn=start_lsn, written_commit_lsn=written_commit_lsn)

    async def add(self, chunk: RecordChunk) -> None:
        await super().add(chunk)
        if chunk.commit_position is not None:
            self.durable.append((len(self.changes()), chunk.commit_position))

    def idle(self, commit_position: CommitPosition, *, is_urgent: bool) -> None:
        super().idle(commit_position, is_urgent=is_urgent)
        self.durable.append((len(self.changes()), commit_position))


@settings(deadline=None, max_examples=300)
@given(
    wal=wals(),
    begun_at=st.integers(0, 120),
    cuts=st.lists(st.tuples(st.integers(0, 80), st.integers(0, 40)), max_size=5),
)
def test_each_commit_is_written_once_in_its_order(
    wal: list[Entry], begun_at: int, cuts: list[tuple[int, int]]
) -> None:
    """F4, F33: `cuts` says how many items each session receives, and how many commit positions become durable."""
    written: list[tuple[str, int, int]] = []
    at = CommitPosition(0, begun_at, 0)
    for items, durable in [*cuts, (10_000, 10_000)]:
        line = Line(at.end_lsn, at.commit_lsn)
        asyncio.run(line.pump.feed(sent(wal, at.end_lsn, begun_at)[:items]))
        stored = line.durable[:durable]
        ends = [at.end_lsn, *(commit_position.end_lsn for _, commit_position in line.durable)]
        assert ends == sorted(ends), "the position to confirm moves back (F3)"
        if stored:
            count, at = stored[-1]
            written += line.changes()[:count]
    expected = [entry.lsn for entry in wal if entry.kind in ("plain", "commit") and entry.lsn >= begun_at]
    assert written == [("c", lsn, 1) for lsn in expected]
