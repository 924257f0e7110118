"""`make waiters`: many clients wait for LSNs at the same time: when an answer comes, compared with a reader.

In: the number of waiters, transactions per second, seconds.  Out: a table.
Each waiter asks for an LSN that the source reaches within two seconds, and asks for the next one after the answer. A
read_committed consumer of the progress topic, in a thread, notes when a reader saw each LSN as durable.
Invariant: each LSN that was answered was durable at the end of the run, and each waiter has had an answer; otherwise
the run is an error. The consumer and the waiters use the same clock, and the same processors as the servers.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import contextlib
import random
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import aiohttp

from cdcd.demo.stack.accounts import make_run_folder, server_account
from cdcd.errors import StackError
from cdcd.lsn import format_lsn
from tests.bench.backlog import Backlog
from tests.bench.cases import TEN, Case
from tests.bench.kafka import ProgressReader
from tests.bench.latency import Writer, quantile
from tests.bench.runners import Cdcd
from tests.bench.servers import Servers, started
from tests.bench.table import text_table
from tests.bench.usage import cpu_of
from tests.support.daemon import Daemon
from tests.support.waiting import eventually

WAITERS, PER_SECOND, SECONDS, WARM_UP_S = 1_000, 1_000, 30, 30
AHEAD_S = 2.0
"""A waiter asks for an LSN that the source reaches within this time."""
LOOK_S = 0.05
ANSWER_WITHIN_S = 60.0


class Wait(NamedTuple):
    """One request and its answer."""

    lsn: int
    asked_s: float
    answered_s: float


@dataclass(slots=True)
class Waited:
    """The waits in the order of their answers, and the durable LSNs in their order, with the times."""

    first: list[Wait] = field(default_factory=list)
    """The first wait of each waiter: all connect at the same time."""
    later: list[Wait] = field(default_factory=list)
    durable_lsns: list[int] = field(default_factory=list)
    durable_at_s: list[float] = field(default_factory=list)


def beyond_durable_ms(waits: Sequence[Wait], waited: Waited) -> list[float]:
    """Return each wait's time from the reader to the answer, in ascending order; below 0: the answer was first.

    If the LSN was durable before the request, the time is from the request. Pure.
    Raises StackError if a reader did not see an answered LSN as durable.
    """
    found = []
    for lsn, asked_s, answered_s in waits:
        place = bisect.bisect_left(waited.durable_lsns, lsn)
        if place == len(waited.durable_lsns):
            raise StackError("an LSN was answered that no reader saw as durable", lsn=format_lsn(lsn))
        found.append((answered_s - max(asked_s, waited.durable_at_s[place])) * 1000)
    return sorted(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="make waiters", description=__doc__)
    parser.add_argument("--waiters", type=int, default=WAITERS, help="clients that wait at the same time")
    parser.add_argument("--per-second", type=int, default=PER_SECOND, help="transactions per second")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="seconds of the measurement")
    options = parser.parse_args(arguments)
    folder = make_run_folder("cdcd-waiters-", server_account())
    rows = []
    try:
        with started(folder) as servers:
            for waiters in sorted({1, options.waiters}):
                waited, cores = run(servers, waiters, options.per_second, options.seconds)
                for name, waits in (("first", waited.first), ("later", waited.later)):
                    rows.append((f"{waiters:,}, {name}", *_cells(waits, waited), f"{cores:.2f}"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    head = (
        "waiters",
        "answers",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "max ms",
        "before the reader",
        "cores",
    )
    print("From the moment when a read_committed consumer saw the LSN as durable to the answer:")
    print(text_table(head, rows))
    return 0


def _cells(waits: Sequence[Wait], waited: Waited) -> tuple[str, ...]:
    late_ms = beyond_durable_ms(waits, waited)
    before = bisect.bisect_left(late_ms, 0.0) / len(late_ms)
    times = (*(quantile(late_ms, share) for share in (0.5, 0.95, 0.99)), late_ms[-1])
    return f"{len(late_ms):,}", *(f"{one:.1f}" for one in times), f"{before:.0%}"


def run(servers: Servers, waiters: int, per_second: int, seconds: int) -> tuple[Waited, float]:
    """Let them wait under load; return what was seen, and the daemon's use of the processors."""
    waited = Waited()
    with (
        Backlog(servers.postgres, Case("waiters", "", TEN, 0, 1)) as backlog,
        backlog.emptied() as slot,
        Cdcd("cdcd", "").daemon(servers, backlog, slot) as daemon,
    ):
        daemon.start().wait_state("streaming")
        writer = Writer(servers, backlog, servers.folder / f"waiters-{slot}")
        with writer.writing(per_second, WARM_UP_S, is_warm_up=True):
            pass
        with _reading(servers, daemon, slot, waited):
            begun_cpu_s, begun_s = _cpu_s(daemon), time.monotonic()
            with writer.writing(per_second, 2 * seconds + WARM_UP_S, ends_with_block=True):
                asyncio.run(_waits(daemon, backlog, waiters, seconds, waited))
            return waited, (_cpu_s(daemon) - begun_cpu_s) / (time.monotonic() - begun_s)


