"""The rate of an initial snapshot: of the server's COPY alone, of cdcd by its number of connections, of the stream of
the same rows, of Debezium.

In: servers, a case (one table).  Out: `Copied`s, in rounds: each way has its turn in each round.
The rate: it starts when a fifth of the rows is durable, so that start and warm-up count nowhere, and ends when all
are. CPU is that of the same interval, over the same rows. COPY, which writes to a null device, counts whole.
With many tables the time counts from the process's start, with the creation of all topics and schemas.
Invariant: a run with another number of records than the table has rows is an error.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from cdcd.demo.stack.artefacts import Cache
from cdcd.errors import StackError
from tests.bench.backlog import PUBLICATION, Backlog, table_name
from tests.bench.cases import TEN, Case
from tests.bench.kafka import Watermarks, count_committed
from tests.bench.measure import LOOK_S, Meter, Sample, others_share
from tests.bench.peer import Debezium, debezium_artefact
from tests.bench.runners import Cdcd
from tests.bench.servers import Servers
from tests.bench.usage import Cpu
from tests.support.daemon import Daemon

ROWS = 2_000_000
WARM_SHARE = 0.2
STANDSTILL_S = 300.0
COPY, STREAM, PEER = "COPY", "stream", "debezium"
RECEIVER = "receiver"
"""The name by which a meter knows the daemon; those of further daemons begin with it."""
WORKERS = (1, 2, 4)

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class CopyCase:
    """`rows` rows, spread over the tables."""

    name: str
    about: str
    rows: int
    tables: int = 1
    is_long: bool = False
    is_of_processes: bool = False
    """Whether one process that copies all tables is compared with one for each table."""

    def scaled(self, share: float) -> CopyCase:
        """Return the case with a share of the rows."""
        if self.tables > 1 and not self.is_of_processes:
            tables = max(round(self.tables * share), 2)
            return replace(self, tables=tables, rows=tables * self.rows // self.tables)
        return replace(self, rows=max(round(self.rows * share), 1_000))


COPIES = {
    case.name: case
    for case in (
        CopyCase("snapshot", "a snapshot of one table of 10 columns, 4 partitions", ROWS),
        CopyCase(
            "snapshot-processes",
            "a snapshot of two such tables by one process, and by two, each with a slot of its own",
            ROWS,
            tables=2,
            is_long=True,
            is_of_processes=True,
        ),
        CopyCase("snapshot-2000", "the first start with 2,000 tables of 10 rows, 1 partition", 20_000, 2_000),
    )
}


@dataclass(frozen=True, slots=True)
class Copied:
    """One run. CPU in seconds of the server, the receiver (the daemon, Connect) and the broker for `rows` rows."""

    case: str
    way: str
    round: int
    rows: int
    seconds: float
    cpu: dict[str, float]
    peak_memory_bytes: int
    others_share: float

    def document(self) -> dict[str, Any]:
        """Return the run for JSON."""
        return asdict(self)


def measure_copies(
    servers: Servers, case: CopyCase, rounds: int, *, with_peer: bool, say: Callable[[str], None]
) -> Iterator[Copied]:
    """Let each way have its turn, `rounds` times. Raises StackError when a run fails."""
    if case.tables > 1:
        measured = _measured_processes if case.is_of_processes else _measured_whole
        yield from measured(servers, case, rounds, say)
        return
    table = Case(case.name, case.about, TEN, case.rows, 1_000)
    ways = [COPY, *(f"workers={count}" for count in WORKERS), STREAM, *([PEER] if with_peer else [])]
    if with_peer:
        Cache().get(debezium_artefact())
    with Backlog(servers.postgres, table) as backlog:
        backlog.execute(f"VACUUM ANALYZE {table_name(0)}")
        for number, way in itertools.product(range(rounds), ways):
            say(f"{case.name} {way} ...")
            yield _measured(servers, backlog, case, way, number)


def _measured_whole(
    servers: Servers, case: CopyCase, rounds: int, say: Callable[[str], None]
) -> Iterator[Copied]:
    """Measure the snapshot of many tables from the start of the process on."""
    table = Case(
        case.name,
        case.about,
        TEN,
        case.rows,
        case.rows,
        tables=case.tables,
        of_one_table=False,
        partitions=1,
    )
    way = f"workers={WORKERS[1]}"
    with Backlog(servers.postgres, table) as backlog:
        for number in range(rounds):
            with _copying(servers, backlog, way) as daemon:
                assert daemon.process is not None
                meter = Meter(servers, daemon.process.pid)
                begin = meter.sample()
                while not daemon.events("snapshot_completed"):
                    meter.touch()
                    daemon.assert_alive()
                    time.sleep(LOOK_S)
                end = meter.sample()
                topics = [f"{daemon.name}.{suffix}" for suffix in backlog.topic_suffixes()]
                found = count_committed(servers.kafka.bootstrap, topics, case.rows)
            if found != case.rows:
                raise StackError(f"{way} wrote {found} records for {case.rows} rows", case=case.name)
            one = _result(case, way, number, found, begin, end, meter.peak_memory_bytes)
            say(f"{case.name} {way}: {case.tables} tables in {one.seconds:.1f} s")
            yield one


def _measured_processes(
    servers: Servers, case: CopyCase, rounds: int, say: Callable[[str], None]
) -> Iterator[Copied]:
    """Measure one process that copies all tables, and one for each table, in turn."""
    table = Case(case.name, case.about, TEN, case.rows, 1_000, tables=case.tables, of_one_table=False)
    suffixes = [f"public.{table_name(number)}" for number in range(case.tables)]
    with Backlog(servers.postgres, table) as backlog:
        for number in range(case.tables):
            backlog.execute(f"CREATE PUBLICATION {PUBLICATION}_{number} FOR TABLE {table_name(number)}")
            backlog.execute(f"VACUUM ANALYZE {table_name(number)}")
        for number, count in itertools.product(range(rounds), (1, case.tables)):
            say(f"{case.name} processes={count} ...")
            way = f"workers={case.tables // count}"
            names = [PUBLICATION] if count == 1 else [f"{PUBLICATION}_{one}" for one in range(count)]
            with contextlib.ExitStack() as stack:
                daemons = [stack.enter_context(_copying(servers, backlog, way, name)) for name in names]
                owner = daemons * case.tables if count == 1 else daemons
                topics = [f"{one.name}.{suffix}" for one, suffix in zip(owner, suffixes, strict=True)]
                started = [one.process.pid for one in daemons if one.process is not None]
                check = partial(_assert_all_alive, daemons)
                yield _watched(servers, case, f"processes={count}", number, (started, topics, check))


def _assert_all_alive(daemons: Sequence[Daemon]) -> None:
    for daemon in daemons:
        daemon.assert_alive()


@contextlib.contextmanager
def _copying(
    servers: Servers, backlog: Backlog, way: str, publication: str = PUBLICATION
) -> Iterator[Daemon]:
    """Yield a started daemon that copies the tables of a publication first."""
    slot = f"bench_copy_{next(_numbers)}"
    snapshot = {"mode": "initial", "workers": int(way.partition("=")[2])}
    source = {"slot": {"create": True}, "publication": {"names": [publication]}}
    over = {"snapshot": snapshot, "source": source}
    with backlog.dropped_afterwards(slot), Cdcd(way, way, over).daemon(servers, backlog, slot) as daemon:
        yield daemon.start()


def _measured(servers: Servers, backlog: Backlog, case: CopyCase, way: str, number: int) -> Copied:
    if way == COPY:
        meter = Meter(servers, os.getpid())
        begin = meter.sample()
        backlog.execute(f"COPY {table_name(0)} TO '/dev/null'")
        return _result(case, way, number, case.rows, begin, meter.sample(), 0)
    with _started(servers, backlog, way) as started:
        return _watched(servers, case, way, number, started)


Started = tuple[Sequence[int], Sequence[str], Callable[[], object]]
"""The processes, their topics, and a function that raises an error if one has ended."""


@contextlib.contextmanager
def _started(servers: Servers, backlog: Backlog, way: str) -> Iterator[Started]:
    """Start a way."""
    suffix = backlog.topic_suffixes()[0]
    if way == STREAM:
        with backlog.new_slot() as slot, Cdcd(way, way).daemon(servers, backlog, slot) as daemon:
            daemon.start()
            assert daemon.process is not None
            yield [daemon.process.pid], [f"{daemon.name}.{suffix}"], daemon.assert_alive
        return
    if way == PEER:
        slot = f"bench_copy_{next(_numbers)}"
        with (
            backlog.dropped_afterwards(slot),
            Debezium(way, way, {"snapshot.mode": "initial_only"}).run(servers, backlog, slot) as running,
        ):
            yield [running.pid], running.topics[:1], lambda: running.look(0)
        return
    with _copying(servers, backlog, way) as daemon:
        assert daemon.process is not None
        yield [daemon.process.pid], [f"{daemon.name}.{suffix}"], daemon.assert_alive


def _watched(
    servers: Servers,
    case: CopyCase,
    way: str,
    number: int,
    started: Started,
) -> Copied:
    (first, *others), topics, check = started
    meter = Meter(servers, first)
    for other in others:
        meter.watch(f"{RECEIVER} {other}", other)
    with contextlib.closing(Watermarks(servers.kafka.bootstrap, topics)) as watermarks:
        before = _await(watermarks, round(case.rows * WARM_SHARE), meter, check)
        begin = meter.sample()
        _await(watermarks, case.rows, meter, check)
        end = meter.sample()
    found = count_committed(servers.kafka.bootstrap, topics, case.rows)
    if found != case.rows:
        raise StackError(f"{way} wrote {found} records for {case.rows} rows", case=case.name)
    return _result(case, way, number, case.rows - before, begin, end, meter.peak_memory_bytes)


def _await(watermarks: Watermarks, wanted: int, meter: Meter, check: Callable[[], object]) -> int:
    """Wait until this number of records is durable; return their number."""
    last, news_s = 0, time.monotonic()
    while (total := watermarks.total()) < wanted:
        meter.touch()
        check()
        if total > last:
            last, news_s = total, time.monotonic()
        elif time.monotonic() - news_s > STANDSTILL_S:
            raise StackError("no record has become durable for a long time", records=total)
        time.sleep(LOOK_S)
    return total


def _result(
    case: CopyCase, way: str, number: int, rows: int, begin: Sample, end: Sample, peak_memory_bytes: int
) -> Copied:
    spent = {name: (end.cpu[name] - begin.cpu.get(name, Cpu())).total_s for name in end.cpu}
    cpu = {name: spent[name] for name in ("postgres", "broker")}
    if way != COPY:
        cpu[RECEIVER] = sum(seconds for name, seconds in spent.items() if name.startswith(RECEIVER))
    return Copied(
        case=case.name,
        way=way,
        round=number,
        rows=rows,
        seconds=end.at_s - begin.at_s,
        cpu=cpu,
        peak_memory_bytes=peak_memory_bytes,
        others_share=round(others_share(begin, end, os.cpu_count() or 1), 3),
    )
