"""One seed: a new database, topics and daemon, load and faults for some seconds, and the judgement.

In: running servers, a plan.  Out: a `Result`; on findings, the daemon's log and the records in a folder.
Invariant: readers read from the daemon's start on; the judgement begins when the faults are over, the sessions have
stopped and cdcd has confirmed their last transaction, or at a deadline.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.campaign.checker import judge
from tests.campaign.facts import Commit, Finding, History, Visit
from tests.campaign.nemesis import Scene, strike_all
from tests.campaign.nemesis_servers import BY_NAME
from tests.campaign.plan import Plan
from tests.campaign.readers import Follower, Reading, Visitor, visited
from tests.campaign.servers import Servers
from tests.campaign.witness import COLUMNS, TOTAL, Witness
from tests.campaign.workload import Room, Session
from tests.support.daemon import Daemon
from tests.support.doors import registry_through, through
from tests.support.waiting import eventually

CATCH_UP_WITHIN_S = 180.0
ENDED_WITHIN_S = 90.0
CDCD = "tests.faults.clocked"
"""cdcd with a clock that a fault sets."""
HISTORY = "history.pickle"
"""The file in the seed's folder that has a history with findings."""
FEW = 4
"""The number of findings of one kind that the results of a seed name."""


@dataclass
class Result:
    """What one seed did. Several of them add up: see `report`."""

    seed: int
    seconds: float = 0.0
    load_s: float = 0.0
    options: str = ""
    transactions: int = 0
    changes: int = 0
    records: int = 0
    cuts: int = 0
    visits: int = 0
    starts: int = 0
    caught_up_s: float | None = None
    planned: dict[str, int] = field(default_factory=dict)
    struck: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the line of the terminal."""
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.struck.items()) if count)
        found = f"{len(self.findings)} FINDINGS" if self.findings else "0 findings"
        return (
            f"seed {self.seed}: {self.seconds:.0f} s, {self.transactions} transactions, {self.records} records,"
            f" {self.cuts} cuts, {self.visits} visits, caught up in {self.caught_up_s} s; {self.options};"
            f" struck: {faults or 'nothing'}; {found}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the line of the results file."""
        return asdict(self)