def _cpu_s(daemon: Daemon) -> float:
    assert daemon.process is not None
    cpu = cpu_of(daemon.process.pid)
    assert cpu is not None
    return cpu.total_s


@contextlib.contextmanager
def _reading(servers: Servers, daemon: Daemon, slot: str, waited: Waited) -> Iterator[None]:
    """Note the durable LSNs in a thread, until a reader has seen the last one."""
    reader = ProgressReader(servers.kafka.bootstrap, f"{daemon.name}.__progress", slot)
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            lsn = reader.look(LOOK_S)
            if not waited.durable_lsns or lsn > waited.durable_lsns[-1]:
                waited.durable_at_s.append(time.monotonic())
                waited.durable_lsns.append(lsn)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
        last_lsn = max(one.lsn for one in waited.first + waited.later)
        eventually(lambda: waited.durable_lsns[-1] >= last_lsn, "a reader has seen the last answered LSN")
    finally:
        is_over.set()
        thread.join()
        reader.close()


async def _waits(daemon: Daemon, backlog: Backlog, waiters: int, seconds: int, waited: Waited) -> None:
    """Run the waiters for this time. Raises StackError if an answer is an error."""
    dice, position = random.Random(7), _Position(backlog)
    looking = asyncio.ensure_future(position.follow())
    timeout = aiohttp.ClientTimeout(total=ANSWER_WITHIN_S)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        await asyncio.sleep(AHEAD_S)  # the rate is known
        end_s = time.monotonic() + seconds

        async def waiter() -> None:
            waits = waited.first
            while time.monotonic() < end_s:
                lsn = position.lsn_in(dice.random() * AHEAD_S)
                url = f"http://127.0.0.1:{daemon.port}/wait?lsn={format_lsn(lsn)}&timeout_ms=50000"
                asked_s = time.monotonic()
                async with session.get(url) as answer:
                    answered_s = time.monotonic()
                    if answer.status != 200:
                        raise StackError("a wait failed", status=answer.status, lsn=format_lsn(lsn))
                waits.append(Wait(lsn, asked_s, answered_s))
                waits = waited.later

        try:
            await asyncio.gather(*(waiter() for _ in range(waiters)))
        finally:
            looking.cancel()


class _Position:
    """The position of the source, and what it will be."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._first = self._last = (self._backlog.current_lsn(), time.monotonic())

    async def follow(self) -> None:
        """Look at the source ten times a second."""
        while True:
            await asyncio.sleep(0.1)
            self._last = (await asyncio.to_thread(self._backlog.current_lsn), time.monotonic())

    def lsn_in(self, seconds: float) -> int:
        """Return the estimated position in this time, later than the present one."""
        lsn, at_s = self._last
        rate = (lsn - self._first[0]) / (at_s - self._first[1])
        return lsn + 1 + int(rate * (time.monotonic() - at_s + seconds))


if __name__ == "__main__":
    sys.exit(main())
