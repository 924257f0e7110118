"""The state of the copies at each position, and what of the stream is noted for them."""

from __future__ import annotations

import random

from cdcd.model import CopyState, RowBatch, TableCopyState
from cdcd.pipeline.table_copies import TableCopies, WatchedTable
from cdcd.snapshot.table_copy import ChunkPosition
from cdcd.snapshot.visibility import Snapshot
from tests.support.some_rows import Table, frame

COPY = CopyState(pending=(), floors={1: 500, 2: 600}, point_lsn=600)


def test_the_progress_record_has_the_floors_until_they_are_passed() -> None:
    copies = TableCopies(COPY)
    assert copies.state_at(499) is COPY
    assert copies.state_at(500) == CopyState((), {2: 600}, 600)
    assert copies.state_at(600) == CopyState((), {}, 600)
    assert copies.state_at(601) is None
    assert copies.state_at(601) is None


def test_the_point_of_copied_rows_is_in_the_record_until_it_is_passed() -> None:
    """A server whose WAL ends before it is behind (F62); further rows at the same point continue the numbers."""
    copies = TableCopies(CopyState((), {}, 600, tx_seq=7))
    assert copies.next_position(600) == ChunkPosition(599, 7)
    assert copies.next_position(601) == ChunkPosition(600, 0)
    assert copies.state_at(600) == CopyState((), {}, 600, tx_seq=7)
    assert copies.state_at(601) is None
    assert copies.next_position(601) == ChunkPosition(600, 0)


def test_a_position_is_the_same_object_until_something_has_changed() -> None:
    copies = TableCopies()
    assert copies.state_at(5) is None
    copies.begin(7, TableCopyState("topic"))
    state = copies.state_at(5)
    assert state == CopyState(tables={7: TableCopyState("topic")})
    assert copies.state_at(6) is state
    copies.pause(7, is_paused=True)
    assert copies.state_at(6) == CopyState(tables={7: TableCopyState("topic", is_paused=True)})
    copies.emitted(900, 3)
    copies.end(7)
    assert copies.state_at(6) == CopyState(point_lsn=900, tx_seq=3)
    assert not copies.is_watching
    assert copies.state_at(901) is None


def test_signals_that_were_read_are_never_forgotten() -> None:
    copies = TableCopies()
    copies.read_signals(4)
    assert copies.state_at(1 << 40) == CopyState(signals_at=4)
    assert TableCopies(CopyState(signals_at=4)).signals_at == 4


def test_the_signals_of_a_topic_that_was_created_again_are_counted_from_its_offsets() -> None:
    copies = TableCopies(CopyState(signals_at=100))
    copies.read_signals(4)
    assert copies.state_at(1 << 40) == CopyState(signals_at=4)


def test_a_table_of_which_a_part_was_copied_is_remembered_until_all_of_it_is() -> None:
    """The rest of the state is forgotten: a later server's WAL may end before the point of these rows."""
    copies = TableCopies(CopyState(point_lsn=600, tx_seq=7))
    copies.note_coverage(7, is_whole=False)
    copies.note_coverage(8, is_whole=False)
    assert copies.state_at(600) == CopyState(point_lsn=600, tx_seq=7, partial=(7, 8))
    state = copies.state_at(601)
    assert state == CopyState(partial=(7, 8))
    assert copies.state_at(602) is state
    copies.note_coverage(7, is_whole=True)
    assert copies.state_at(603) == CopyState(partial=(8,))
    copies.note_coverage(8, is_whole=True)
    assert copies.state_at(603) is None


def test_tables_that_join_lack_rows_until_they_are_copied_and_others_are_forgotten_when_they_leave() -> None:
    copies = TableCopies(CopyState(partial=(7, 8)))
    assert copies.partial == {7, 8}
    copies.note_uncopied([9, 8], published=[8, 9, 10])
    assert copies.state_at(600) == CopyState(partial=(8, 9))
    copies.note_coverage(9, is_whole=True)
    copies.note_uncopied([], published=[8])
    assert copies.state_at(600) == CopyState(partial=(8,))


def test_a_chunk_with_another_key_than_the_stream_has_noted_begins_the_copy_again() -> None:
    """The key was changed, and the table does not change any more: the next chunk is not refused for ever."""
    table = WatchedTable(TableCopyState("topic", after=("5",)))
    table.copy.changed.refuse_until_visible(())
    table.note_key_header(b"old")
    table.copy.note(12, [b"old5"])
    assert not table.has_key_header(b"new")
    assert table.copy.state.after is None
    assert table.has_key_header(b"new")
    assert not table.copy.may_read(Snapshot.parse("12:90:12"))
    assert table.copy.may_read(Snapshot.parse("90:90:"))


def test_a_table_that_has_lost_its_key_does_not_stop_the_stream() -> None:
    """The progress record has no key to read again for it; no chunk is emitted beside the change."""
    chance = random.Random(1)
    table = next(one for one in iter(lambda: Table(chance), None) if one.cells and not one.is_keyed)
    copies = TableCopies(CopyState(tables={7: TableCopyState("topic", after=("5",))}))
    rows = [frame(table.message(chance, None)) for _ in range(50)]
    copies.note_rows(12, RowBatch(b"".join(rows), len(rows), None), {7: table.plan})
    assert copies.tables[7].copy.state == TableCopyState("topic")
    copies.tables[7].copy.changed.refuse_until_visible(())
    assert not copies.tables[7].copy.may_read(Snapshot.parse("12:90:12"))


def test_a_transaction_concerns_only_the_trackers_that_wait_for_one() -> None:
    """With 1,000 copied tables each transaction would otherwise cost 0.1 ms."""
    copies = TableCopies(CopyState(tables={relid: TableCopyState(str(relid)) for relid in (7, 8, 9)}))
    trackers = {relid: table.copy.changed for relid, table in copies.tables.items()}
    trackers[7].refuse_until_visible({12, 13})
    trackers[8].refuse_until_visible({12})
    trackers[9].refuse_until_visible(())
    assert copies._settling == {trackers[7], trackers[8]}
    copies.committed(12)
    assert copies._settling == {trackers[7]}
    earlier = Snapshot.parse("12:13:12")
    assert trackers[8].may_use(earlier)
    assert not trackers[7].may_use(earlier)
    copies.begin(7, TableCopyState("7"))
    assert not copies._settling, "the tracker of a copy that has ended is not retained"
