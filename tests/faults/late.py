"""Kafka transactions of cdcd's own sink, one request of which arrives late, and what readers see meanwhile.

In: a broker behind a `LateDoor`, the request to hold back and when it arrives.  Out: what read_committed readers saw
wrong: values lost, repeated, torn, early or in another order.
The request's connection is lost: Kafka's client sends the request again over a new connection and continues. After an
error the sink is replaced, as in the daemon: a new one reads back the durable position and writes the rest.
The judge knows the transaction of each value, and nothing about cdcd's implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from cdcd.errors import SinkError
from cdcd.model import Progress, Record
from cdcd.sink.kafka_sink import KafkaSink
from cdcd.sink.settings import SinkSettings
from tests.support.late import Api, LateDoor, WithheldRequest
from tests.support.sinks import make_topics, progress, sink_settings
from tests.support.topics import committed_values
from tests.support.waiting import eventually

TRANSACTIONS = 4
ROWS = 3
MOMENTS = ("at once", "amid", "before its end", "behind its end", "behind the next")
"""When the request arrives: before the first record of the next transaction, after one of its records, after all of
its records, after its commit, after the commit of the transaction that follows it."""
BEFORE_ANY = "before any other"
"""For an aborted transaction: nothing of the next epoch is written yet."""
MOST_SESSIONS = 6


class Unfenced(KafkaSink):
    """A sink without the fix of F77, as Kafka's client alone: it continues under the same producer epoch."""

    def commit(self, progress: Progress) -> Progress:
        """Commit, and do not renew the epoch."""
        done = super().commit(progress)
        self._opened().renewal_reason = ""
        return done

    def abort(self) -> None:
        """Abort, and do not renew the epoch."""
        super().abort()
        self._opened().renewal_reason = ""


@dataclass
class RunResult:
    """The result of a run. `wrong`: what a reader must never see."""

    sessions: int = 1
    renewed: list[int] = field(default_factory=list)
    """The transactions after which the epoch was renewed; a busy machine may add one by a slow commit."""
    answer: bytes = b""
    wrong: list[str] = field(default_factory=list)


