"""F78: the row after a partition's Relation message shows which relid its rows have from then on.

The server describes the root, then the partition, then sends the row with the root's relid. It sends later rows of
the partition without another description.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdcd.model import Relation, RowBatch
from cdcd.pgoutput import messages as m
from cdcd.txn.assembler import Assembler
from cdcd.txn.events import RelationSeen
from tests.support.pgoutput_encode import row_batch_of

from . import wire
from .wire import segment

ROOT, LEAF, OTHER, LONE = 100, 101, 102, 103


def described(relid: int, published_as: int | None = None, *columns: str) -> Relation:
    return replace(wire.relation_model(*(columns or ("id",)), relid=relid), published_as=published_as)


def relation(relid: int, xid: int | None = None, *columns: str) -> wire.Control:
    return wire.relation(*(columns or ("id",)), relid=relid, xid=xid)


def row(relid: int, xid: int | None = None) -> RowBatch:
    return row_batch_of([(0x100, m.Insert(relid, m.TupleData((m.text(b"1"),)), xid=xid))], xid=xid)


@pytest.fixture
def assembler() -> Assembler:
    return Assembler(3, two_phase=True)


def last_of(seen: list[Relation]) -> dict[int, Relation]:
    return {one.relid: one for one in seen}


def test_a_row_of_another_relid_behind_a_description_shows_as_what_it_comes(assembler: Assembler) -> None:
    events = wire.feed(assembler, wire.begin(7, 0x300), relation(ROOT), relation(LEAF), row(ROOT))
    assert wire.relations(events) == [described(ROOT), described(LEAF), described(LEAF, ROOT)]
    assert isinstance(events[-2], RelationSeen)  # before the row is read
    # After a new description it still belongs to the root, until a row shows otherwise.
    again = wire.feed(assembler, relation(ROOT), relation(LEAF, None, "id", "v"), row(ROOT))
    assert wire.relations(again) == [described(ROOT), described(LEAF, ROOT, "id", "v")]
    detached = wire.feed(assembler, relation(LEAF), row(LEAF))
    assert wire.relations(detached) == [described(LEAF, ROOT), described(LEAF)]


def test_tables_that_are_described_for_a_truncate_are_nobodys_partitions(assembler: Assembler) -> None:
    events = wire.feed(
        assembler, wire.begin(7, 0x300), relation(ROOT), relation(LONE), wire.truncate(ROOT, LONE), row(ROOT)
    )
    assert wire.relations(events) == [described(ROOT), described(LONE)]


def test_a_row_that_follows_a_row_shows_nothing(assembler: Assembler) -> None:
    events = wire.feed(
        assembler, wire.begin(7, 0x300), relation(ROOT), row(ROOT), relation(LONE), row(LONE), row(ROOT)
    )
    assert wire.relations(events) == [described(ROOT), described(LONE)]


def test_a_stream_shows_it_too_also_by_rows_that_are_rolled_back(assembler: Assembler) -> None:
    """For the server the partition is described for the whole stream, even if the row after it is rolled back."""
    oldest_prepared = wire.feed(
        assembler,
        *segment(7, relation(ROOT, 7), relation(LEAF, 7), row(ROOT, 8), row(ROOT, 7)),
        wire.stream_abort(7, 8),
    )
    assert oldest_prepared == []
    replayed = wire.feed(assembler, wire.stream_commit(7, 0x500))
    assert wire.relations(replayed) == [described(ROOT), described(LEAF, ROOT)]
    assert len(wire.batches(replayed)) == 1


def test_a_stream_that_commits_tells_the_session(assembler: Assembler) -> None:
    wire.feed(assembler, *segment(7, relation(ROOT, 7), relation(LEAF, 7), row(ROOT, 7)))
    wire.feed(assembler, wire.stream_commit(7, 0x500))
    later = wire.feed(assembler, wire.begin(9, 0x600), relation(ROOT), relation(LEAF), row(ROOT))
    assert last_of(wire.relations(later))[LEAF] == described(LEAF, ROOT)


def test_a_replay_is_read_by_what_partitions_were_then_and_the_session_by_what_they_are(
    assembler: Assembler,
) -> None:
    """The description in the stream is older than the session's, which applies again after the replay."""
    wire.feed(assembler, *segment(7, relation(ROOT, 7), relation(LEAF, 7), row(ROOT, 7)))
    wire.feed(
        assembler,
        wire.begin(8, 0x300),
        relation(ROOT),
        relation(LEAF, None, "id", "v"),
        row(ROOT),
        wire.commit(0x300),
    )
    replayed = wire.relations(wire.feed(assembler, wire.stream_commit(7, 0x500)))
    assert replayed[1] == described(LEAF, ROOT)
    assert last_of(replayed)[LEAF] == described(LEAF, ROOT, "id", "v")


def test_what_is_prepared_keeps_its_partitions_of_then(assembler: Assembler) -> None:
    """The server does not describe a partition again; its identity may change before COMMIT PREPARED."""
    wire.feed(assembler, wire.begin(6, 0x100), relation(ROOT), relation(LEAF), row(ROOT), wire.commit(0x100))
    wire.feed(assembler, *wire.prepared(7, 0x200, row(ROOT)))
    wire.feed(
        assembler,
        wire.begin(8, 0x300),
        relation(ROOT),
        relation(LEAF, None, "id", "v"),
        row(ROOT),
        wire.commit(0x300),
    )
    replayed = wire.relations(wire.feed(assembler, wire.commit_prepared(7, 0x500)))
    assert replayed[0] == described(LEAF, ROOT)
    assert last_of(replayed)[LEAF] == described(LEAF, ROOT, "id", "v")


def test_what_is_prepared_tells_the_session_at_once(assembler: Assembler) -> None:
    """The server does not repeat a description that it sent between Begin Prepare and Prepare (F33)."""
    events = wire.feed(assembler, *wire.prepared(7, 0x200, relation(ROOT), relation(LEAF), row(ROOT)))
    assert last_of(wire.relations(events))[LEAF] == described(LEAF, ROOT)
    replayed = wire.feed(assembler, wire.commit_prepared(7, 0x500))
    assert last_of(wire.relations(replayed))[LEAF] == described(LEAF, ROOT)
