"""The oracle's input: plain data, whatever its source.

Comes from: PostgreSQL's own history of committed changes (`truth`), an independent reader of the topics (`topics`),
samples of the slot (`safety`) and of the metrics (`lagging`).  Goes to: `oracle`.
Invariant: every value is PostgreSQL's text or None, so that values from two sources are compared without their type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Row = Mapping[str, str | None]
Key = tuple[tuple[str, str | None], ...]
Place = tuple[str, int]
"""A topic and a partition."""
Order = tuple[int, int, int]
"""Timeline, commit LSN and number in the transaction: they identify a change and define the order."""
MESSAGE = "message"
"""The table name under which logical messages are counted."""


@dataclass(frozen=True)
class Table:
    """A table as the oracle needs it: the key's columns (none: no key), and whether old rows are complete."""

    name: str
    key: tuple[str, ...]
    is_full: bool = False


@dataclass(frozen=True)
class Change:
    """One committed change. `op`: c, u, d, t, or m for a logical message, whose content is in `after`."""

    op: str
    table: str
    before: Row | None = None
    after: Row | None = None


@dataclass(frozen=True)
class Transaction:
    """One committed transaction, its published changes in order; `end_lsn` and `committed_s` (since the epoch, by the
    server's clock) are from test_decoding."""

    xid: int
    end_lsn: int
    changes: tuple[Change, ...]
    committed_s: float


@dataclass(frozen=True)
class Event:
    """One record of a topic. `op`: c, u, d, t, r, m, or x for a tombstone. `is_odd`: why it could not be decoded.

    `raw_key`: the key's bytes, by which compaction identifies the key.
    """

    topic: str
    partition: int
    offset: int
    table: str
    op: str
    key: Key | None = None
    before: Row | None = None
    after: Row | None = None
    unchanged: frozenset[str] = frozenset()
    xid: int | None = None
    timeline: int = 0
    commit_lsn: int = 0
    tx_seq: int = 0
    is_snapshot: bool = False
    is_odd: str = ""
    raw_key: bytes | None = None

    @property
    def sequence(self) -> Order:
        """The event's position in the order."""
        return self.timeline, self.commit_lsn, self.tx_seq

    @property
    def position(self) -> tuple[int, int]:
        """The event's position within one timeline, as a progress record has it."""
        return self.commit_lsn, self.tx_seq

    @property
    def place(self) -> Place:
        """The event's topic and partition."""
        return self.topic, self.partition

    def __str__(self) -> str:
        return f"{self.op} of {self.topic}/{self.partition} at {self.offset} {self.sequence} xid {self.xid}"


@dataclass(frozen=True)
class Progress:
    """One committed progress record. `part`: the last written change of a transaction that is not complete.

    `commit_s`: all transactions committed before this time are durable, by the record; None if the record lacks it.
    `floors`: by relid, the point of a later snapshot in which a table was copied. `pending`: the relids of the tables
    that an incomplete snapshot has left, None if it has not planned any; `copy_lsn`: the point of its latest attempt.
    `in_chunks`: the relids of the tables that incremental snapshots have left.
    """

    offset: int
    phase: str
    commit_lsn: int
    end_lsn: int
    offsets: Mapping[Place, int]
    part: tuple[int, int] | None = None
    commit_s: float | None = None
    floors: Mapping[int, int] = field(default_factory=dict)
    pending: frozenset[int] | None = None
    copy_lsn: int = 0
    in_chunks: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Point:
    """Where the stream begins, and for tables that were copied later the point of their snapshot.

    `unfinished`: the tables whose remaining rows are copied in chunks while the stream runs.
    """

    lsn: int
    floors: Mapping[str, int] = field(default_factory=dict)
    unfinished: frozenset[str] = frozenset()

    @property
    def last_lsn(self) -> int:
        """The point of the latest snapshot: changes behind it are only in the stream."""
        return max((self.lsn, *self.floors.values()))

    def of(self, table: str) -> int:
        """Return the point of a table's rows: its changes before it are in the copied rows."""
        return self.floors.get(table, self.lsn)


@dataclass(frozen=True)
class Sample:
    """The slot's confirmed_flush_lsn, and the end offset of the progress topic, which was queried after it."""

    confirmed_lsn: int
    end_offset: int


@dataclass(frozen=True)
class Lag:
    """cdcd's lag metrics, and the true positions before and after they were read, in the order of the queries.

    PostgreSQL's WAL (flushed commits are certain, commits not inserted do not exist) and the slot; the time
    `said_s`; the state and `received_lsn` of /status, and the start of that process; the metrics, None where they
    are absent; the time `until_s`; the progress topic's end.
    """

    flushed_lsn: int
    inserted_lsn: int
    confirmed_lsn: int
    said_s: float
    state: str
    received_lsn: int
    began_s: float
    lag_s: float | None
    lag_bytes: int | None
    slot_lsn: int | None
    until_s: float
    end_offset: int


@dataclass(frozen=True)
class Block:
    """A section of a run between two moments at which no session wrote and the daemon had caught up.

    `rows`: each table by SELECT at the end of the block. `partitions`: their number by topic. `seen_live`: a digest
    of each record that a reader saw during the faults; `digests`: of those read at the end. `caught_up_s`: None if
    the daemon did not catch up. `lag_s`: the metric at the end; `lags`: samples during the whole block. `names`: the
    tables by relid.
    """

    transactions: tuple[Transaction, ...]
    events: tuple[Event, ...]
    progress: tuple[Progress, ...]
    samples: tuple[Sample, ...]
    rows: Mapping[str, tuple[Row, ...]]
    partitions: Mapping[str, int]
    seen_live: Mapping[tuple[str, int, int], int] = field(default_factory=dict)
    digests: Mapping[tuple[str, int, int], int] = field(default_factory=dict)
    caught_up_s: float | None = 0.0
    lag_s: float | None = 0.0
    lags: tuple[Lag, ...] = ()
    names: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """One violation: the letter of the broken assertion (`oracle`), and a description."""

    assertion: str
    what: str

    def __str__(self) -> str:
        return f"({self.assertion}) {self.what}"
