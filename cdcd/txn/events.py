"""What the assembler yields, in commit order.

Each transaction is TransactionBegun, then any of RelationSeen, TypeSeen, Rows, Truncated and transactional
LogicalMessages, then TransactionCommitted; live and replayed transactions look the same.
A replay may hold Skipped as well, which means nothing.
Outside of transactions only non-transactional LogicalMessages come, and the RelationSeens of transactions that
are prepared: the server does not repeat them for others.
Invariant: a RelationSeen precedes the first row that it describes, and holds until the next of its relid.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdcd.lsn import Lsn
from cdcd.model import Relation, RowBatch, TransactionInfo


@dataclass(frozen=True, slots=True)
class TransactionBegun:
    """A committed transaction starts; `info` carries the origin already, where there is one (F52)."""

    info: TransactionInfo


@dataclass(frozen=True, slots=True)
class RelationSeen:
    """The rows that follow of this relid have these columns; `lsn` may be 0 (F5)."""

    relation: Relation
    lsn: Lsn


@dataclass(frozen=True, slots=True)
class TypeSeen:
    """The name of a type that is not built in, as of now (F44)."""

    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch of row frames, not looked into."""

    batch: RowBatch


@dataclass(frozen=True, slots=True)
class Truncated:
    """One TRUNCATE of these relations, in the order of the wire (F51)."""

    relations: tuple[Relation, ...]
    cascade: bool
    restart_identity: bool
    lsn: Lsn


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """What `pg_logical_emit_message` wrote; `lsn` is the message's own."""

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class TransactionCommitted:
    """The transaction is complete; `end_lsn` is what may be confirmed once it is durable (F2)."""

    info: TransactionInfo
    end_lsn: Lsn


@dataclass(frozen=True, slots=True)
class Skipped:
    """Nothing to hand on: a replay is passing over much that was rolled back, so that others may have a turn."""


Event = (
    TransactionBegun
    | RelationSeen
    | TypeSeen
    | Rows
    | Truncated
    | LogicalMessage
    | TransactionCommitted
    | Skipped
)
