"""Runners take turns over one backlog, several rounds; a run disturbed by other processes is repeated.

In: servers, a case, runners.  Out: `Run`s, round by round.
Invariant: within a round each runner has one run that counts, so that ratios compare runs close in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from cdcd.errors import StackError
from tests.bench.backlog import Backlog
from tests.bench.cases import Case
from tests.bench.measure import Run, measure
from tests.bench.runners import Runner
from tests.bench.servers import Servers

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Failure:
    """A run without a result."""

    case: str
    runner: str
    why: str


def drain_case(
    servers: Servers, case: Case, runners: Sequence[Runner], pairs: int, repeats: int, say: Say
) -> Iterator[Run | Failure]:
    """Build the backlog and let the runners drain it in turn; yield each run when it is done, a failed one as a
    Failure.
    """
    say(f"{case.name}: {case.about}: writing {case.rows:,} rows ...")
    with Backlog(servers.postgres, case) as backlog:
        say(f"{case.name}: {backlog.wal_bytes / case.rows:.0f} bytes of WAL a row")
        for number in range(1, pairs + 1):
            for runner in runners:
                try:
                    run = undisturbed(partial(measure, servers, backlog, runner), repeats)
                except StackError as error:
                    yield Failure(case.name, runner.name, str(error))
                    continue
                say(f"{case.name} {number}/{pairs} {line(run)}")
                yield replace(run, round=number)


def undisturbed(run_once: Callable[[], Run], repeats: int) -> Run:
    """Return the first undisturbed run, after at most this many repeats; otherwise the least disturbed one."""
    best = run_once()
    for number in range(1, repeats + 1):
        if not best.is_disturbed:
            return best
        again = replace(run_once(), repeats=number)
        best = replace(min(best, again, key=lambda run: run.others_share), repeats=number)
    return best


def line(run: Run) -> str:
    """Return a run as one line."""
    spent = ", ".join(
        f"{name} {run.cpu_us_per_row(name):.2f}"
        for name in ("walsender", "receiver", "broker")
        if name in run.cpu
    )
    noise = f", others {run.others_share:.0%}" + (" (disturbed)" if run.is_disturbed else "")
    return (
        f"{run.runner:14} {run.rate:>10,.0f} rows/s, us/row: {spent}; {run.peak_memory_bytes >> 20} MiB, "
        f"ready {run.ready_seconds:.2f} s, first {run.first_seconds:.2f} s{noise}"
    )
