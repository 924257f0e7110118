"""A model of Kafka: the transactions of one transactional id, their durable part, and faults.

In: the calls of `pipeline.writer.Writer`, a seeded `random.Random`.  Out: `Kafka`: complete transactions in the order
in which they became durable, and the last progress record.
Faults: the queue accepts only a part of the records; a record or a transaction is refused, and the transaction is
aborted; the result of a commit is unknown (F76), or the commit happens after its process has died; an older process
continues after a newer one has started (F64), and is refused; a commit request is sent twice, and the first one
arrives while a later transaction is open (F77), which it ends if the epochs are equal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from cdcd.ack.group import CommitPosition
from cdcd.errors import CdcdError, SinkFenced, SinkUnavailable
from cdcd.model import Progress, TransactionInfo

MessageFields = tuple[object, ...]
LOOSE = None
"""Instead of the transaction, for messages outside of one."""


@dataclass
class Kafka:
    """The durable transactions. `ends`: all stored positions; the slot may be at any of them."""

    transactions: list[tuple[MessageFields, list[MessageFields]]] = field(default_factory=list)
    loose: list[object] = field(default_factory=list)
    progress: CommitPosition = field(default_factory=lambda: CommitPosition(0, 0, 0))
    ends: list[int] = field(default_factory=lambda: [0])
    commit_lsns: set[object] = field(default_factory=set)
    epoch: int = 0
    in_flight: Callable[[], None] | None = None
    """The last commit request of a process that has ended."""
    late_epoch: int | None = None
    """The epoch of a duplicate commit request that has not arrived, although its transaction is committed."""
    late_requests: int = 0
    """The number of duplicate requests that arrived while a transaction was open."""

    def initialise(self, random: Random) -> int:
        """Start a new producer, which decides the last commit request before; return the new epoch."""
        in_flight, self.in_flight = self.in_flight, None
        if in_flight is not None and random.random() < 0.5:
            in_flight()
        self.epoch += 1
        return self.epoch

    def late_arrives(self, records: Sequence[Any]) -> bool:
        """Let the duplicate request arrive. Return whether it ends the open transaction, which has these records."""
        epoch, self.late_epoch = self.late_epoch, None
        self.late_requests += epoch is not None
        if epoch != self.epoch:
            return False
        begun: set[object] = set()
        for info, change in records:
            if info is not LOOSE:
                self._take(info, change, begun)
        return True

    def commit(self, records: Sequence[Any], progress: CommitPosition) -> None:
        """Commit a Kafka transaction: complete PostgreSQL transactions, maybe a part of one, a progress record."""
        assert progress.end_lsn >= self.progress.end_lsn, "the stored position moves back (F3)"
        begun: set[object] = set()
        for info, change in records:
            if info is LOOSE:
                self.loose.append(change)
            else:
                self._take(info, change, begun)
                part = progress.part is not None and info.commit_lsn == progress.part.commit_lsn
                assert part or info.commit_lsn <= progress.commit_lsn, (
                    "the last transaction is incomplete, but not marked as a part"
                )
        if progress.part is not None:
            (_, last_lsn, _), changes = self.transactions[-1]
            assert last_lsn == progress.part.commit_lsn, (
                "a part belongs to a transaction that is not the last"
            )
            assert len(changes) == progress.part.tx_seq, "the number of written changes differs from tx_seq"
        self.progress = progress
        self.ends.append(progress.end_lsn)

    def _take(self, info: TransactionInfo, change: MessageFields, begun: set[object]) -> None:
        begun_before = self.progress.part is not None and self.progress.part.commit_lsn == info.commit_lsn
        if info.commit_lsn not in begun and not begun_before:
            assert info.commit_lsn not in self.commit_lsns, "a transaction is repeated or split"
            begun.add(info.commit_lsn)
            self.commit_lsns.add(info.commit_lsn)
            self.transactions.append(((info.xid, info.commit_lsn, info.origin), []))
        self.transactions[-1][1].append(change)


@dataclass(frozen=True)
class Odds:
    """The probability of each fault, and the duration of a commit."""

    refused: float = 0.0
    aborted: float = 0.0
    unknown: float = 0.0
    twice: float = 0.0
    commit_s: float = 0.0

    @classmethod
    def of(cls, random: Random) -> Odds:
        """Return random odds; most sessions have no faults of Kafka."""
        commit_s = random.choice([0.0, 0.001, 0.02])
        if random.random() < 0.6:
            return cls(commit_s=commit_s)
        return cls(*(random.choice([0.0, 0.02, 0.2]) for _ in range(4)), commit_s=commit_s)


class Sink:
    """One producer epoch, as `pipeline.writer` sees it."""

    def __init__(self, kafka: Kafka, random: Random, odds: Odds) -> None:
        self._kafka = kafka
        self._random = random
        self._odds = odds
        self._epoch = kafka.initialise(random)
        self._open: list[Any] | None = None
        self._torn: SinkUnavailable | None = None
        self.renewal_reason = ""
        self.committing: Callable[..., None] | None = None
        """The function that the writer calls to commit."""

    def begin(self) -> None:
        """Begin a Kafka transaction."""
        assert self._open is None, "a transaction within another"
        self._open = []

    def by_partition(self, records: Sequence[Any]) -> Sequence[Any]:
        """Return the records: there is one partition."""
        return records

    def produce(self, records: Sequence[Any], start: int) -> int:
        """Accept some or all of the records."""
        opened = self._usable()
        if self._random.random() < self._odds.refused:
            raise SinkUnavailable("a record is refused")
        taken = records[start : start + self._random.choice([1, 5, 1000])]
        opened += taken
        self._meet_late(opened)
        return start + len(taken)

    def _meet_late(self, records: Sequence[Any]) -> None:
        if self._kafka.late_epoch is None or self._random.random() < 0.5:
            return
        if self._kafka.late_arrives(records):
            self._torn = SinkUnavailable("the transaction is in another state")
            raise self._torn

    def poll(self, _timeout_s: float) -> None:
        """Do nothing: there are no delivery reports."""

    def send_now(self, _timeout_s: float) -> None:
        """Do nothing: accepted records are already sent."""

    def commit_soon(self) -> None:
        """Do nothing: no request has to be sent before a commit."""

    def commit(self, progress: Progress) -> Progress:
        """Commit the transaction, abort it, or raise because the result is unknown."""
        records, commit_position = self._usable(), progress.commit_position  # type: ignore[attr-defined]
        if self._epoch != self._kafka.epoch:
            raise SinkFenced("a newer process has started")
        if self._random.random() < self._odds.aborted:
            raise SinkUnavailable("the transaction is aborted")
        self._meet_late(records)
        is_unknown = self._random.random() < self._odds.unknown
        if not is_unknown or self._random.random() < 0.5:
            self._kafka.commit(records, commit_position)
        if is_unknown:
            self._torn = SinkUnavailable("the result of the commit is unknown")
            raise self._torn
        self._open = None
        if self._random.random() < self._odds.twice:
            self._kafka.late_epoch, self.renewal_reason = self._epoch, "the request was sent twice"
        return progress

    def renew_epoch(self) -> None:
        """Renew the producer epoch between two transactions."""
        assert self._open is None, "the epoch is renewed within a transaction"
        if self._random.random() < self._odds.refused:
            raise SinkUnavailable("no new epoch is available")
        self._epoch, self.renewal_reason = self._kafka.initialise(self._random), ""

    def sent(self, progress: Progress) -> None:
        """Record that the commit request has been sent; its process may end before the response."""
        records, commit_position = list(self._usable()), progress.commit_position  # type: ignore[attr-defined]
        self._kafka.in_flight = lambda: self._kafka.commit(records, commit_position)

    def abort(self) -> None:
        """Abort the open transaction."""
        self._usable()
        self._open = None

    def _usable(self) -> list[Any]:
        if self._torn is not None:
            raise self._torn
        assert self._open is not None, "no transaction is open"
        return self._open

    def start(self, call: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """Instead of a thread, run `call` after a pause of the virtual clock, atomically for all other tasks."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if call == self.committing:
            self.sent(*arguments)

        def happen() -> None:  # an AssertionError ends the loop by `clock`'s exception handler
            if future.cancelled():
                return
            self._kafka.in_flight = None
            try:
                future.set_result(call(*arguments))
            except CdcdError as error:
                future.set_exception(error)
                future.exception()  # the awaiting task may have ended

        loop.call_later(self._random.uniform(0, self._odds.commit_s), happen)
        return future
