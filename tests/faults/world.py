"""Servers, a daemon, load, readers, and the oracle: a run that is judged block by block.

In: running servers, and proxies where the daemon does not connect directly.  Out: findings.
Invariant: the oracle connects to the servers directly, so that faults between cdcd and a server do not affect it.
A block ends when no session writes, and all committed transactions are durable in Kafka and confirmed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg2

from cdcd.demo.stack.postgres import PostgresServer
from tests.faults.assertions.durable import CATCH_UP_WITHIN_S
from tests.faults.facts import Block, Finding
from tests.faults.lagging import LagSampler
from tests.faults.oracle import Oracle
from tests.faults.safety import Sampler
from tests.faults.topics import Live, Topics
from tests.faults.truth import SCRIPT, TABLES, Truth, publication_sql
from tests.faults.workload import EVERYTHING, Writer, fill
from tests.support.daemon import STREAM_ONLY, Daemon
from tests.support.stack import confirmed_position, position_after
from tests.support.waiting import eventually

BACKLOG_BYTES = 256 * 1024
SEEN_WITHIN_S = 60.0
"""The time within which the live reader has to reach the end once the faults are over."""


class World:
    """One database with its daemon. `daemon_dsn` etc.: the daemon's addresses, if not those of the servers."""

    def __init__(
        self,
        folder: Path,
        name: str,
        server: PostgresServer,
        dbname: str,
        *,
        bootstrap: str,
        registry_url: str,
        daemon_dsn: str | None = None,
        daemon_bootstrap: str | None = None,
        daemon_registry_url: str | None = None,
        **over: Any,
    ) -> None:
        self.server, self.dbname = server, dbname
        self.dsn = server.dsn(dbname)
        # The oracle judges the records of transactions; no copy of a table that was altered comes between.
        over["snapshot"] = {**STREAM_ONLY, **over.get("snapshot", {})}
        self.daemon = Daemon(
            folder,
            name,
            dsn=daemon_dsn or self.dsn,
            bootstrap=daemon_bootstrap or bootstrap,
            registry_url=daemon_registry_url or registry_url,
            **over,
        )
        self._run(SCRIPT)
        self._run(publication_sql(self.daemon.config["source"].get("publication", f"cdcd_{name}")))
        self.truth = Truth(self.dsn)
        self.topics = Topics(bootstrap, registry_url, name, self.daemon.slot)
        self.live = Live(self.topics, bootstrap)
        self.sampler = Sampler(server.dsn(), self.daemon.slot, bootstrap, self.topics.progress_topic)
        self.lags = LagSampler(server.dsn(), self.daemon, bootstrap, self.topics.progress_topic)
        self.oracle = Oracle(TABLES, self.daemon.config["sink"].get("delivery", "exactly_once"))
        self.writers: list[Writer] = []
        self.catch_up_within_s = CATCH_UP_WITHIN_S
        self.transactions = self.changes = self.records = 0
        self.last_block: Block | None = None
        """The last judged block."""

    def _run(self, script: str) -> None:
        connection = psycopg2.connect(self.dsn)
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(script)
        finally:
            connection.close()

    def __enter__(self) -> World:
        self.sampler.start()
        self.lags.start()
        self.live.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        for writer in self.writers:
            writer.stop()
        self.sampler.stop()
        self.lags.stop()
        self.live.stop()
        self.daemon.__exit__()

    # --- load ---

    def fill(self, seed: str) -> None:
        """Insert rows before the daemon's first start."""
        fill(self.dsn, seed)

    def write(self, seed: str, count: int = 2, kinds: Mapping[str, int] = EVERYTHING, **options: Any) -> None:
        """Start `count` sessions that write."""
        for number in range(count):
            writer = Writer(self.dsn, f"{seed}.{number}", dict(kinds), **options)
            self.writers.append(writer)
            writer.start()

    def keeps_up(self) -> bool:
        """Whether the daemon is less than `BACKLOG_BYTES` behind; also before there is a slot."""
        return (self.sampler.backlog_bytes or 0) < BACKLOG_BYTES

    def wait_for_writes(self, count: int) -> None:
        """Wait until `count` more transactions have been committed or rolled back."""
        target = self._writes() + count
        eventually(lambda: self._writes() >= target, "the writers have ended enough transactions", 120)

    def _writes(self) -> int:
        for writer in self.writers:
            if writer.failure is not None:
                raise writer.failure
        return sum(sum(writer.done.values()) for writer in self.writers)

    def rest(self) -> None:
        """Pause the writers, and decide all prepared transactions."""
        for writer in self.writers:
            writer.rest()
        self.decide()

    def decide(self) -> None:
        """Decide all prepared transactions; that of a running writer counts as refused."""
        undecided = self.server.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", self.dbname)
        for number, (gid,) in enumerate(undecided):
            how = "COMMIT" if number % 2 else "ROLLBACK"
            self.server.execute(f"{how} PREPARED %s", gid, dbname=self.dbname)

    def go_on(self) -> None:
        """Let the writers continue."""
        for writer in self.writers:
            writer.go_on()

    # --- judging ---

    def caught_up(self) -> float | None:
        """Wait until all commits are confirmed; return the seconds it took, None if the daemon halts or is late."""
        began_s = time.monotonic()
        last_lsn = self._committed_until()
        while time.monotonic() < began_s + self.catch_up_within_s:
            if (confirmed_position(self.server, self.daemon.slot) or 0) >= last_lsn:
                return time.monotonic() - began_s
            self._must_run()
            if self.halted():
                break
            time.sleep(0.02)
        return None

    def _committed_until(self) -> int:
        """Commit one more transaction; return the LSN after it, where no other session has written."""
        return position_after(self.dsn, "SELECT truth.say('the end of a block')")

    def _must_run(self) -> None:
        process = self.daemon.process
        if process is not None and process.poll() is not None:
            raise AssertionError(f"cdcd ended with {process.returncode}:\n{self.daemon.log()[-4000:]}")

    def halted(self) -> str:
        """Return the reason of the daemon's halt, "" if it has not halted."""
        page = self.daemon.status()
        return str(page["reason"]) if page.get("state") == "halted" else ""

    def lag_s(self) -> float | None:
        """Return the lag metric, once it no longer changes."""
        found = None
        for _ in range(50):
            match = re.search(
                r"^cdcd_replication_lag_seconds\S* (\S+)$", self.daemon.get("/metrics")[1], re.M
            )
            found = float(match[1]) if match else None
            if found == 0:
                break
            time.sleep(0.1)
        return found

    def block(self) -> Block:
        """Pause the writers, wait for the daemon, and return everything that happened since the last block."""
        self.rest()
        caught_up_s = self.caught_up()
        transactions, rows = self.truth.taken(), self.truth.rows()
        samples, lags = self.sampler.taken(), self.lags.taken()
        events, progress, partitions = self.topics.taken()
        seen = self.live.taken(self.topics.ends, SEEN_WITHIN_S)
        return Block(
            transactions,
            events,
            progress,
            samples,
            rows,
            partitions,
            seen,
            self.topics.digests,
            caught_up_s,
            self.lag_s(),
            lags,
            self.truth.names(),
        )

    def judge(self) -> list[Finding]:
        """Judge one more block; return the findings."""
        block = self.block()
        self.last_block = block
        self.transactions += len(block.transactions)
        self.changes += sum(len(one.changes) for one in block.transactions)
        self.records += len(block.events)
        return self.oracle.judge(block)
