"""What the oracle judges: plain data, however it was come by.

Comes from: PostgreSQL's own account of what was committed (`truth`), an independent reader of the topics (`topics`),
samples of the slot (`safety`), of the metrics (`lagging`).  Goes to: `oracle`.
Invariant: every value is text or None, as PostgreSQL spells it, so that two accounts can be compared without a type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Row = Mapping[str, str | None]
Key = tuple[tuple[str, str | None], ...]
Place = tuple[str, int]
"""A topic and a partition."""
Order = tuple[int, int, int]
"""Timeline, commit LSN and the number in the transaction: what a change is known by, and sorted by."""
MESSAGE = "message"
"""The table that logical messages are counted under."""


@dataclass(frozen=True)
class Table:
    """What the oracle has to know of a table: its key's columns (none: no key), and whether old rows come whole."""

    name: str
    key: tuple[str, ...]
    is_full: bool = False


@dataclass(frozen=True)
class Change:
    """One change that was committed. `op`: c, u, d, t, or m for a logical message, whose content is in `after`."""

    op: str
    table: str
    before: Row | None = None
    after: Row | None = None


@dataclass(frozen=True)
class Transaction:
    """One committed transaction, its published changes in order; `end_lsn` and `committed_s` (since the epoch, by the
    server's clock) are what test_decoding says of its end."""

    xid: int
    end_lsn: int
    changes: tuple[Change, ...]
    committed_s: float


@dataclass(frozen=True)
class Event:
    """One record of a topic. `op`: c, u, d, t, r, m, or x for a tombstone. `is_odd` says why it could not be read.

    `raw_key`: the key's bytes, which are all that compaction knows of it.
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
        """Where it stands in the order."""
        return self.timeline, self.commit_lsn, self.tx_seq

    @property
    def position(self) -> tuple[int, int]:
        """Where it stands by what a progress record has, which is of one timeline."""
        return self.commit_lsn, self.tx_seq

    @property
    def place(self) -> Place:
        """Its topic and partition."""
        return self.topic, self.partition

    def __str__(self) -> str:
        return f"{self.op} of {self.topic}/{self.partition} at {self.offset} {self.sequence} xid {self.xid}"


@dataclass(frozen=True)
class Progress:
    """One committed progress record. `part`: how far a transaction was written of which there is more to come.

    `commit_s`: before when all that was committed is durable, by the record; None where it says nothing.
    """

    offset: int
    phase: str
    commit_lsn: int
    end_lsn: int
    offsets: Mapping[Place, int]
    part: tuple[int, int] | None = None
    commit_s: float | None = None


@dataclass(frozen=True)
class Sample:
    """The slot's confirmed_flush_lsn, and, looked up after it, the offset at which the progress topic ends."""

    confirmed_lsn: int
    end_offset: int


@dataclass(frozen=True)
class Lag:
    """What cdcd's metrics said of its lag, and what was true around it, looked up in this order.

    PostgreSQL's WAL (what is flushed is committed, what is not inserted is not) and the slot; `said_s`; the status
    page's state and `received_lsn`, and when that process began; the metrics, None where they are absent; `until_s`;
    the progress topic's end.
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
    """A piece of a run between two moments at which everything stood still and was caught up.

    `rows`: each table by SELECT at its end. `partitions`: by topic. `seen_live`: a digest of each record that a
    reader has seen while the faults went on; `digests`: of those read at the end. `caught_up_s`: None when it
    never did. `lag_s`: the metric at the end; `lags`: looked at all the time.
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


@dataclass(frozen=True)
class Finding:
    """What is wrong: the assertion's letter in the design's list, and where."""

    assertion: str
    what: str

    def __str__(self) -> str:
        return f"({self.assertion}) {self.what}"
