"""The steps of the demo in order, from the first server to the comparison.

In: the options and a `World`.  Out: an exit status, and the last line of the run.
Invariant: the shop is loaded before cdcd starts; cdcd is killed once while rows change, and with --chaos repeatedly
(`chaos`). The comparison starts only after cdcd has confirmed the last change and the mirror has applied it; a wait
ends if there is no progress.
Must not: repair a failure; the demo reports it and fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg2
from confluent_kafka.admin import AdminClient

from cdcd.demo import gauges, load, rows
from cdcd.demo.chaos import Chaos
from cdcd.demo.compare import TableOutcome, compare_table, report
from cdcd.demo.histories import Histories
from cdcd.demo.mirrored import Mirror
from cdcd.demo.options import KILL_AT_BULK, Options
from cdcd.demo.screen import Picture, Screen
from cdcd.demo.workload import Workload, WorkloadFailed
from cdcd.demo.world import DATABASE, NAME, SLOT, DemoFailed, World
from cdcd.errors import EXIT_FAILURE, EXIT_OK
from cdcd.spark.storage.uri import open_storage

LOOK_EVERY_S = 0.2
STARTED_WITHIN_S = 60.0
STILL_FOR_S = 120.0
SCHEMA = "public"


class Story:
    """One run of the demo."""

    def __init__(self, options: Options, folder: Path, undo: ExitStack) -> None:
        self._options = options
        self._world = World(
            folder,
            undo,
            stays_up=options.keep,
            mirror_format=options.mirror_format,
            scd_type=options.scd_type,
        )
        self._workload: Workload | None = None
        self._reading: gauges.Reading | None = None
        self.verdict = self._history_verdict = ""

    def tell(self) -> int:
        """Run all steps; return the exit status. `verdict` is then the last line, or empty."""
        with Screen() as self._screen:
            try:
                self._start_servers()
                self._start_reading_and_writing()
                self._change_rows()
                self._wait_for_cdcd()
                self._wait_for_mirror()
                outcomes = self._compare()
            except (WorkloadFailed, psycopg2.Error) as error:
                raise DemoFailed(f"PostgreSQL or the workload failed: {str(error).strip()}") from None
        return self._judge(outcomes)

    # --- the acts

    def _start_servers(self) -> None:
        servers = [
            ("PostgreSQL", self._world.start_postgres),
            ("Kafka (its programs are fetched the first time)", self._world.start_kafka),
        ]
        if self._options.has_registry:
            servers.append(("the schema registry (fetched the first time)", self._world.start_registry))
        if self._options.in_bucket:
            servers.append(("the S3 server (built the first time)", self._world.start_s3))
        for name, start in servers:
            self._screen.say(f"starting {name}")
            start()
        self._target = open_storage(self._world.target, self._world.target_options)
        self._mirror = Mirror(self._target, NAME)
        load.create_shop(self._world.dsn, self._world.password)
        self._loaded = load.load(self._world.dsn, self._options.rows, self._options.seed)
        self._screen.say(f"the shop is loaded: {self._count_rows():,} rows in {len(rows.TABLES)} tables")

    def _start_reading_and_writing(self) -> None:
        self._world.write_config()
        self._world.start_cdcd()
        self._world.start_mirror()
        self._screen.say(f"cdcd and the Spark mirror start; logs in {self._world.logs}")
        self._until("starting", lambda: self._reading is not None, lambda: 0, STARTED_WITHIN_S)

    def _change_rows(self) -> None:
        options = self._options
        # On a slow machine the workload would otherwise end before the snapshot.
        seconds = options.seconds
        self._workload = Workload(self._world.dsn, self._loaded, options.seed, seconds, is_counted=False)
        self._screen.say(f"rows change, for {seconds:g} s from when cdcd streams")
        chaos = Chaos(self._world, options.seed, self._screen.say) if options.is_chaos else None
        self._workload.start()
        started_at, was_killed, has_streamed = 0.0, False, False
        try:
            while self._workload.is_running or not was_killed:
                self._look("workload")
                if not has_streamed and self._reading is not None and self._reading.state == "streaming":
                    has_streamed, started_at = True, time.monotonic()
                    self._workload.count()
                elapsed_s = time.monotonic() - started_at if has_streamed else 0.0
                if not was_killed and self._is_time_to_kill(elapsed_s):
                    self._kill_and_restart()
                    was_killed = True
                elif chaos is not None and chaos.strike(elapsed_s):
                    self._reading = None
                time.sleep(LOOK_EVERY_S)
        finally:
            self._workload.stop()
            if chaos is not None:
                chaos.end()
        self._workload.wait(60)
        done = self._workload.counters
        self._screen.say(
            f"workload done: {done.transactions:,} transactions with {done.changes:,} changes,"
            f" {done.rollbacks:,} rolled back, {done.truncates} times TRUNCATE, {done.messages:,} messages"
        )
        if chaos is not None:
            struck = ", ".join(f"{what}: {count}" for what, count in sorted(chaos.struck.items()))
            self._screen.say(f"in addition to the one kill: {struck or 'no faults'}")

    def _is_time_to_kill(self, seconds: float) -> bool:
        assert self._workload is not None
        if self._options.kill_at == KILL_AT_BULK:
            return self._workload.counters.is_bulk_committed
        return seconds >= self._options.kill_at

    def _kill_and_restart(self) -> None:
        self._world.kill_cdcd()
        self._reading = None
        self._screen.say("cdcd was killed (SIGKILL) and starts again")
        self._world.start_cdcd()

    def _wait_for_cdcd(self) -> None:
        with closing(psycopg2.connect(self._world.dsn)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            cursor.execute("SELECT pg_current_wal_lsn()")
            (last_lsn,) = cursor.fetchone() or ("",)

            def confirmed() -> tuple[bool, str]:
                cursor.execute(
                    "SELECT confirmed_flush_lsn >= %s::pg_lsn, confirmed_flush_lsn::text"
                    " FROM pg_replication_slots WHERE slot_name = %s",
                    (last_lsn, SLOT),
                )
                found = cursor.fetchone()
                return (bool(found[0]), str(found[1])) if found else (False, "")

            self._screen.say(f"waiting until cdcd has confirmed {last_lsn}")
            self._until("catching up", lambda: confirmed()[0], lambda: (confirmed()[1], self._written()))

    def _wait_for_mirror(self) -> None:
        end = self._mirror.end(self._world.kafka.bootstrap)
        self._screen.say("waiting until the mirror has applied the last change")
        self._until("mirroring", lambda: self._mirror.has_reached(end), self._mirror.activity)

    def _compare(self) -> list[TableOutcome]:
        self._screen.say("comparing every mirror with its table, by the values that PostgreSQL returns")
        with closing(psycopg2.connect(self._world.dsn)) as connection:
            outcomes = [
                compare_table(connection, SCHEMA, table, self._mirror.read(SCHEMA, table))
                for table in rows.TABLES
            ]
            if self._options.scd_type == 2:
                self._compare_histories(connection, outcomes)
        return outcomes

    def _compare_histories(self, connection: Any, outcomes: list[TableOutcome]) -> None:
        """Compare the valid rows of each history with the table, too; a difference is added to the outcome."""
        self._screen.say("comparing the valid rows of every history with its table")
        versions = 0
        with Histories(self._target, NAME) as histories:
            for number, table in enumerate(rows.TABLES):
                found = histories.read(SCHEMA, table)
                if found is None:
                    continue  # a table without a key has no history
                versions += found.versions
                outcome = compare_table(connection, SCHEMA, table, found.valid)
                differences = (f"history: {one}" for one in outcome.differences)
                outcomes[number] = replace(
                    outcomes[number], differences=(*outcomes[number].differences, *differences)
                )
        self._history_verdict = f", {versions} versions of rows"

    def _judge(self, outcomes: list[TableOutcome]) -> int:
        difference = report(outcomes)
        if difference:
            print("mirror != source:", *difference, sep="\n", flush=True)
        else:
            total = sum(outcome.source_rows for outcome in outcomes)
            self.verdict = f"mirror == source: {len(outcomes)} tables, {total} rows{self._history_verdict}"
        if self._options.keep:
            self._world.write_down()
            print("\n".join(self._what_to_open()), flush=True)
        return EXIT_FAILURE if difference else EXIT_OK

    # --- queries and waits

    def _until(
        self,
        phase: str,
        is_reached: Callable[[], bool],
        moving: Callable[[], object],
        still_s: float = STILL_FOR_S,
    ) -> None:
        """Wait for a condition as long as `moving` changes. Raises DemoFailed if it does not change for too long."""
        last, changed_at = moving(), time.monotonic()
        while not is_reached():
            self._look(phase)
            now = moving()
            if now != last:
                last, changed_at = now, time.monotonic()
            if time.monotonic() - changed_at > still_s:
                raise DemoFailed(
                    f"{phase}: no progress for {still_s:g} s; see the logs in {self._world.logs}"
                )
            time.sleep(LOOK_EVERY_S)

    def _look(self, phase: str) -> None:
        """Read the gauges and show them. Raises DemoFailed if a process has ended or cdcd has halted."""
        self._world.check()
        self._reading = reading = gauges.read(self._world.admin_port)
        if reading is not None and reading.state == "halted":
            raise DemoFailed(f"cdcd halted: {reading.reason}")
        done = self._workload.counters if self._workload else None
        self._screen.show(
            Picture(
                phase=phase,
                transactions=done.transactions if done else 0,
                changes=done.changes if done else 0,
                cdcd_state=reading.state if reading else "not answering",
                rows_written=self._written(),
                lag_seconds=reading.lag_seconds if reading else None,
                lag_bytes=reading.lag_bytes if reading else None,
                mirror=self._mirror.summary(),
            )
        )

    def _written(self) -> int:
        return self._reading.rows_written if self._reading else 0

    def _count_rows(self) -> int:
        query = " UNION ALL ".join(f"SELECT count(*) FROM {table}" for table in rows.TABLES)  # noqa: S608
        counts = self._world.postgres.execute(query, dbname=DATABASE)
        return sum(int(count) for (count,) in counts)

    def _what_to_open(self) -> list[str]:
        world = self._world
        admin = AdminClient({"bootstrap.servers": world.kafka.bootstrap, "log_level": 0})
        found = admin.list_topics(timeout=10).topics
        topics = sorted(name for name in found if name.startswith(f"{NAME}."))
        return [
            "",
            "everything is still running:",
            f"  PostgreSQL    {world.dsn}",
            f"  Kafka         {world.kafka.bootstrap}",
            f"  topics        {' '.join(topics)}",
            f"  registry      {world.schemas_url}",
            f"  status page   http://127.0.0.1:{world.admin_port}/status",
            f"  mirror        {' '.join([world.target, *self._target_words()])}",
            f"  configuration {world.config_file}",
            f"  logs          {world.logs}",
            f"  stop it with  cdcd demo --stop {world.folder}",
        ]

    def _target_words(self) -> list[str]:
        return [f"--target-option {name}={value}" for name, value in self._world.target_options.items()]
