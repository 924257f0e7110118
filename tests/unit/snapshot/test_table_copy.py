"""The order of the chunks of one table. tests/property/test_incremental_snapshot.py has every interleaving."""

from __future__ import annotations

from cdcd.model import Record, TableCopyState
from cdcd.snapshot.changed_keys import ChangedKeys
from cdcd.snapshot.table_copy import (
    ChunkPosition,
    KeysChunk,
    RangeChunk,
    TableCopy,
    chunk_position,
)
from cdcd.snapshot.visibility import Snapshot

SEES_ALL = Snapshot.parse("90:90:")
SEES_NOT_12 = Snapshot.parse("12:90:12")


def copy_of(state: TableCopyState | None = None, max_keys: int = 10) -> TableCopy:
    changed = ChangedKeys(1 << 20)
    changed.refuse_until_visible(())
    return TableCopy(state or TableCopyState(), changed, max_keys=max_keys, keys_per_chunk=2)


def row(key: bytes) -> Record:
    return Record("topic", 0, key, b"row")


def test_ranges_are_read_to_the_last_and_then_the_incomplete_rows() -> None:
    copy = copy_of()
    assert (first := copy.next_chunk()) == RangeChunk(None)
    copy.note(12, [b"3"], {b"3": ("3",)})
    assert copy.emit(first, SEES_NOT_12, [row(b"1"), row(b"3")], ("3",)) == [row(b"1")]
    assert (second := copy.next_chunk()) == RangeChunk(("3",))
    assert copy.emit(second, SEES_NOT_12, [row(b"4")], None) == [row(b"4")]
    assert copy.state == TableCopyState(after=("3",), is_scanned=True, read_again={b"3": ("3",)})
    assert (again := copy.next_chunk()) == KeysChunk({b"3": ("3",)})
    assert copy.emit(again, SEES_NOT_12, [row(b"3")], None) == []
    assert not copy.state.is_complete
    assert (again := copy.next_chunk()) == KeysChunk({b"3": ("3",)})
    assert copy.emit(again, SEES_ALL, [row(b"3")], None) == [row(b"3")]
    assert copy.next_chunk() is None
    assert copy.state.is_complete


def test_a_refused_chunk_changes_nothing() -> None:
    copy = copy_of()
    copy.changed.note_untracked(12)
    assert not copy.may_read(SEES_NOT_12)
    chunk = copy.next_chunk()
    assert chunk is not None
    assert copy.emit(chunk, SEES_NOT_12, [row(b"1")], ("1",)) is None
    assert copy.state == TableCopyState()
    assert copy.may_read(SEES_ALL)


def test_a_row_that_leaves_the_unread_part_incompletely_is_read_by_its_new_key() -> None:
    """F46: the old row was not copied, so no reader has its unchanged values."""
    copy = copy_of(TableCopyState(after=("5",)))
    copy.note(12, [b"9", b"2"], {b"2": ("2",)}, {b"2": b"9"})
    copy.note(12, [b"4"], {b"4": ("4",)})
    assert copy.state.read_again == {b"2": ("2",)}


def test_in_a_copy_by_blocks_each_update_may_move_a_row() -> None:
    copy = copy_of(TableCopyState(after=("5",), is_by_blocks=True))
    copy.note(12, [b"4"], {b"4": ("4",)})
    assert copy.state.read_again == {b"4": ("4",)}


def test_after_the_last_range_only_rows_that_readers_lack_are_followed() -> None:
    """The copy ends also if keys change all the time."""
    copy = copy_of(TableCopyState(after=("5",), is_scanned=True, read_again={b"1": ("1",)}))
    copy.note(12, [b"7", b"8"], {b"8": ("8",)}, {b"8": b"7"})
    copy.note(13, [b"1", b"2"], {b"2": ("2",)}, {b"2": b"1"})
    assert list(copy.state.read_again) == [b"1", b"2"]


def test_too_many_keys_to_read_again_begin_the_copy_again() -> None:
    copy = copy_of(TableCopyState(after=("5",), is_by_blocks=True), max_keys=1)
    old = copy.next_chunk()
    assert old is not None
    copy.note(12, [b"4"], {b"4": ("4",)})
    copy.note(12, [b"3"], {b"3": ("3",)})
    assert copy.state == TableCopyState()
    assert not copy.may_read(SEES_NOT_12), "the row under its new key is not visible yet"
    assert copy.emit(old, SEES_ALL, [row(b"6")], ("6",)) is None
    assert copy.state == TableCopyState()


def test_the_sequence_of_a_chunk_is_between_the_commits_and_is_never_used_twice() -> None:
    """F1: the next commit record may begin at the covered LSN."""
    assert chunk_position(None, 1000) == ChunkPosition(999, 0)
    assert chunk_position(ChunkPosition(999, 7), 1000) == ChunkPosition(999, 7)
    assert chunk_position(ChunkPosition(999, 7), 1001) == ChunkPosition(1000, 0)


def test_a_row_that_moves_twice_in_one_transaction_is_followed_to_its_last_key() -> None:
    copy = copy_of(TableCopyState(after=("5",), is_scanned=True, read_again={b"1": ("1",)}))
    # 1 to 2, 2 to 3, and another row to 2
    copy.note(13, [b"1", b"2", b"3", b"9"], {b"2": ("2",), b"3": ("3",)}, {b"2": b"9", b"3": b"2"})
    assert b"3" in copy.state.read_again


def test_the_keys_to_read_again_fit_into_a_record() -> None:
    """The progress record has them, and Kafka limits its size: the key of a row may be long."""
    copy = copy_of(TableCopyState(after=("5",)), max_keys=1000)
    for number in range(100):
        key = b"%d" % number + b"k" * 10_000
        copy.note(13, [key], {key: (key.decode(),)}, {key: b"old"})
    assert sum(map(len, copy.state.read_again)) < 100_000
    assert copy.state.after is None


def test_a_copy_that_is_restarted_begins_at_the_first_row_and_waits_for_its_transactions() -> None:
    copy = copy_of(TableCopyState("topic", after=("5",), read_again={b"1": ("1",)}, where="x"))
    chunk = copy.next_chunk()
    assert chunk is not None
    copy.note(12, [b"2"])
    copy.restart()
    assert copy.state == TableCopyState("topic", where="x")
    assert copy.emit(chunk, SEES_ALL, [row(b"6")], ("6",)) is None
    assert not copy.may_read(SEES_NOT_12)
    assert copy.may_read(SEES_ALL)


def test_of_a_chunk_by_keys_that_was_cut_the_other_keys_are_still_to_be_read() -> None:
    state = TableCopyState(after=("5",), is_scanned=True, read_again={b"1": ("1",), b"2": ("2",)})
    copy = copy_of(state)
    assert (chunk := copy.next_chunk()) == KeysChunk({b"1": ("1",), b"2": ("2",)})
    assert copy.emit(chunk, SEES_ALL, [row(b"1")], ("1",)) == [row(b"1")]
    assert copy.state.read_again == {b"2": ("2",)}
    assert copy.state.after == ("5",)
