"""The message table of pgoutput, protocol versions 1 to 4.

Each message is a dataclass whose annotations define, in wire order, the wire kind of every field after the type byte;
each row of `MESSAGES` adds the type byte, the documented name and the first protocol version.
Source: "Logical Replication Message Formats" in PostgreSQL's documentation. Values stay in wire form: times
are microseconds since 2000-01-01 UTC, an empty namespace stays empty (it means pg_catalog).
Invariant: a field that is not annotated here exists neither for the reader nor for the writer.
Must not: parse or write bytes.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from typing import Annotated, get_args, get_type_hints

from cdcd.lsn import Lsn as LsnNumber


class WireFormat(enum.Enum):
    """The format of a field on the wire, in the terms of PostgreSQL's documentation."""

    ZERO = "Int8(0), unused flags"
    FLAG = "Int8, 0 or 1"
    TRUNCATE_OPTIONS = "Int8, 1 CASCADE, 2 RESTART IDENTITY"
    IDENTITY = "Int8, relreplident"
    OID = "Int32 (Oid)"
    XID = "Int32 (TransactionId)"
    TYPMOD = "Int32 (atttypmod)"
    LSN = "Int64 (XLogRecPtr)"
    TIME = "Int64 (TimestampTz)"
    STRING = "String"
    CONTENT = "Int32, Byten"
    RELID_COUNT = "Int32, number of relations"
    RELIDS = "Int32 (Oid), repeated"
    COLUMNS = "Int16, then each column"
    NEW_TUPLE = "Byte1('N'), TupleData"
    OLD_TUPLE = "Byte1('K' or 'O'), TupleData"
    OPTIONAL_OLD_TUPLE = "nothing, or Byte1('K' or 'O'), TupleData"


class When(enum.Enum):
    """The condition under which a field is on the wire."""

    ALWAYS = "always"
    IN_STREAM = "only inside a stream segment, since version 2"
    PARALLEL = "only with streaming parallel, since version 4"


@dataclass(frozen=True, slots=True)
class Wire:
    """The annotation of a field."""

    kind: WireFormat
    when: When = When.ALWAYS


Zero = Annotated[int, Wire(WireFormat.ZERO)]
Flag = Annotated[bool, Wire(WireFormat.FLAG)]
Oid = Annotated[int, Wire(WireFormat.OID)]
Xid = Annotated[int, Wire(WireFormat.XID)]
StreamXid = Annotated[int | None, Wire(WireFormat.XID, When.IN_STREAM)]
Lsn = Annotated[LsnNumber, Wire(WireFormat.LSN)]
Time = Annotated[int, Wire(WireFormat.TIME)]
ParallelLsn = Annotated[LsnNumber | None, Wire(WireFormat.LSN, When.PARALLEL)]
ParallelTime = Annotated[int | None, Wire(WireFormat.TIME, When.PARALLEL)]
String = Annotated[str, Wire(WireFormat.STRING)]

# --- message parts ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TupleColumn:
    """One value: kind `b"n"` NULL, `b"u"` unchanged TOAST, `b"t"` text, `b"b"` binary. None for n and u."""

    kind: bytes
    value: bytes | None = None


NULL = TupleColumn(b"n")
UNCHANGED = TupleColumn(b"u")


def text(value: bytes) -> TupleColumn:
    """Return a value in text format."""
    return TupleColumn(b"t", value)


def binary(value: bytes) -> TupleColumn:
    """Return a value in binary format."""
    return TupleColumn(b"b", value)


@dataclass(frozen=True, slots=True)
class TupleData:
    """The values of one tuple, in the order of the Relation message's columns."""

    columns: tuple[TupleColumn, ...]


@dataclass(frozen=True, slots=True)
class OldTuple:
    """The tuple before an Update or Delete: marker `b"K"` key columns only, `b"O"` the whole row (F45)."""

    marker: bytes
    data: TupleData


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """One column of a Relation message."""

    is_key: Flag
    name: String
    type_oid: Oid
    typmod: Annotated[int, Wire(WireFormat.TYPMOD)]


