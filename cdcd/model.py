"""The value types that several packages share: frozen, slotted, without I/O.

Invariant: LSNs are ints (`cdcd.lsn`), timestamps are microseconds since 2000-01-01 UTC where the name ends in
`_pg_us` (PostgreSQL's TimestampTz as on the wire) and since 1970-01-01 UTC where it ends in `_us`.
"""

from __future__ import annotations

import enum
import struct
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from cdcd.frame_layout import BEGIN_COMMIT_LSN_AT, COMMIT_BYTES, COMMIT_LSN_AT, FRAME_BYTES, FRAME_LSN_AT
from cdcd.lsn import Lsn

HEARTBEAT_PREFIX = "cdcd.heartbeat"
"""Prefix of the logical messages that cdcd itself writes; outside a transaction they carry no user data (F12)."""

FLUSH_PREFIX = "cdcd.flush"
"""Prefix of the empty transactional message by which cdcd has an idle server write its WAL to disk."""

VERIFY_PREFIX = "cdcd-verify"
"""Prefix of the empty message, outside a transaction, by which `cdcd verify` marks the place of its snapshot."""

POSTGRES_EPOCH_US = 946_684_800_000_000
"""2000-01-01 00:00:00 UTC in microseconds of the Unix epoch."""

PublicationChangeKind = Literal[
    "dropped",
    "recreated",
    "table_removed",
    "table_readded",
    "table_replaced",
    "table_recreated",
    "table_renamed",
    "table_attached",
    "table_gone",
    "table_added",
    "columns",
    "rows",
    "options",
]
"""What changed in a publication, or in its table: as logged, and as counted in `cdcd_publication_changes_total`."""


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

    `published_as`: the relid of the partitioned table under which this partition's rows are published
    (publish_via_partition_root); None if they are published under the partition, or before a row has shown it (F78).
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
    """One row of `pg_type`, with the columns needed to decode values.

    `kind` is `typtype`: b base, c composite, d domain, e enum, r range, m multirange, p pseudo.
    `element_oid` is the element's oid for a true array (typcategory A and typelem set), else 0.
    `base_oid` and `base_typmod` are set for a domain, `subtype_oid` for a range (its element type) and a multirange
    (its range), `attributes` for a composite type. `extension` is the extension that owns the type, "" for none.
    `fraction_digits` is set for money, from the database's lc_monetary; -1 for any other type.
    `has_send`: the type has a send function; without one its values are sent as text even if binary was requested.
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
    (sub)transaction of the rows, which their payloads also contain; outside a stream segment `xid` is None.
    """

    frames: bytes
    count: int
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class TransactionBatch:
    """Complete transactions, one after another: each is Begin, any number of rows and Commit, and nothing else.

    `frames` as in `RowBatch`, with Begin and Commit as frames of their own; each Commit names the commit LSN of its
    Begin. `count` is the number of transactions, at least one.
    """

    frames: bytes
    count: int

    @property
    def commit_lsns(self) -> tuple[Lsn, Lsn]:
        """The commit LSNs of the first and the last transaction."""
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
    """Any pgoutput message that is not a row, undecoded, with the LSN and the send time of its XLogData header."""

    lsn: Lsn
    payload: bytes
    sent_at_pg_us: int = 0


@dataclass(frozen=True, slots=True)
class Keepalive:
    """Primary keepalive message: `wal_end_lsn` is the end of the WAL that the walsender has decoded (F11)."""

    wal_end_lsn: Lsn
    sent_at_pg_us: int
    reply_requested: bool


PlainItem = RowBatch | Control | Keepalive
Item = PlainItem | TransactionBatch
"""The items that the drain yields, in the order of the wire."""


class SnapshotMarker(enum.StrEnum):
    """The place of a row in its snapshot: Debezium's values of `source.snapshot`."""

    FIRST = "first"
    FIRST_OF_TABLE = "first_in_data_collection"
    INNER = "true"
    INCREMENTAL = "incremental"
    LAST_OF_TABLE = "last_in_data_collection"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """The values that all rows of one committed transaction share.

    `commit_lsn` is the start of the commit record (Begin's final LSN); with its timeline it is the first part of the
    sequence. `snapshot` is empty for a streamed change, for rows of a snapshot one of `SnapshotMarker`.
    """

    xid: int
    commit_lsn: Lsn
    commit_pg_us: int
    origin: str | None = None
    origin_lsn: Lsn | None = None
    snapshot: str = ""


class Record(NamedTuple):
    """One Kafka record, ready to be produced."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """The server and the slot to which a position belongs (F10, F58).

    `slot_lsn` is the consistent point of a slot that cdcd created, 0 for other slots: PostgreSQL does not store it.
    `two_phase` is the slot's setting when the record was written, None if it was not recorded. `timeline_lsn` is the
    LSN at which `timeline` began, since two servers that were promoted separately may use the same timeline number; 0
    for the first timeline, and if unknown.
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
    """Return the LSN where this timeline began: where its predecessor was `left`. 0 for the first, and if unknown."""
    before = [ancestor for ancestor in left if ancestor < timeline]
    return left[max(before)] if before else 0


