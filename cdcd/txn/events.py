"""The events that the assembler yields, in commit order.

Each transaction is TransactionBegun, then any of RelationSeen, TypeSeen, Rows, Truncated and transactional
LogicalMessages, then TransactionCommitted; live and replayed transactions look the same.
A replay may also yield Skipped, which has no effect.
Outside transactions there are only non-transactional LogicalMessages, and the RelationSeens of prepared
transactions: the server does not repeat them for other transactions.
Invariant: a RelationSeen precedes the first row that it describes, and applies until the next of its relid.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdcd.lsn import Lsn
from cdcd.model import FLUSH_PREFIX, HEARTBEAT_PREFIX, VERIFY_PREFIX, Relation, RowBatch, TransactionInfo


@dataclass(frozen=True, slots=True)
class TransactionBegun:
    """A committed transaction starts; `info` already has the origin, if the transaction has one (F52)."""

    info: TransactionInfo


@dataclass(frozen=True, slots=True)
class RelationSeen:
    """The following rows of this relid have these columns; `lsn` may be 0 (F5)."""

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
    """A batch of row frames, not decoded."""

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
    """A message that `pg_logical_emit_message` wrote; `lsn` is the message's own."""

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes

    @property
    def is_own(self) -> bool:
        """Whether cdcd wrote the message itself: it is not data (F12). Of a heartbeat only the prefix counts."""
        if self.transactional:
            return self.prefix == FLUSH_PREFIX and not self.content
        return self.prefix == HEARTBEAT_PREFIX or self.is_of_comparison

    @property
    def is_of_comparison(self) -> bool:
        """Whether `cdcd verify` wrote the message, and waits until its place is confirmed."""
        return not self.transactional and self.prefix == VERIFY_PREFIX and not self.content


@dataclass(frozen=True, slots=True)
class TransactionCommitted:
    """The transaction is complete; `end_lsn` may be confirmed once the transaction is durable (F2)."""

    info: TransactionInfo
    end_lsn: Lsn


@dataclass(frozen=True, slots=True)
class Skipped:
    """No event: a replay skips many rolled-back items, and returns this so that other tasks can run."""


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