# --- messages -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """Start of a transaction that has committed; `final_lsn` is its commit record."""

    final_lsn: Lsn
    commit_pg_us: Time
    xid: Xid


@dataclass(frozen=True, slots=True)
class Message:
    """A message that `pg_logical_emit_message` wrote."""

    xid: StreamXid = field(default=None, kw_only=True)
    transactional: Flag
    lsn: Lsn
    prefix: String
    content: Annotated[bytes, Wire(WireFormat.CONTENT)]


@dataclass(frozen=True, slots=True)
class Commit:
    """End of the transaction that Begin started."""

    flags: Zero = field(default=0, kw_only=True)
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_pg_us: Time


@dataclass(frozen=True, slots=True)
class Origin:
    """The replication origin of the transaction; the LSN is 0 inside a stream segment."""

    commit_lsn: Lsn
    name: String


@dataclass(frozen=True, slots=True)
class Relation:
    """The columns of a table in the following rows; the wire form of `model.Relation`."""

    xid: StreamXid = field(default=None, kw_only=True)
    relid: Oid
    namespace: String
    name: String
    identity: Annotated[str, Wire(WireFormat.IDENTITY)]
    columns: Annotated[tuple[RelationColumn, ...], Wire(WireFormat.COLUMNS)]


@dataclass(frozen=True, slots=True)
class Type:
    """The name of a type that is not built in (F44)."""

    xid: StreamXid = field(default=None, kw_only=True)
    type_oid: Oid
    namespace: String
    name: String


@dataclass(frozen=True, slots=True)
class Insert:
    """One inserted row."""

    xid: StreamXid = field(default=None, kw_only=True)
    relid: Oid
    new: Annotated[TupleData, Wire(WireFormat.NEW_TUPLE)]


@dataclass(frozen=True, slots=True)
class Update:
    """One updated row; `old` only if the key changed or the replica identity is FULL."""

    xid: StreamXid = field(default=None, kw_only=True)
    relid: Oid
    old: Annotated[OldTuple | None, Wire(WireFormat.OPTIONAL_OLD_TUPLE)]
    new: Annotated[TupleData, Wire(WireFormat.NEW_TUPLE)]


@dataclass(frozen=True, slots=True)
class Delete:
    """One deleted row."""

    xid: StreamXid = field(default=None, kw_only=True)
    relid: Oid
    old: Annotated[OldTuple, Wire(WireFormat.OLD_TUPLE)]


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncated relations (F51). `relid_count` is a separate field because it precedes the options on the wire."""

    xid: StreamXid = field(default=None, kw_only=True)
    relid_count: Annotated[int, Wire(WireFormat.RELID_COUNT)] = field(init=False)
    options: Annotated[int, Wire(WireFormat.TRUNCATE_OPTIONS)]
    relids: Annotated[tuple[int, ...], Wire(WireFormat.RELIDS)]

    def __post_init__(self) -> None:
        object.__setattr__(self, "relid_count", len(self.relids))

    @property
    def cascade(self) -> bool:
        """Whether TRUNCATE had the option CASCADE."""
        return bool(self.options & 1)

    @property
    def restart_identity(self) -> bool:
        """Whether TRUNCATE had the option RESTART IDENTITY."""
        return bool(self.options & 2)


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Start of one segment of an in-progress transaction."""

    xid: Xid
    is_first_segment: Flag


@dataclass(frozen=True, slots=True)
class StreamStop:
    """End of the segment that Stream Start opened."""


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """Commit of a transaction that was sent in segments."""

    xid: Xid
    flags: Zero = field(default=0, kw_only=True)
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_pg_us: Time


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """Abort of a streamed transaction, or of its subtransaction if `subxid` differs from `xid` (F26)."""

    xid: Xid
    subxid: Xid
    abort_lsn: ParallelLsn = None
    abort_pg_us: ParallelTime = None


@dataclass(frozen=True, slots=True)
class BeginPrepare:
    """Start of a prepared transaction."""

    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_pg_us: Time
    xid: Xid
    gid: String


