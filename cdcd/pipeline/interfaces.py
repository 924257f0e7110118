"""What the pump uses: plans, the writer, counters, the memory budget.

Invariant: the pump and the encoder of its events have no other way to a server or to Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from cdcd.ack.group import Chunk, CommitPosition
from cdcd.avro.encode import EncodedTransactions
from cdcd.avro.plan import RelationPlan
from cdcd.avro.transaction import TransactionContext
from cdcd.lsn import Lsn
from cdcd.model import Record, Relation, TransactionInfo
from cdcd.txn.events import LogicalMessage
from cdcd.txn.lookahead import Lookahead

__all__ = ["Buffers", "Counts", "NewContext", "Output", "Plans"]

NewContext = Callable[[TransactionInfo], TransactionContext]


class Plans(Protocol):
    """The plans, one for each relation that the server has described."""

    by_relid: dict[int, RelationPlan]

    def describe(self, relation: Relation) -> None: ...  # noqa: D102
    async def ready(self, relids: Iterable[int]) -> None: ...  # noqa: D102
    def has_prepared(self, relids: Iterable[int]) -> bool: ...  # noqa: D102
    async def prepare(self, ahead: Lookahead) -> None: ...  # noqa: D102
    async def logical_message(self, message: LogicalMessage, tx: TransactionContext | None) -> Record: ...  # noqa: D102
    async def metadata(self, tx: TransactionContext, *, is_end: bool) -> Record: ...  # noqa: D102


class Output(Protocol):
    """The consumer of the chunks: the writer."""

    async def add(self, chunk: Chunk) -> None: ...  # noqa: D102
    def idle(self, commit_position: CommitPosition, *, is_urgent: bool) -> None: ...  # noqa: D102


class Counts(Protocol):
    """Receives the pump's reports, one for each event."""

    def relation(self, relid: int, table: str) -> None: ...  # noqa: D102
    def began(self, commit_us: int) -> None: ...  # noqa: D102
    def rows_encoded(self, operations: Mapping[tuple[int, int], int]) -> None: ...  # noqa: D102
    def truncated(self, table: str) -> None: ...  # noqa: D102
    def ended(self, end_lsn: Lsn, *, is_empty: bool) -> None: ...  # noqa: D102
    def whole(self, encoded: EncodedTransactions) -> None: ...  # noqa: D102
    def duplicates(self, count: int) -> None: ...  # noqa: D102


class Buffers(Protocol):
    """The memory budget of open transactions."""

    @property
    def is_over(self) -> bool: ...  # noqa: D102
    async def relieve(self) -> None: ...  # noqa: D102
