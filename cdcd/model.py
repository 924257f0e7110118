"""The nouns that several rooms share. Values only: frozen, slotted, without behaviour that does I/O.

Invariant: LSNs are ints (`cdcd.lsn`), timestamps are microseconds since 2000-01-01 UTC where the name ends in
`_pg_us` (PostgreSQL's TimestampTz as on the wire) and since 1970-01-01 UTC where it ends in `_us`.
"""

from __future__ import annotations

import enum
import struct
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cdcd.frame_layout import BEGIN_COMMIT_LSN_AT, COMMIT_BYTES, COMMIT_LSN_AT, FRAME_BYTES, FRAME_LSN_AT
from cdcd.lsn import Lsn

HEARTBEAT_PREFIX = "cdcd.heartbeat"
"""Prefix of the logical messages that cdcd itself writes; outside a transaction they are nobody's data (F12)."""

POSTGRES_EPOCH_US = 946_684_800_000_000
"""2000-01-01 00:00:00 UTC in microseconds of the Unix epoch."""


class ReplicaIdentity(enum.Enum):
    """`pg_class.relreplident`, as the Relation message carries it."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


@dataclass(frozen=True, slots=True)
class Column:
    """One column as the Relation message describes it. `is_key`: part of the replica identity."""

    name: str
    type_oid: int
    typmod: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """One table as the Relation message describes it (`schema` is "pg_catalog" where the wire has "").

    `published_as`: the relid of the partitioned table as whose rows this partition's come
    (publish_via_partition_root); None where they come as its own, or where no row has shown it yet (F78).
    """

    relid: int
    schema: str
    name: str
    identity: ReplicaIdentity
    columns: tuple[Column, ...]
    published_as: int | None = None


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of a composite type, as `pg_attribute` has it."""

    name: str
    type_oid: int
    typmod: int


@dataclass(frozen=True, slots=True)
class PgType:
    """One row of `pg_type`, as far as a reading needs it.

    `kind` is `typtype`: b base, c composite, d domain, e enum, r range, m multirange, p pseudo.
    `element_oid` is the element's oid for a true array (typcategory A and typelem set), else 0.
    `base_oid` and `base_typmod` are set for a domain, `subtype_oid` for a range (what it is of) and a multirange
    (its range), `attributes` for a composite type. `extension` is the extension that it belongs to, "" for none.
    `fraction_digits` is money's: what the database's lc_monetary says, -1 for any other type.
    `has_send`: it has a send function; without one its values come as text also where binary was asked for.
    """

    oid: int
    schema: str
    name: str
    kind: str
    element_oid: int = 0
    base_oid: int = 0
    base_typmod: int = -1
    delimiter: str = ","
    subtype_oid: int = 0
    extension: str = ""
    attributes: tuple[Attribute, ...] = ()
    fraction_digits: int = -1
    has_send: bool = True


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Consecutive row frames (Insert, Update, Delete) of one transaction.

    `frames` is a sequence of frames (`cdcd.frame_layout`), `count` their number. Inside a stream segment `xid` is the
    (sub)transaction that the rows carry, and the payloads still hold it; outside it is None.
    """

    frames: bytes
    count: int
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class TransactionBatch:
    """Whole transactions, one after another: each is Begin, any number of rows and Commit, and nothing else.

    `frames` as in `RowBatch`, with Begin and Commit as frames of their own; each Commit names the commit LSN of its
    Begin. `count` is the number of transactions, at least one.
    """

    frames: bytes
    count: int

    @property
    def commit_lsns(self) -> tuple[Lsn, Lsn]:
        """Where the first and the last of them commit."""
        first, last = FRAME_BYTES, len(self.frames) - COMMIT_BYTES
        return (
            _lsn_at(self.frames, first + BEGIN_COMMIT_LSN_AT)[0],
            _lsn_at(self.frames, last + COMMIT_LSN_AT)[0],
        )

    @property
    def last_lsn(self) -> Lsn:
        """The LSN of the last frame's header."""
        last = len(self.frames) - COMMIT_BYTES - FRAME_BYTES
        lsn: int = _lsn_at(self.frames, last + FRAME_LSN_AT)[0]
        return lsn


_lsn_at = struct.Struct(">Q").unpack_from


@dataclass(frozen=True, slots=True)
class Control:
    """Any pgoutput message that is not a row, undecoded, with its XLogData header's LSN and time of sending."""

    lsn: Lsn
    payload: bytes
    sent_at_pg_us: int = 0


@dataclass(frozen=True, slots=True)
class Keepalive:
    """Primary keepalive message: `wal_end_lsn` is the end of what the walsender has decoded (F11)."""

    wal_end_lsn: Lsn
    sent_at_pg_us: int
    reply_requested: bool


PlainItem = RowBatch | Control | Keepalive
Item = PlainItem | TransactionBatch
"""What the drain yields, in the order of the wire."""


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """What every row of one committed transaction shares.

    `commit_lsn` is where the commit record begins (Begin's final LSN), which with its timeline begins the sequence.
    """

    xid: int
    commit_lsn: Lsn
    commit_pg_us: int
    origin: str | None = None
    origin_lsn: Lsn | None = None
    snapshot: bool = False