class Timelines:
    """The server's timeline `now`, and the LSN at which each of its ancestors was `left` (F58).

    Without a timeline history, which the first timeline does not have, all WAL counts as WAL of `now`.
    """

    __slots__ = ("_switches", "_timelines", "left", "now")

    def __init__(self, now: int, left: Mapping[int, Lsn]) -> None:
        self.now = now
        self.left = left
        self._timelines = [*sorted(left), now]
        self._switches = [left[timeline] for timeline in sorted(left)]

    @property
    def now_lsn(self) -> Lsn:
        """The LSN where the server's timeline began; 0 for the first timeline, and without a history."""
        return began_at(self.now, self.left)

    def at(self, lsn: Lsn) -> int:
        """Return the timeline on which the WAL at `lsn` was written; it does not depend on the sending server."""
        return self._timelines[bisect_right(self._switches, lsn)]


@dataclass(frozen=True, slots=True)
class PreparedBefore:
    """Transactions whose PREPARE a previous user of the slot may have confirmed: their rows are never sent (F33).

    `undecided`: transactions that were prepared when cdcd first used the slot, and that are not known to be decided
    or to be sent completely. Each is an xid (32 bits) and a gid, so that a later transaction with the same xid after
    wraparound is not mistaken for it. Transactions decided before that have their decision below `until_lsn`. Both
    are empty if only cdcd has confirmed positions of the slot.
    """

    until_lsn: Lsn = 0
    undecided: frozenset[tuple[int, str]] = frozenset()

    def may_have_rows(self, xid: int, gid: str, commit_lsn: Lsn) -> bool:
        """Return whether a COMMIT PREPARED that is received without rows may have lost them."""
        return commit_lsn < self.until_lsn or (xid, gid) in self.undecided

    def without(self, xid: int, gid: str) -> PreparedBefore:
        """Return the value without a transaction that was rolled back, or that the server has sent completely."""
        return PreparedBefore(self.until_lsn, self.undecided - {(xid, gid)})

    def left_at(self, end_lsn: Lsn) -> PreparedBefore:
        """Return the value that applies when the server sends nothing below `end_lsn` any more."""
        return PreparedBefore(self.until_lsn if end_lsn < self.until_lsn else 0, self.undecided)


@dataclass(frozen=True, slots=True)
class PartPosition:
    """The durable part of a transaction that is written in several Kafka transactions: all changes up to `tx_seq`.

    `numbered_by` identifies the configuration by which its changes were numbered; "" if that was not recorded. `keys`
    identifies those keys of its tables that its messages do not show; "" if there are none or they were not recorded.
    """

    commit_lsn: Lsn
    tx_seq: int
    numbered_by: str = ""
    keys: str = ""


@dataclass(frozen=True, slots=True)
class Gap:
    """A gap in the changes that an operator has accepted, and that is still to be recorded in the topics.

    Changes committed between `from_lsn` and `to_lsn` may be missing (`to_lsn` None: up to the snapshot that follows).
    `reason` is the code of the halt that the gap resolved, `decided_us` the time of the decision.
    """

    from_lsn: Lsn
    to_lsn: Lsn | None
    reason: str
    decided_us: int


KeyValues = tuple[str, ...]
"""The values of a key's columns, as PostgreSQL's text, in the order of its index."""


