"""The latency of a row with a broker and a producer alone: the lower bound for every reader of PostgreSQL.

In: a broker's address, a `Way` to write, seconds.  Out: `Floor`.
Rows arrive at a rate; each Kafka transaction takes the arrived rows, in the order of cdcd's sink: the rows and the
record that adds the progress topic, then the progress record. A row's latency is from its arrival to the return of
the commit; it excludes the consumer.
Invariant: a read_committed reader finds each counted row once; otherwise the run is an error and has no result.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from cdcd.ack.wait_policy import JOINING
from cdcd.errors import StackError
from cdcd.pipeline.writer import COMMIT_COOLDOWN_US
from cdcd.sink.settings import PRODUCER_DEFAULTS
from tests.bench.kafka import count_committed, delete_topics
from tests.bench.latency import quantile

PREFIX = "bench-floor."
ROWS, PROGRESS = f"{PREFIX}rows", f"{PREFIX}progress"
PARTITIONS = 4
ROW, RECORD = b"x" * 200, b"x" * 400
"""About the size of a row of ten columns, and of a progress record."""
WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Way:
    """`producers` take turns, each with a Kafka transaction of its own; 0: one producer, without transactions.

    `join_wait_us`: how long a transaction accepts more rows after its first ones.
    """

    name: str
    producers: int
    join_wait_us: int = 0


WAYS = (
    Way("one producer", 1, JOINING.join_us),
    Way("one producer, at once", 1),
    Way("two in turn", 2),
    Way("no transactions", 0),
)
"""Two producers: one sends while the other commits; commits are in order."""


@dataclass(frozen=True, slots=True)
class FloorCase:
    """One case: a number of rows per second."""

    name: str
    about: str
    per_second: int
    is_long: bool = False


FLOORS = {
    case.name: case
    for case in (FloorCase("latency-floor", "a producer and a broker alone, 1,000 rows/s", 1_000),)
}


@dataclass(frozen=True, slots=True)
class Floor:
    """The result of one way to write; milliseconds from a row's arrival."""

    case: str
    way: str
    rows: int
    commits_per_second: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float

    def document(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return asdict(self)


def measure_floor(bootstrap: str, case: FloorCase, way: Way, seconds: int, warm_up_s: int) -> Floor:
    """Write at the rate for `seconds`, after `warm_up_s` without measurement. Raises StackError."""
    with _topics(bootstrap):
        producers = [_producer(bootstrap, number, way) for number in range(max(way.producers, 1))]
        warm, _ = _written(producers, way, case.per_second, warm_up_s)
        late_ms, commits = _written(producers, way, case.per_second, seconds)
        rows = len(warm) + len(late_ms)
        found = count_committed(bootstrap, [ROWS], rows)
        if found != rows:
            raise StackError("the number of records read is not the number written", written=rows, read=found)
    late_ms.sort()
    return Floor(
        case=case.name,
        way=way.name,
        rows=len(late_ms),
        commits_per_second=round(commits / seconds, 1),
        p50_ms=quantile(late_ms, 0.5),
        p95_ms=quantile(late_ms, 0.95),
        p99_ms=quantile(late_ms, 0.99),
        max_ms=late_ms[-1],
    )


class Arrivals:
    """Rows that arrive one by one, evenly, from `begin_s` on."""

    def __init__(self, per_second: int, begin_s: float) -> None:
        self._per_second, self._begin_s = per_second, begin_s
        self._taken = 0

    def next_s(self) -> float:
        """Return the arrival time of the next row that was not taken."""
        return self._begin_s + self._taken / self._per_second

    def take(self, now_s: float) -> range:
        """Take all arrived rows and return their numbers."""
        arrived = max(math.floor((now_s - self._begin_s) * self._per_second) + 1, self._taken)
        rows, self._taken = range(self._taken, arrived), arrived
        return rows

    def late_ms(self, rows: Sequence[int], now_s: float) -> list[float]:
        """Return the time since each row's arrival, in milliseconds."""
        return [(now_s - self._begin_s - row / self._per_second) * 1000 for row in rows]


def _written(
    producers: Sequence[Producer], way: Way, per_second: int, seconds: int
) -> tuple[list[float], int]:
    """Return the latency of each row, and the number of Kafka transactions."""
    arrivals = Arrivals(per_second, time.monotonic())
    end_s = time.monotonic() + seconds
    late_ms: list[float] = []
    under_way: list[Future[list[float]] | None] = [None] * len(producers)
    with ThreadPoolExecutor(1) as commits:  # one commit at a time, so commits are in order
        for number in itertools.count():
            at = number % len(producers)
            late_ms += _done(under_way[at])
            time.sleep(max(0.0, arrivals.next_s() - time.monotonic()))
            if time.monotonic() >= end_s:
                break
            rows = _handed_over(producers[at], way, arrivals)
            under_way[at] = commits.submit(_commit, producers[at], way, arrivals, rows)
        for other in range(1, len(producers)):
            late_ms += _done(under_way[(at + other) % len(producers)])
    return late_ms, number


def _done(commit: Future[list[float]] | None) -> list[float]:
    return [] if commit is None else commit.result()


def _handed_over(producer: Producer, way: Way, arrivals: Arrivals) -> list[int]:
    """Produce the arrived rows, and those that arrive during the wait for more; return the rows' numbers."""
    if way.producers:
        producer.begin_transaction()
    rows = _produced(producer, arrivals)
    if way.producers:
        producer.produce(PROGRESS, None, b"joining", 0)
        if way.join_wait_us:
            time.sleep(way.join_wait_us / 1e6)
            rows += _produced(producer, arrivals)
        _flush(producer)
        producer.produce(PROGRESS, RECORD, b"progress", 0)
    return rows


def _produced(producer: Producer, arrivals: Arrivals) -> list[int]:
    rows = list(arrivals.take(time.monotonic()))
    for row in rows:
        producer.produce(ROWS, ROW, b"%d" % row, row % PARTITIONS)
    return rows


def _commit(producer: Producer, way: Way, arrivals: Arrivals, rows: Sequence[int]) -> list[float]:
    if way.producers:
        producer.commit_transaction(WITHIN_S)
    else:
        _flush(producer)
    late_ms = arrivals.late_ms(rows, time.monotonic())
    if way.producers == 1:
        time.sleep(COMMIT_COOLDOWN_US / 1e6)
    return late_ms


def _flush(producer: Producer) -> None:
    if left := producer.flush(WITHIN_S):
        raise StackError(f"{left} records were not delivered in time")


def _producer(bootstrap: str, number: int, way: Way) -> Producer:
    properties = {
        **PRODUCER_DEFAULTS,
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "enable.idempotence": True,
    }
    if not way.producers:
        return Producer(properties)
    producer = Producer({**properties, "transactional.id": f"{PREFIX}{number}"})
    producer.init_transactions(WITHIN_S)
    return producer


@contextlib.contextmanager
def _topics(bootstrap: str) -> Iterator[None]:
    topics = [NewTopic(ROWS, PARTITIONS, 1), NewTopic(PROGRESS, 1, 1)]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics(topics).values():
        future.result(WITHIN_S)
    try:
        yield
    finally:
        delete_topics(bootstrap, PREFIX)