class Record(NamedTuple):
    """One Kafka record, ready to be produced."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """Which slot of which server a position belongs to (F10, F58).

    `slot_lsn` is the consistent point of a slot that cdcd has made, 0 where somebody else made it: PostgreSQL does
    not keep it. `two_phase` is what the slot had when the record was written, None where it was not recorded.
    `timeline_lsn` is where `timeline` began: two servers that were promoted apart may give theirs the same number. 0
    for the first one, and where it is not known.
    """

    system_identifier: str
    timeline: int
    database: str
    slot: str
    plugin: str = "pgoutput"
    two_phase: bool | None = None
    slot_lsn: Lsn = 0
    timeline_lsn: Lsn = 0


def began_at(timeline: int, left: Mapping[int, Lsn]) -> Lsn:
    """Return where this timeline began: where the one before it was `left`. 0 for the first, and if not known."""
    before = [ancestor for ancestor in left if ancestor < timeline]
    return left[max(before)] if before else 0


class Timelines:
    """The server's timeline `now`, and where each that it comes from was `left` (F58).

    Without its history, which the first timeline has not, all of the WAL is taken for that of `now`.
    """

    __slots__ = ("_switches", "_timelines", "left", "now")

    def __init__(self, now: int, left: Mapping[int, Lsn]) -> None:
        self.now = now
        self.left = left
        self._timelines = [*sorted(left), now]
        self._switches = [left[timeline] for timeline in sorted(left)]

    @property
    def now_lsn(self) -> Lsn:
        """Where the server's timeline began, 0 for the first one and without its history."""
        return began_at(self.now, self.left)

    def at(self, lsn: Lsn) -> int:
        """Return the timeline that the WAL at `lsn` was written on, whichever server sends it now."""
        return self._timelines[bisect_right(self._switches, lsn)]


@dataclass(frozen=True, slots=True)
class PreparedBefore:
    """What somebody else may have confirmed the PREPARE of, before a slot became cdcd's: its rows never come (F33).

    `undecided` was prepared when cdcd first held the slot and is not known to be decided or to come whole: xid (32
    bits) and gid, so that it is not mistaken for who has its xid after the wrap. What was decided until then has its
    decision below `until_lsn`. Empty where nobody but cdcd has confirmed anything.
    """

    until_lsn: Lsn = 0
    undecided: frozenset[tuple[int, str]] = frozenset()

    def may_have_rows(self, xid: int, gid: str, commit_lsn: Lsn) -> bool:
        """Return whether a COMMIT PREPARED that comes without rows may have lost them."""
        return commit_lsn < self.until_lsn or (xid, gid) in self.undecided

    def without(self, xid: int, gid: str) -> PreparedBefore:
        """Return what is left when this one was rolled back, or the server has sent all of it."""
        return PreparedBefore(self.until_lsn, self.undecided - {(xid, gid)})

    def left_at(self, end_lsn: Lsn) -> PreparedBefore:
        """Return what is left when nothing below `end_lsn` comes any more."""
        return PreparedBefore(self.until_lsn if end_lsn < self.until_lsn else 0, self.undecided)


@dataclass(frozen=True, slots=True)
class PartPosition:
    """How much of a transaction that is written in several Kafka transactions is durable: all up to `tx_seq`.

    `numbered_by` tells by what configuration its changes were numbered; "" where that was not recorded.
    """

    commit_lsn: Lsn
    tx_seq: int
    numbered_by: str = ""


@dataclass(frozen=True, slots=True)
class Gap:
    """What somebody has accepted to miss, and what the topics have still to be told of.

    Changes committed between `from_lsn` and `to_lsn` may be missing (`to_lsn` None: up to the snapshot that follows).
    `reason` is the code of the halt that it was the way on from, `decided_us` when it was decided.
    """

    from_lsn: Lsn
    to_lsn: Lsn | None
    reason: str
    decided_us: int


@dataclass(frozen=True, slots=True)
class Progress:
    """What one Kafka transaction made durable: the value of the progress record.

    `end_lsn` is what may be confirmed to PostgreSQL, `commit_lsn` the last transaction written (transactions
    with a commit LSN up to it are dropped on replay, F4), `commit_us` when it committed, 0 where that is unknown: no
    transaction behind it committed before. `phase` is "snapshot" while the initial snapshot is incomplete, else
    "streaming". `offsets` maps topic -> partition -> next offset for what this one touched.
    `snapshot_tables` are the topics that an incomplete snapshot has begun to write. `prepared_before` is what every
    later session has to know too, until it is decided. `part`: besides, a part of the next transaction is written.
    `gap`: the next session has to tell the topics of it before anything else.
    """

    identity: SourceIdentity
    phase: str
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_us: int
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    snapshot_tables: tuple[str, ...] = ()
    prepared_before: PreparedBefore = field(default_factory=PreparedBefore)
    part: PartPosition | None = None
    gap: Gap | None = None
    topics_at: int = -1
    """The offset of the record, in the same topic, of what is counted on in the topics; -1 where there is none."""
    transactional_id: str = ""
    """Of the producer that wrote it, "" without one: whoever goes on with another id fences this one too (F69)."""
