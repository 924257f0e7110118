"""One session of the benchmark: each result is printed at once and stored as JSON.

In: servers, the cases to measure.  Out: lines, tables, a document that is written after each result.
Invariant: a later failure does not remove earlier results; a failed run is reported and has no result.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from cdcd.demo.stack.artefacts import Cache
from cdcd.errors import StackError
from tests.bench.backlog import Backlog
from tests.bench.cases import CASES, Case
from tests.bench.copying import CopyCase, measure_copies
from tests.bench.figures import HEAD, figures
from tests.bench.floor import WAYS, FloorCase, measure_floor
from tests.bench.latency import COLD_WARM_UP_S, WARM_UP_S, Rate, empty_case, measure_latency
from tests.bench.pairs import Failure, drain_case
from tests.bench.peer import PEERS, Debezium, debezium_artefact
from tests.bench.restart import Start, measure_restarts
from tests.bench.runners import LIMIT, OWN, Cdcd, RecvLogical, Runner
from tests.bench.servers import Servers, cdcd_version
from tests.bench.table import (
    FLOOR_HEAD,
    case_table,
    copy_table,
    floor_cells,
    latency_table,
    restart_table,
    text_table,
)
from tests.bench.while_copying import Copying

FORMAT = 1
WARM_UP_SHARE = 0.5
WARM_UP_DRAINS = 8
"""A million rows each: until then the JVM's compiler takes a third of the broker's CPU, afterwards a twentieth."""
COPYING = Copying("copying", "cdcd, exactly once, while it copies a large table all the time")
RUNNERS: dict[str, Runner] = {runner.name: runner for runner in (*OWN, COPYING, *PEERS)}
LINGERS_MS = (0, 1, 5, 20, 100, 500)
WAITS_MS = (0, 2, 5, 20, 100)


class Session:
    """The results so far. `failures` counts the runs without a result."""

    def __init__(self, servers: Servers, path: Path | None, asked: dict[str, Any]) -> None:
        self.failures = 0
        self._warm_up_s = WARM_UP_S
        self._servers = servers
        self._path = path
        self._document: dict[str, Any] = {
            "format": FORMAT,
            "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "asked": asked,
            "machine": servers.description(),
            "cdcd": cdcd_version(),
            "limit": LIMIT,
            "runners": {},
            "absent": {},
            "cases": {},
            "runs": [],
            "latencies": [],
            "floors": [],
            "restarts": [],
            "copies": [],
            "failures": [],
        }

    def begin(self, runners: Sequence[Runner]) -> list[Runner]:
        """Record the present and the absent runners, with the reason of each absence; return the present ones."""
        absent = {one.name: "not selected (--runners)" for one in PEERS if one not in runners}
        if any(isinstance(one, Debezium) for one in runners):
            try:
                Cache().get(debezium_artefact())
            except StackError as error:
                absent |= {one.name: f"could not be installed: {error}" for one in PEERS}
        there = [one for one in runners if one.name not in absent]
        for one in there:
            about = {"about": one.about, "settings": dict(one.settings)}
            if isinstance(one, Cdcd):
                about["version"] = cdcd_version(one.environment)
            self._document["runners"][one.name] = about
        self._document["absent"] = absent
        self._write()
        return there

    def warm_up(self) -> None:
        """Let the broker's and the registry's JVMs compile the code of a run, at any scale; otherwise the first runs
        would be slower.
        """
        case = CASES["insert-1000"].scaled(WARM_UP_SHARE)
        cdcd = [RUNNERS["cdcd"]]
        for one in drain_case(self._servers, case, cdcd, WARM_UP_DRAINS, repeats=0, say=lambda _: None):
            if isinstance(one, Failure):
                _say(f"warm-up failed: {one.why}")
        self._warm_up_s = COLD_WARM_UP_S
        _say("warmed up")

    def drain(self, case: Case, runners: Sequence[Runner], pairs: int, repeats: int) -> None:
        """Let each runner drain the backlog of a case."""
        self._about(case.name, case.about, rows=case.rows)
        runs = []
        for one in drain_case(self._servers, case, runners, pairs, repeats, _say):
            if isinstance(one, Failure):
                self._failed(one.case, one.runner, one.why)
                continue
            runs.append(one.document())
            self._keep("runs", runs[-1])
        if runs:
            _show(case.name, case.about, case_table(runs, LIMIT, self._document["absent"]))

    def latency(self, rate: Rate, runners: Sequence[Runner], seconds: int) -> None:
        """Measure the latency of each runner at a rate of rows."""
        self._about(rate.name, rate.about, seconds=seconds)
        found = []
        with Backlog(self._servers.postgres, empty_case(rate)) as backlog:
            for runner in varied(rate, runners):
                _say(f"{rate.name} {runner.name}: {seconds} s ...")
                try:
                    one = measure_latency(
                        self._servers, backlog, rate, runner, seconds, self._taken_warm_up_s()
                    )
                except StackError as error:
                    self._failed(rate.name, runner.name, str(error))
                    continue
                found.append(one.document())
                self._keep("latencies", found[-1])
        if found:
            _show(rate.name, rate.about, latency_table(found))

    def floor(self, case: FloorCase, seconds: int) -> None:
        """Measure the latency of a producer and a broker alone at a rate of rows."""
        self._about(case.name, case.about, seconds=seconds)
        found = []
        for way in WAYS:
            _say(f"{case.name} {way.name}: {seconds} s ...")
            try:
                one = measure_floor(
                    self._servers.kafka.bootstrap, case, way, seconds, self._taken_warm_up_s()
                )
            except (StackError, KafkaException) as error:
                self._failed(case.name, way.name, str(error))
                continue
            found.append(one.document())
            self._keep("floors", found[-1])
        if found:
            _show(case.name, case.about, text_table(FLOOR_HEAD, [floor_cells(one) for one in found]))

    def restart(self, start: Start, times: int) -> None:
        """Restart the daemon several times and measure each start."""
        self._about(start.name, start.about)
        found = []
        try:
            for one in measure_restarts(self._servers, start, times):
                found.append(one.document())
                self._keep("restarts", found[-1])
        except (StackError, AssertionError) as error:
            self._failed(start.name, "cdcd", str(error))
        if found:
            _show(start.name, start.about, restart_table(found))

    def copy(self, case: CopyCase, rounds: int, *, with_peer: bool) -> None:
        """Measure snapshots of a table."""
        self._about(case.name, case.about, rows=case.rows)
        found = []
        try:
            for one in measure_copies(self._servers, case, rounds, with_peer=with_peer, say=_say):
                found.append(one.document())
                self._keep("copies", found[-1])
        except (StackError, AssertionError) as error:
            self._failed(case.name, "snapshot", str(error))
        if found:
            _show(case.name, case.about, copy_table(found))

    def end(self) -> None:
        """Show the targets next to the measurements."""
        if found := figures(self._document):
            _show("figures", "targets and measurements", text_table(HEAD, [one.cells() for one in found]))

    def _taken_warm_up_s(self) -> int:
        """Return the duration of the warm-up before a latency measurement: only the first one has a cold broker."""
        warm_up_s, self._warm_up_s = self._warm_up_s, WARM_UP_S
        return warm_up_s

    def _about(self, name: str, about: str, **more: object) -> None:
        self._document["cases"][name] = {"about": about, **more}

    def _failed(self, case: str, runner: str, why: str) -> None:
        self.failures += 1
        _say(f"{case} {runner} FAILED: {why}")
        self._keep("failures", {"case": case, "runner": runner, "why": why})

    def _keep(self, kind: str, result: dict[str, Any]) -> None:
        self._document[kind].append(result)
        self._write()

    def _write(self) -> None:
        if self._path is not None:
            self._path.write_text(json.dumps(self._document, indent=1) + "\n")


def varied(rate: Rate, runners: Sequence[Runner]) -> list[Runner]:
    """Return the runners of a latency case: those requested, or cdcd with each value of a setting."""
    if not rate.is_of_settings:
        return [one for one in runners if not isinstance(one, RecvLogical)]
    lingers = [
        Cdcd(f"linger {ms} ms", "", {"sink": {"properties": {"linger.ms": str(ms)}}}) for ms in LINGERS_MS
    ]
    waits = [Cdcd(f"commit after {ms} ms", "", {"sink": {"commit": {"max_wait_ms": ms}}}) for ms in WAITS_MS]
    return [*lingers, *waits]


def _show(name: str, about: str, table: str) -> None:
    print(f"\n{name}: {about}\n{table}\n", flush=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