@dataclass(frozen=True, slots=True)
class Prepare:
    """End of the prepared transaction that Begin Prepare started."""

    flags: Zero = field(default=0, kw_only=True)
    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_pg_us: Time
    xid: Xid
    gid: String


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    """COMMIT PREPARED of a transaction that was sent before."""

    flags: Zero = field(default=0, kw_only=True)
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_pg_us: Time
    xid: Xid
    gid: String


@dataclass(frozen=True, slots=True)
class RollbackPrepared:
    """ROLLBACK PREPARED of a transaction that was sent before, or never (F34)."""

    flags: Zero = field(default=0, kw_only=True)
    prepare_end_lsn: Lsn
    rollback_end_lsn: Lsn
    prepare_pg_us: Time
    rollback_pg_us: Time
    xid: Xid
    gid: String


@dataclass(frozen=True, slots=True)
class StreamPrepare:
    """PREPARE of a transaction that was sent in segments."""

    flags: Zero = field(default=0, kw_only=True)
    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_pg_us: Time
    xid: Xid
    gid: String


AnyMessage = (
    Begin
    | Message
    | Commit
    | Origin
    | Relation
    | Type
    | Insert
    | Update
    | Delete
    | Truncate
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
    | BeginPrepare
    | Prepare
    | CommitPrepared
    | RollbackPrepared
    | StreamPrepare
)

# --- the table ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FieldFormat:
    """One field of a message or column, from its annotation."""

    name: str
    wire: Wire
    is_derived: bool


def fields_of(cls: type) -> tuple[FieldFormat, ...]:
    """Return the wire fields of a message or column class, in wire order."""
    hints = get_type_hints(cls, include_extras=True)
    return tuple(
        FieldFormat(one.name, get_args(hints[one.name])[-1], not one.init) for one in dataclasses.fields(cls)
    )


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """One row of the table: type byte, documented name, class, first version, fields in wire order."""

    type_byte: int
    name: str
    cls: type[AnyMessage]
    since_version: int
    fields: tuple[FieldFormat, ...]


def _row(letter: bytes, name: str, cls: type[AnyMessage], since_version: int) -> MessageFormat:
    return MessageFormat(letter[0], name, cls, since_version, fields_of(cls))


ROWS = (
    _row(b"B", "Begin", Begin, 1),
    _row(b"M", "Message", Message, 1),
    _row(b"C", "Commit", Commit, 1),
    _row(b"O", "Origin", Origin, 1),
    _row(b"R", "Relation", Relation, 1),
    _row(b"Y", "Type", Type, 1),
    _row(b"I", "Insert", Insert, 1),
    _row(b"U", "Update", Update, 1),
    _row(b"D", "Delete", Delete, 1),
    _row(b"T", "Truncate", Truncate, 1),
    _row(b"S", "Stream Start", StreamStart, 2),
    _row(b"E", "Stream Stop", StreamStop, 2),
    _row(b"c", "Stream Commit", StreamCommit, 2),
    _row(b"A", "Stream Abort", StreamAbort, 2),
    _row(b"b", "Begin Prepare", BeginPrepare, 3),
    _row(b"P", "Prepare", Prepare, 3),
    _row(b"K", "Commit Prepared", CommitPrepared, 3),
    _row(b"r", "Rollback Prepared", RollbackPrepared, 3),
    _row(b"p", "Stream Prepare", StreamPrepare, 3),
)

RELATION_COLUMN_FIELDS = fields_of(RelationColumn)
"""The fields of one column inside a Relation message."""

MESSAGES = {row.type_byte: row for row in ROWS}
"""The table by type byte."""

FORMAT_OF = {row.cls: row for row in ROWS}
"""The table by class."""


def is_present(when: When, *, in_stream: bool, protocol_version: int, streaming_parallel: bool) -> bool:
    """Return whether a field with this condition is on the wire of a session with these properties."""
    if when is When.IN_STREAM:
        return in_stream and protocol_version >= 2
    if when is When.PARALLEL:
        return streaming_parallel and protocol_version >= 4
    return True
