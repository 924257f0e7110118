"""What the pump uses: plans, the writer, counters, the memory budget. What the writer uses: the sink, an observer.

Invariant: the pump, the encoder of its events and the writer have no other way to a server or to Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from cdcd.ack.group import CommitPosition, RecordChunk
from cdcd.avro.encode import EncodedTransactions
from cdcd.avro.plan import RelationPlan
from cdcd.avro.transaction import TransactionContext
from cdcd.errors import RecordTooLarge
from cdcd.lsn import Lsn
from cdcd.model import Progress, Record, Relation, TransactionInfo
from cdcd.txn.events import LogicalMessage
from cdcd.txn.lookahead import Lookahead

__all__ = [
    "Buffers",
    "Counts",
    "NewContext",
    "Observer",
    "Output",
    "PendingSchemas",
    "Plans",
    "Sink",
    "TooLarge",
]

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

    async def add(self, chunk: RecordChunk) -> None: ...  # noqa: D102
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


class Sink(Protocol):
    """The sink, as the writer uses it. `by_partition` groups a chunk's records by partition, each in its order."""

    def begin(self) -> None: ...  # noqa: D102
    def by_partition(self, records: Sequence[Record]) -> Sequence[Record]: ...  # noqa: D102
    def produce(self, records: Sequence[Record], start: int) -> int: ...  # noqa: D102
    def poll(self, timeout_s: float) -> None: ...  # noqa: D102
    def send_now(self, timeout_s: float) -> None: ...  # noqa: D102
    def commit_soon(self) -> None: ...  # noqa: D102
    def commit(self, progress: Progress) -> Progress: ...  # noqa: D102
    @property
    def renewal_reason(self) -> str: ...  # noqa: D102
    def renew_epoch(self) -> None: ...  # noqa: D102
    def abort(self) -> None: ...  # noqa: D102


class PendingSchemas(Protocol):
    """Schemas of the schema topic that have to be written before the records that use them."""

    @property
    def is_waiting(self) -> bool: ...  # noqa: D102
    def announce(self) -> None: ...  # noqa: D102
    def decided(self) -> None: ...  # noqa: D102


class TooLarge(Protocol):
    """Handles a record that is larger than Kafka accepts (F65)."""

    def instead_of(self, record: Record, refusal: RecordTooLarge, commit_lsn: Lsn) -> list[Record]: ...  # noqa: D102
    def after_commit(self) -> None: ...  # noqa: D102


class Observer(Protocol):
    """Receives the writer's reports, one for each group. `given_up`: the group was aborted.

    `unseen`: the offset after the group's last record, by topic and partition, if a reader gets the records only when
    the markers of the Kafka transaction are written, which may be after the commit.
    `at_rest`: no record before the position is left to become durable, also if the position itself is not stored.
    """

    def committed(  # noqa: D102
        self,
        commit_position: CommitPosition,
        *,
        rows: int,
        transactions: int,
        seconds: float,
        unseen: Mapping[str, Mapping[int, int]],
    ) -> None: ...
    def at_rest(self, commit_position: CommitPosition) -> None: ...  # noqa: D102
    def given_up(self) -> None: ...  # noqa: D102
    def epoch_renewed(self, renewal_reason: str, seconds: float) -> None: ...  # noqa: D102
    def waiting(self, size_bytes: int, *, is_blocked: bool) -> None: ...  # noqa: D102
