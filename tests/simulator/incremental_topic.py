"""The table's topic in the simulation, and its judge.

In: the records of each committed Kafka transaction, the server's history, the recorded state of the copy.  Out: an
AssertionError at the first record that a reader would take for a newer row than it is, or after which the reader's
rows are not those of the table at this position of the stream.
Invariant: the judge has only what is durable; it does not use the daemon's code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.simulator.incremental_server import Change, Commit, Row, Server

MISSING = -1


class Event(NamedTuple):
    """A record's value: the change, and its sequence. The kind x is a delete that no transaction has made."""

    change: Change
    commit_lsn: int
    tx_seq: int


class Table:
    """The table at a position of the stream: the version of each row, after all transactions before the position."""

    def __init__(self, rows: dict[int, Row]) -> None:
        self.versions = {key: row.version for key, row in rows.items()}
        self._next = 0

    def advance(self, commits: Sequence[Commit], commit_lsn: int) -> None:
        """Apply all transactions up to this commit LSN."""
        while self._next < len(commits) and commits[self._next].commit_lsn <= commit_lsn:
            for change in commits[self._next].changes:
                self._apply(change)
            self._next += 1

    def _apply(self, change: Change) -> None:
        if change.kind == "t":
            self.versions.clear()
            return
        self.versions.pop(change.key if change.old_key is None else change.old_key, None)
        if change.kind != "d":
            self.versions[change.key] = change.version


class Reader:
    """A reader of the topic: it has the last row of each key, and knows the history of all rows."""

    def __init__(self, history: dict[int, Row], server: Server | None = None) -> None:
        """`server`: of a topic with deletes that no transaction has made."""
        self._history = history
        self._server = server
        self._table = Table({} if server is None else server.first_rows)
        self.rows: dict[int, tuple[int, int]] = {}
        """The version and the large value of each row; MISSING: the large value was never received."""
        self.copied: set[int] = set()
        """The versions that chunks had."""
        self._last: dict[int, int] = {}
        self._sequences: set[tuple[int, int]] = set()
        self._sequence_of: dict[int, tuple[int, int]] = {}
        self._truncated = 0
        self.stale: set[int] = set()
        """The keys of rows from before a gap in the stream that no later record has."""

    def begin_with(self, rows: dict[int, Row]) -> None:
        """Begin with rows from before a gap in the stream."""
        self.rows = {key: (row.version, row.big) for key, row in rows.items()}
        self._last = {key: row.version for key, row in rows.items()}
        self.stale = set(rows)

    def read(self, events: Sequence[Event]) -> None:
        """Read records; each is judged."""
        for event in events:
            self._check_sequence(event)
            if event.change.kind == "x":
                self._check_delete(event)
            else:
                self._check_version(event.change)
            self._fold(event.change)

    def check(self, table: Table, read: Iterable[int], again: Iterable[int]) -> None:
        """Compare with the table at the same position: `read` are keys that the copy has passed."""
        read, again = set(read), set(again)
        for key, (version, big) in self.rows.items():
            if key in self.stale:
                continue
            assert table.versions.get(key) == version, f"another row of key {key} than the table's"
            assert big != MISSING or key not in read or key in again, f"the row of key {key} stays incomplete"
        lacking = {key for key in read & table.versions.keys() if key not in self.rows}
        assert not lacking, f"no row of key {min(lacking)}, which is copied"

    def _check_sequence(self, event: Event) -> None:
        sequence = (event.commit_lsn, event.tx_seq)
        assert sequence not in self._sequences, f"two records have the sequence {sequence}"
        self._sequences.add(sequence)
        change = event.change
        for key in self._keys(change):
            assert sequence > self._sequence_of.get(key, (0, 0)), f"the sequences of key {key} go back"
            self._sequence_of[key] = sequence

    def _check_delete(self, event: Event) -> None:
        assert self._server is not None
        key = event.change.key
        self._table.advance(self._server.commits, event.commit_lsn)
        assert key not in self._table.versions, f"a delete of key {key}, which the table has"

    @staticmethod
    def _keys(change: Change) -> tuple[int, ...]:
        if change.kind == "t":
            return ()
        return (change.key,) if change.old_key is None else (change.old_key, change.key)

    def _check_version(self, change: Change) -> None:
        if change.kind == "t":
            assert change.version > self._truncated
            self._truncated = change.version
            return
        for key in self._keys(change):
            last = max(self._last.get(key, 0), self._truncated)
            is_repeated = change.kind == "r" and change.version == last  # a row may be copied twice
            assert is_repeated or change.version > last, f"an older row of key {key} after a newer one"
            self._last[key] = change.version

    def _fold(self, change: Change) -> None:
        if change.kind == "t":
            self.rows.clear()
            self.stale.clear()
            return
        of_key = change.key if change.old_key is None else change.old_key
        before = self.rows.pop(of_key, None)
        if of_key in self.stale:
            before = None  # its value may be older than the gap
        self.stale -= set(self._keys(change))
        if change.kind in "dx":
            return
        big = (before[1] if before else MISSING) if change.big is None else change.big
        assert big in (MISSING, self._history[change.version].big), (
            f"key {change.key} has another row's value"
        )
        self.rows[change.key] = (change.version, big)
        if change.kind == "r":
            self.copied.add(change.version)