@dataclass(frozen=True, slots=True)
class TableCopyState:
    """The state of one table's incremental snapshot.

    `after`: the key of the last row read, or what is left of the table's blocks; None before the first chunk.
    `is_by_blocks`: the rows are read in the order of the file. `is_scanned`: the last range was read. `read_again`:
    the keys of rows that readers have incompletely. `where`: a condition of the command that started it.
    `partitions`: the table's partitions, each as it was attached, when the copy began or was continued. `key`: the
    columns of the key, with all that their order depends on; () before the first chunk. `began_lsn`, `began_as`: the
    commit LSN and the id of the copy's BEGIN in the topic of transactions, 0 without one; `rows`: written since, or,
    without one, since the command; `rows_before` of them before the copy last began again with the first row.
    `compared_from`: the ends of the topic's partitions when the copy began, if readers' rows that the table does not
    have are still to be found and deleted; () before they are looked up, None if no rows are compared. `columns`:
    those that the configuration chose in addition to the key; None: all, or a record of a version that did not note
    them. `row_filter`: a digest of the publication's row filter, "" without one.
    """

    topic: str = ""
    after: KeyValues | None = None
    is_by_blocks: bool = False
    is_scanned: bool = False
    read_again: Mapping[bytes, KeyValues] = field(default_factory=dict)
    where: str | None = None
    is_paused: bool = False
    partitions: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    began_lsn: Lsn = 0
    began_as: str = ""
    rows: int = 0
    compared_from: tuple[int, ...] | None = None
    rows_before: int = 0
    columns: tuple[str, ...] | None = None
    row_filter: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether readers have every row, and no other if rows are compared."""
        return self.is_scanned and not self.read_again and self.compared_from is None

    def from_the_first_row(self) -> TableCopyState:
        """Return the state of a copy of the same rows that begins again, in the order of the key.

        The topic's ends are looked up again: a row that was copied before, and then deleted unseen, is found too.
        """
        compared_from = None if self.compared_from is None else ()
        return replace(
            self,
            after=None,
            is_by_blocks=False,
            is_scanned=False,
            read_again={},
            compared_from=compared_from,
            rows_before=self.rows,
        )


@dataclass(frozen=True, slots=True)
class BlockingCopyState:
    """A table that a blocking snapshot has left to copy.

    `where`: the condition of the command. `empties`: a truncate event precedes the rows of the next attempt.
    `has_failed`: no session tries it again without a command.
    """

    topic: str = ""
    where: str | None = None
    empties: bool = False
    has_failed: bool = False

    @property
    def copies_nothing(self) -> bool:
        """Whether the condition is FALSE: the command accepts the rows that the topic has."""
        return self.where is not None and self.where.strip().lower() == "false"


@dataclass(frozen=True, slots=True)
class CopyState:
    """What a snapshot has left, and what the stream must not repeat.

    `pending`: the relids of the tables that are not copied completely. `floors`: by relid, the consistent point of
    the later snapshot in which a table was copied, because an earlier one had ended before its turn: changes with a
    commit LSN below it are in the copied rows. The consistent point at which the stream begins is not a floor.
    `point_lsn`: the consistent point of the latest attempt, or the position of the latest chunk of an incremental
    snapshot: its rows have a commit LSN of one byte less, and numbers up to `tx_seq`. `tables`: by relid, the tables
    of incremental snapshots. `signals_at`: the offset of the next signal in its topic, -1 if none was read.
    `blocking`: by relid, the tables of blocking snapshots. `partial`: the tables whose topics lack rows from before
    the stream, because a copy had a condition, was stopped, given up or not possible; a whole copy of the table
    removes it. `excluded`: the published tables that no attempt of an incomplete initial snapshot has to copy so far.
    """

    pending: tuple[int, ...] = ()
    floors: Mapping[int, Lsn] = field(default_factory=dict)
    point_lsn: Lsn = 0
    tx_seq: int = 0
    tables: Mapping[int, TableCopyState] = field(default_factory=dict)
    signals_at: int = -1
    blocking: Mapping[int, BlockingCopyState] = field(default_factory=dict)
    partial: tuple[int, ...] = ()
    excluded: tuple[int, ...] = ()

    @property
    def incomplete(self) -> frozenset[int]:
        """The tables that an interrupted initial snapshot has left, whether in part or completely.

        Records of earlier versions do not list a table as pending that an incremental snapshot was to continue.
        """
        return frozenset(self.pending).union(self.tables)

    def left_at(self, end_lsn: Lsn) -> CopyState | None:
        """Return the state that applies when the server sends nothing below `end_lsn` any more, None if none does.

        As long as the stream is at the point of copied rows, further rows continue their numbers.
        """
        floors = {relid: lsn for relid, lsn in self.floors.items() if lsn > end_lsn}
        is_copying = self.pending or self.tables or self.blocking
        if not is_copying and not floors and self.signals_at < 0 and self.point_lsn < end_lsn:
            left = CopyState(partial=self.partial)
            return None if not self.partial else self if self == left else left
        return self if len(floors) == len(self.floors) else replace(self, floors=floors)


@dataclass(frozen=True, slots=True)
class Progress:
    """The position that one Kafka transaction made durable: the value of the progress record.

    `end_lsn` is the LSN that may be confirmed to PostgreSQL. `commit_lsn` is that of the last transaction written
    (transactions with a commit LSN up to it are dropped on replay, F4), `commit_us` its commit time, 0 if unknown: no
    later transaction committed before `commit_us`. `phase` is "snapshot" while the initial snapshot is incomplete,
    else "streaming". `offsets` maps topic -> partition -> next offset for the partitions that this Kafka transaction
    wrote to. `snapshot_tables` are the topics that an incomplete snapshot has begun to write. `prepared_before` is
    passed on to every later session until its transactions are decided. `part`: a part of the next transaction is
    written as well. `gap`: the next session records the gap in the topics before anything else.
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
    """The offset, in the same topic, of the record of the topic identities; -1 if there is none."""
    copy: CopyState | None = None
    """The state of a snapshot; None in a record of a version that copies all tables again after an interruption."""
    transactional_id: str = ""
    """The id of the producer that wrote the record, "" without one: a session with another id fences it too (F69)."""
    signals_at: int = -1
    """As in `CopyState`, in a record of a snapshot of which nothing is copied yet; -1 in all others."""
    copies_noted: int = 0
    """As in `CommitPosition`; not written."""

    @property
    def next_signal(self) -> int:
        """The offset of the next signal in its topic, -1 if it is not known."""
        return max(self.signals_at, -1 if self.copy is None else self.copy.signals_at)

    @property
    def written_lsn(self) -> Lsn:
        """The highest commit LSN in a topic: of a complete transaction, one written in part, or copied rows."""
        part_lsn = 0 if self.part is None else self.part.commit_lsn
        return max(self.commit_lsn, part_lsn, 0 if self.copy is None else self.copy.point_lsn - 1)