class Run:
    """The parts of one seed."""

    def __init__(self, servers: Servers, plan: Plan, folder: Path, module: str) -> None:
        self.plan, self.servers = plan, servers
        self.name = f"campaign{os.getpid()}x{plan.seed}"
        server = servers.postgres
        server.create_database(self.name)
        self.dsn = server.dsn(self.name)
        self.witness = Witness(self.dsn)
        server.execute(
            f"CREATE PUBLICATION cdcd_{self.name} FOR TABLE {', '.join(COLUMNS)}", dbname=self.name
        )
        self.daemon = Daemon(
            folder,
            self.name,
            dsn=through(self.dsn, server, servers.to_postgres),
            bootstrap=servers.doors.bootstrap,
            registry_url=registry_through(servers.registry, servers.to_registry),
            **{**plan.options, "buffer": {**plan.options["buffer"], "spill_dir": str(folder / "spill")}},
        )
        self.daemon.entry = ("-m", module)
        self.daemon.environment = {"CDCD_TEST_CLOCK": str(servers.clock)}
        self.daemon.spawn = servers.forks.spawn
        self.scene = Scene(servers, self.daemon)
        self.follower = Follower(servers.kafka.bootstrap, self.name, self.daemon.slot)
        self.visitor = Visitor(self.follower, servers.kafka.bootstrap)
        room = Room(self.scene.positions)
        self.sessions = [
            Session(self.dsn, f"{plan.seed}.{number}", plan.weights, plan.pause_s, room)
            for number in range(plan.sessions)
        ]

    def __enter__(self) -> Run:
        self.follower.start()
        for session in self.sessions:
            session.start()
        self.daemon.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        for session in self.sessions:
            session.stop()
        with contextlib.suppress(Exception):  # the failure that ended the run is raised
            self.visitor.stop()
            self.follower.stop()
        self.daemon.__exit__()
        self.servers.heal()
        self.servers.postgres.drop_database(self.name)
        self.servers.delete_topics(self.name)

    def load(self) -> None:
        """Let sessions write and faults strike, then end all faults."""
        if not self.plan.is_in_copy:
            self.daemon.wait_state("streaming")
        self.visitor.start()
        threads = strike_all(self.scene, self.plan.strikes, BY_NAME)
        self.scene.over.wait(self.plan.load_s)
        self.scene.over.set()
        for thread in threads:
            thread.join(120)
            if thread.is_alive():
                self.scene.failures.append("a fault has not ended")
        self.servers.heal()
        for session in self.sessions:
            session.rest()

    def catch_up(self) -> float | None:
        """Wait until the last transaction is confirmed; None with a failure of the daemon."""
        began_s, end_lsn = time.monotonic(), self.witness.last_lsn()
        while time.monotonic() < began_s + CATCH_UP_WITHIN_S:
            page = self.daemon.status()
            # In a copy the slot is confirmed up to where it was created.
            if page.get("state") == "streaming" and (self.scene.positions()[1] or 0) >= end_lsn:
                return round(time.monotonic() - began_s, 1)
            if self.scene.pid is None:
                process = self.daemon.process
                self.scene.failures.append(f"cdcd ended with {process and process.returncode}")
                return None
            if page.get("state") == "halted":
                self.scene.failures.append(f"cdcd has halted: {page['reason']}")
                return None
            time.sleep(0.05)
        self.scene.failures.append(f"not caught up within {CATCH_UP_WITHIN_S:g} s: {self.daemon.status()}")
        return None

    def history(self) -> History:
        """Return what happened, once the follower has everything that the last cut has."""
        commits = self.witness.commits()
        self._await_the_end(commits)
        self.visitor.stop()
        if (cut := self.follower.last_cut()) is not None and (
            visit := visited(self.servers.kafka.bootstrap, cut, threading.Event())
        ):
            self.visitor.visits.append(visit)
        self.follower.stop()
        reading = Reading(self.servers.registry.url, self.name)
        records = tuple(reading.record(message) for message in self.follower.messages())
        return History(
            commits, records, self.follower.cuts(), self.witness.table_rows(), self._visits(), TOTAL
        )

    def _visits(self) -> tuple[Visit, ...]:
        return tuple(self.visitor.visits)

    def _await_the_end(self, commits: tuple[Commit, ...]) -> None:
        def is_there() -> bool:
            cut = self.follower.last_cut()
            return cut is not None and cut.end_lsn >= commits[-1].end_lsn

        with contextlib.suppress(AssertionError):  # the checker has findings then
            eventually(is_there, "the last cut", ENDED_WITHIN_S)


def run_seed(servers: Servers, plan: Plan, folder: Path, module: str = CDCD) -> Result:
    """Run one seed; an unexpected error is a finding too. `module`: another cdcd, with a planted fault."""
    begun_s = time.monotonic()
    result = Result(plan.seed, load_s=plan.load_s, options=plan.named_options)
    result.planned = dict(Counter(strike.fault for strike in plan.strikes))
    run: Run | None = None
    try:
        with Run(servers, plan, folder, module) as run:
            run.load()
            result.caught_up_s = run.catch_up()
            history = run.history()
            add_history(result, history)
            if result.findings:
                (folder / HISTORY).write_bytes(pickle.dumps(history))
    except Exception as error:  # noqa: BLE001 - a finding of the seed
        at = traceback.extract_tb(error.__traceback__)[-1]
        result.findings.append(
            str(Finding("stuck", f"{type(error).__name__}: {error} ({at.name}, line {at.lineno})"))
        )
    if run is not None:
        result.struck = {name: count for name, count in run.scene.struck.items() if count}
        result.findings += [str(Finding("stuck", one)) for one in run.scene.failures]
        result.starts = len(run.daemon.events("started"))
    result.seconds = round(time.monotonic() - begun_s, 1)
    return result


def add_history(result: Result, history: History) -> None:
    """Judge, and count."""
    result.transactions = len(history.commits)
    result.changes = sum(len(commit.writes) for commit in history.commits)
    result.records, result.visits = len(history.records), len(history.visits)
    result.cuts = sum(cut.is_whole for cut in history.cuts)
    result.findings += shortened(judge(history))


def shortened(findings: Iterable[Finding]) -> list[str]:
    """Return the first findings of each kind, and the numbers of the others."""
    of_kind: dict[str, list[Finding]] = defaultdict(list)
    for one in findings:
        of_kind[one.kind].append(one)
    return [
        text
        for kind, found in of_kind.items()
        for text in (
            *map(str, found[:FEW]),
            *([f"{kind}: {len(found) - FEW} more"] if len(found) > FEW else []),
        )
    ]