class Play:
    """One run: the sink, the doors that hold back a request, and what readers see."""

    def __init__(
        self, bootstrap: str, direct: str, doors: list[LateDoor], sink: type[KafkaSink], *, copies: int = 1
    ) -> None:
        """`bootstrap`: the address behind the doors. `direct`: the readers' address."""
        self._settings: SinkSettings = sink_settings(direct, operation_timeout_s=20.0)
        self._topic = make_topics(self._settings, copies)
        self._settings = replace(self._settings, bootstrap_servers=bootstrap)
        self._direct, self._doors, self._class = direct, doors, sink
        self._sink = sink(self._settings)
        self._withheld_request: WithheldRequest | None = None
        self._committed = 0
        self.seen = RunResult()

    def run(
        self,
        api: Api,
        moment: str,
        *,
        is_abort: bool = False,
        once_withheld: Callable[[], None] = lambda: None,
        before_delivery: Callable[[], None] = lambda: None,
    ) -> RunResult:
        """Hold back the first such request of the first transaction (of the sink's start, for InitProducerId).

        `is_abort`: that transaction is aborted before the others begin.
        """
        self._before_delivery = before_delivery
        self._keep(api, Api.INIT_PRODUCER_ID)
        self._open()
        if is_abort:
            self._give_up(api)
            self._take()
        else:
            self._keep(api, Api.PRODUCE, Api.ADD_PARTITIONS_TO_TXN, Api.END_TXN)
        if moment == BEFORE_ANY:
            self._deliver()
        self._write(1, lambda _moment: None)
        if not is_abort:
            self._take()
        once_withheld()
        due = (3, MOMENTS[-2]) if moment == MOMENTS[-1] else (2, moment)
        for number in range(2, TRANSACTIONS + 1):
            self._write(number, lambda now, at=number: self._deliver() if (at, now) == due else None)
        self._sink.close()
        self._judge_all()
        return self.seen

    # --- the request ---

    def _keep(self, api: Api, *if_one_of: Api) -> None:
        if api in if_one_of:
            for door in self._doors:
                door.keep(api)

    def _take(self) -> None:
        found = [door.withheld_now() for door in self._doors]
        self._withheld_request = next(request for request in found if request is not None)

    def _deliver(self) -> None:
        request, self._withheld_request = self._withheld_request, None
        if request is not None:
            self._before_delivery()
            self.seen.answer = request.deliver()
            self._look()

    def _give_up(self, api: Api) -> None:
        """Write a transaction and abort it; a request of it is held back."""
        self._sink.begin()
        self._sink.produce([Record(self._topic, 0, b"k", b"0.0")], 0)
        self._sink.send_now(10)
        self._keep(api, Api.END_TXN, Api.PRODUCE)
        if api is Api.PRODUCE:
            self._sink.produce([Record(self._topic, 0, b"k", b"0.1")], 0)
            eventually(self._has_sent, "the request has been held back")
        self._sink.abort()
        if self._class is not Unfenced:
            self._open()

    def _has_sent(self) -> bool:
        self._sink.send_now(0.01)
        return any(door.withheld_now() is not None for door in self._doors)

    # --- the daemon's part ---

    def _open(self) -> Progress | None:
        self._sink.close()
        self._sink = self._class(self._settings)
        return self._sink.open()

    def _write(self, number: int, at: Callable[[str], None]) -> None:
        """Write a transaction; after an error, start again from the durable position."""
        at("at once")
        while self._committed < number:
            try:
                self._transaction(self._committed + 1, at)
            except SinkError:
                self._restart()
        at("behind its end")

    def _transaction(self, number: int, at: Callable[[str], None]) -> None:
        self._sink.begin()
        for row in range(ROWS):
            value = f"{number}.{row}".encode()
            assert self._sink.produce([Record(self._topic, 0, b"k", value)], 0) == 1
            self._sink.send_now(10)
            if row == 0:
                at("amid")
        at("before its end")
        self._sink.commit(progress(self._settings.slot, number * 0x100))
        if self._sink.renewal_reason:
            self._sink.renew_epoch()
            self.seen.renewed.append(number)
        self._committed = number
        self._look()

    def _restart(self) -> None:
        self.seen.sessions += 1
        assert self.seen.sessions <= MOST_SESSIONS, "one session after another fails"
        stored = eventually(self._opened, "the broker accepts a new producer")
        durable = 0 if stored[0] is None else stored[0].end_lsn // 0x100
        if durable < self._committed:
            self.seen.wrong.append(f"confirmed early: {self._committed}, durable {durable}")
        self._committed = durable

    def _opened(self) -> tuple[Progress | None] | None:
        try:
            return (self._open(),)
        except SinkError:
            return None

    # --- the readers' ---

    def _values(self) -> list[str]:
        values = committed_values(self._direct, self._topic)
        return [(value or b"").decode() for value in values]

    def _look(self) -> None:
        """Note transactions that are visible in part, or before they were committed."""
        values = self._values()
        for number in {value.split(".")[0] for value in values}:
            rows = [value for value in values if value.startswith(f"{number}.")]
            if len(rows) < ROWS:
                self._note(f"torn: {', '.join(rows)} of transaction {number} alone")
            if int(number) > self._committed:
                self._note(f"seen before it was committed: transaction {number}")

    def _judge_all(self) -> None:
        values = self._values()
        wanted = [f"{number}.{row}" for number in range(1, TRANSACTIONS + 1) for row in range(ROWS)]
        for value in wanted:
            if (times := values.count(value)) != 1:
                self._note(f"{'lost' if not times else 'repeated'}: {value}")
        for value in {"0.0", "0.1"} & set(values):
            self._note(f"aborted, but visible: {value}")
        if sorted(values) == sorted(wanted) and values != wanted:
            self._note("another order")

    def _note(self, what: str) -> None:
        if what not in self.seen.wrong:
            self.seen.wrong.append(what)
