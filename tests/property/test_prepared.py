"""Prepared transactions over restarts at any point, against a server that sends what real ones were seen to send.

The model of the server: a record is sent when it does not begin below the session's start; a COMMIT PREPARED whose
PREPARE does comes without rows, unless that PREPARE is older than two_phase itself: then whole (F33, F34).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from cdcd.ack.group import Chunk, CommitPosition
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
    """One record of the WAL. `prepare_lsn` is that of the transaction which a decision is about."""

    lsn: int
    kind: str
    xid: int
    gid: str = ""
    prepare_lsn: int = 0


@st.composite
def wals(draw: st.DrawFn) -> list[Entry]:
    """Transactions, PREPAREs under few gids that are used again, and their decisions in any order."""
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
    """What a session that starts there is sent."""
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
    """A flow whose commit positions are known with the number of records before each."""

    def __init__(self, start_lsn: int, written_commit_lsn: int) -> None:
        self.durable: list[tuple[int, CommitPosition]] = []
        super().__init__(start_lsn=start_lsn, written_commit_lsn=written_commit_lsn)

    async def add(self, chunk: Chunk) -> None:
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
    """F4, F33: each session receives so many items, and so many of its commit positions become durable."""
    written: list[tuple[str, int, int]] = []
    at = CommitPosition(0, begun_at, 0)
    for items, durable in [*cuts, (10_000, 10_000)]:
        line = Line(at.end_lsn, at.commit_lsn)
        asyncio.run(line.pump.feed(sent(wal, at.end_lsn, begun_at)[:items]))
        kept = line.durable[:durable]
        ends = [at.end_lsn, *(commit_position.end_lsn for _, commit_position in line.durable)]
        assert ends == sorted(ends), "what may be confirmed moves back (F3)"
        if kept:
            count, at = kept[-1]
            written += line.changes()[:count]
    expected = [entry.lsn for entry in wal if entry.kind in ("plain", "commit") and entry.lsn >= begun_at]
    assert written == [("c", lsn, 1) for lsn in expected]
