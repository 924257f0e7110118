"""Planted bugs of the incremental snapshot: each is a simulation whose daemon does one thing wrong."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from cdcd.model import KeyValues, Record, TableCopyState
from cdcd.snapshot.changed_keys import ChangedKeys, FilteredChunk
from cdcd.snapshot.table_copy import Chunk, KeysChunk, RangeChunk, TableCopy
from cdcd.snapshot.visibility import Snapshot
from tests.simulator.incremental import Simulation, name
from tests.simulator.incremental_server import Commit, Row, xid32


class _LsnSnapshot(Snapshot):
    """A snapshot that takes each commit record before a low watermark for visible, as DBLog does."""

    __slots__ = ("low",)
    commit_lsns: ClassVar[dict[int, int]] = {}

    def sees(self, xid: int) -> bool:
        return self.commit_lsns.get(xid, 0) < self.low

    def sees_all(self, first_xid: int, last_xid: int) -> bool:
        return True

    def includes(self, other: Snapshot) -> bool:
        return True


class WindowByLsn(Simulation):
    """Changes between two LSNs are taken for those that the chunk does not have."""

    def emit(
        self, copy: TableCopy, chunk: Chunk, snapshot: Snapshot, rows: dict[int, Row], after: KeyValues | None
    ) -> None:
        by_lsn = _LsnSnapshot(snapshot.xmin, snapshot.xmax, snapshot.in_progress)
        object.__setattr__(by_lsn, "low", self.low_lsn)
        _LsnSnapshot.commit_lsns = {one.xid: one.commit_lsn for one in self.server.commits}
        super().emit(copy, chunk, by_lsn, rows, after)

    def snapshot(self) -> Snapshot:
        self.low_lsn = self.server.insert_lsn
        return super().snapshot()


class EmittedAtOnce(Simulation):
    """A chunk does not wait for the stream."""

    def is_received(self, end_lsn: int) -> bool:
        return True


class EmittedAfterTheSnapshot(Simulation):
    """A chunk waits for the last commit record that was received when it was read, and not for all before it."""

    def is_received(self, end_lsn: int) -> bool:
        return self.covered_lsn >= end_lsn - 150


class RangeSkipped(Simulation):
    """A refused chunk counts as read."""

    def emit(
        self, copy: TableCopy, chunk: Chunk, snapshot: Snapshot, rows: dict[int, Row], after: KeyValues | None
    ) -> None:
        before = self.counts["refused"]
        super().emit(copy, chunk, snapshot, rows, after)
        if self.counts["refused"] > before and isinstance(chunk, RangeChunk):
            copy.state = replace(copy.state, after=after, is_scanned=after is None)


class StateBeforeItsRows(Simulation):
    """The progress record has the end of a chunk that is still being read."""

    def chunk_rows(self, chunk: Chunk, rows: dict[int, Row]) -> tuple[dict[int, Row], KeyValues | None]:
        found, after = super().chunk_rows(chunk, rows)
        if self.copy is not None and isinstance(chunk, RangeChunk) and after is not None:
            self.copy.state = replace(self.copy.state, after=after)
        return found, after


class _AnyOrder(ChangedKeys):
    def may_use(self, snapshot: Snapshot) -> bool:
        self._forgotten = None
        return super().may_use(snapshot)


class OlderSnapshot(Simulation):
    """A range is emitted again, as an older snapshot saw it, after its transactions were forgotten."""

    tracker = _AnyOrder
    older: tuple[Snapshot, dict[int, Row]] | None = None

    def emit(
        self, copy: TableCopy, chunk: Chunk, snapshot: Snapshot, rows: dict[int, Row], after: KeyValues | None
    ) -> None:
        super().emit(copy, chunk, snapshot, rows, after)
        if self.older is not None and isinstance(chunk, RangeChunk):
            older, found = self.older
            records = [Record("topic", 0, name(key), b"") for key in found]
            if (filtered := copy.changed.filter(older, records)) is not None:
                self.write(filtered.records, found)
        self.older = (snapshot, rows)

    def start(self) -> None:
        self.older = None
        super().start()


class _ForgetsAll(ChangedKeys):
    def forget(self, snapshot: Snapshot) -> None:
        super().forget(snapshot)
        self._by_xid.clear()


class ForgottenTooEarly(Simulation):
    """With a chunk every tracked change is forgotten, also of transactions that it does not see."""

    tracker = _ForgetsAll


class _NoTruncate(ChangedKeys):
    def note_truncate(self, xid: int) -> None:
        pass


class TruncateIgnored(Simulation):
    """A TRUNCATE is not tracked."""

    odds: ClassVar[dict[str, float]] = {"activity": 1, "delay": 0.6, "receive": 0.5, "read": 0.6}

    tracker = _NoTruncate


class OldKeyUntracked(Simulation):
    """Of a key change only the new key is tracked."""

    def note(self, copy: TableCopy, commit: Commit) -> None:
        changes = tuple(one._replace(old_key=None) for one in commit.changes)
        super().note(copy, commit._replace(changes=changes))


class _NothingAgain(ChangedKeys):
    def filter(
        self, snapshot: Snapshot, records: Sequence[Record], requested: Collection[bytes] = ()
    ) -> FilteredChunk | None:
        found = super().filter(snapshot, records, requested)
        return None if found is None else FilteredChunk(found.records, {})


class DroppedNotReadAgain(Simulation):
    """The incomplete rows of a chunk are dropped, and not read again."""

    tracker = _NothingAgain


class _OncePerKey(ChangedKeys):
    def filter(
        self, snapshot: Snapshot, records: Sequence[Record], requested: Collection[bytes] = ()
    ) -> FilteredChunk | None:
        return super().filter(snapshot, records)


class ReadAgainTooEarly(Simulation):
    """A key counts as read although its row was not visible yet."""

    odds: ClassVar[dict[str, float]] = {"toasted": 0.9, "activity": 1, "delay": 0.6}

    tracker = _OncePerKey


class _Unmoved(TableCopy):
    def _is_without_its_row(self, key: bytes, moved: Mapping[bytes, bytes]) -> bool:
        return False


class MovedRowsIncomplete(Simulation):
    """A row that moves to the part already read, with unsent values, is not read again."""

    def begin_copy(self, state: TableCopyState) -> None:
        super().begin_copy(state)
        if self.copy is not None:
            self.copy.__class__ = _Unmoved


class _BlocksAsKeys(TableCopy):
    def _is_without_its_row(self, key: bytes, moved: Mapping[bytes, bytes]) -> bool:
        return key in moved and super()._is_without_its_row(key, moved)


class BlocksAsKeys(Simulation):
    """In a copy by blocks only changes of keys move a row."""

    def begin_copy(self, state: TableCopyState) -> None:
        super().begin_copy(state)
        if self.copy is not None:
            self.copy.__class__ = _BlocksAsKeys


class KeysNotRecorded(Simulation):
    """The progress record lacks the keys to read again."""

    def commit(self) -> None:
        super().commit()
        if (state := self.progress.copy) is not None:
            self.progress = replace(self.progress, copy=replace(state, read_again={}))


class SequenceNotRecorded(Simulation):
    """The progress record lacks the number of the last row at its position."""

    def start(self) -> None:
        self.progress = replace(self.progress, chunk=None)
        super().start()


class TrackedFromTheFirstChunk(Simulation):
    """No transaction from before the tracking is waited for."""

    def candidates(self) -> Iterable[int]:
        return ()


class OnlyListedAreAwaited(Simulation):
    """Transactions that a snapshot lists as in progress are waited for; younger ones, from xmax on, are not."""

    def candidates(self) -> Iterable[int]:
        return map(xid32, Snapshot.parse(self.server.snapshot_text).in_progress)


class SettledInsideTheirCommit(Simulation):
    """A transaction counts as settled although it may be inside its commit."""

    def candidates(self) -> Iterable[int]:
        idle = set(self.server.idle_xids)
        return [xid for xid in super().candidates() if xid in idle]


class TrackedFromTheConfirmedPosition(Simulation):
    """Transactions that are received again and dropped count as tracked."""

    def transaction(self, commit: Commit) -> None:
        if self.copy is not None:
            self.copy.changed.committed(commit.xid)
        super().transaction(commit)


class RestOfAPartOnly(Simulation):
    """Of a transaction written in parts, only the rest that is not written yet is tracked."""

    odds: ClassVar[dict[str, float]] = {"split": 0.8, "delay": 0.95, "crash": 0.04, "activity": 1}

    def note(self, copy: TableCopy, commit: Commit) -> None:
        super().note(copy, commit._replace(changes=commit.changes[self.now.part :]))


class _ForgetsAtTheLimit(ChangedKeys):
    def note_untracked(self, xid: int) -> None:
        pass


class LimitIgnored(Simulation):
    """At the limit of the memory the tracked keys are dropped, and chunks are still emitted."""

    tracker = _ForgetsAtTheLimit


class _KeepsTrack(ChangedKeys):
    def lose_track(self) -> None:
        pass


class TooManyKeysAreForgotten(Simulation):
    """With too many keys to read again, the rows are read from the first on, also while some are not visible yet."""

    odds: ClassVar[dict[str, float]] = {"max_keys": 1, "toasted": 0.9, "activity": 1, "delay": 0.6}

    tracker = _KeepsTrack


class _Continues(TableCopy):
    def emit(
        self, chunk: Chunk, snapshot: Snapshot, records: Sequence[Record], after: KeyValues | None
    ) -> list[Record] | None:
        self._reading = chunk
        return super().emit(chunk, snapshot, records, after)


class OldScanContinues(Simulation):
    """A chunk that was being read when the copy was begun again from the first row counts as the first one."""

    odds: ClassVar[dict[str, float]] = {"max_keys": 1, "toasted": 0.9, "activity": 1, "receive": 0.5}

    def begin_copy(self, state: TableCopyState) -> None:
        super().begin_copy(state)
        if self.copy is not None:
            self.copy.__class__ = _Continues


class _FilteredOnce(ChangedKeys):
    found: FilteredChunk | None = None

    def filter(
        self, snapshot: Snapshot, records: Sequence[Record], requested: Collection[bytes] = ()
    ) -> FilteredChunk | None:
        if self.found is None:
            return super().filter(snapshot, records, requested)
        return FilteredChunk(
            [record for record in records if record in self.found.records], self.found.read_again
        )


class SlicesOfTheFirstState(Simulation):
    """All slices of a chunk are filtered with what the stream had changed before the first one."""

    odds: ClassVar[dict[str, float]] = {"chunk_rows": 20, "activity": 1, "receive": 0.5, "read": 0.1}

    tracker = _FilteredOnce

    def emit_slices(
        self, copy: TableCopy, chunk: Chunk, snapshot: Snapshot, rows: dict[int, Row], after: KeyValues | None
    ) -> Generator[None]:
        changed = copy.changed
        assert isinstance(changed, _FilteredOnce)
        if not isinstance(chunk, KeysChunk):
            changed.found = changed.filter(snapshot, [Record("topic", 0, name(key), b"") for key in rows])
        yield from super().emit_slices(copy, chunk, snapshot, rows, after)
        changed.found = None


class _ForgetsToCompare(ChangedKeys):
    def unchanged(self, snapshot: Snapshot, keys: Iterable[bytes]) -> list[bytes] | None:
        return list(keys) if self.may_use(snapshot) else None


class InsertedSinceTheSnapshot(Simulation):
    """A key counts as gone although a transaction that the snapshot does not see has written it."""

    odds: ClassVar[dict[str, float]] = {"is_compared": True, "is_resumed": False, "activity": 1, "delay": 0.6}

    tracker = _ForgetsToCompare


class ComparedAtOnce(Simulation):
    """Keys are deleted before the stream has received what was committed before they were looked up."""

    odds: ClassVar[dict[str, float]] = {
        "is_compared": True,
        "is_resumed": False,
        "activity": 1,
        "receive": 0.15,
    }

    def is_received_to_compare(self, end_lsn: int) -> bool:
        return True


class NotLookedUp(Simulation):
    """Keys without a record since the copy began are deleted, and not looked up in the table."""

    odds: ClassVar[dict[str, float]] = {"is_compared": True, "is_resumed": False, "activity": 1}

    def compare(self, copy: TableCopy, snapshot: Snapshot, keys: list[int], rows: dict[int, Row]) -> bool:
        return super().compare(copy, snapshot, keys, {})


BUGS: dict[type[Simulation], str] = {
    bug: (bug.__doc__ or "").strip()
    for bug in (
        WindowByLsn, EmittedAtOnce, EmittedAfterTheSnapshot, RangeSkipped, StateBeforeItsRows, OlderSnapshot,
        ForgottenTooEarly, TruncateIgnored, OldKeyUntracked, DroppedNotReadAgain, ReadAgainTooEarly,
        MovedRowsIncomplete, BlocksAsKeys, KeysNotRecorded, SequenceNotRecorded, TrackedFromTheFirstChunk,
        OnlyListedAreAwaited, SettledInsideTheirCommit, TrackedFromTheConfirmedPosition, RestOfAPartOnly,
        LimitIgnored, TooManyKeysAreForgotten, OldScanContinues, SlicesOfTheFirstState,
        InsertedSinceTheSnapshot, ComparedAtOnce, NotLookedUp,
    )
}  # fmt: skip
