"""`make bench-spark ARGS="--latency 60"`: from COMMIT in PostgreSQL to a version of the mirror with the row.

In: seconds.  Out: for each format the milliseconds at 1,000 transactions/s of one row, with a real PostgreSQL,
daemon, broker and registry on this machine, and a mirror in a local Spark of two cores; the versions per second.
pgbench keeps the rate and logs when each COMMIT returned. A row counts as readable with the first version whose last
commit is not before that, so the figure is never too low. In the end the rows of the mirror are counted.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from cdcd.demo.stack.accounts import make_run_folder, server_account
from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer, programs_from_npm, programs_from_wheel
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.spark.mirroring.batches import BatchReport
from cdcd.spark.mirroring.start import mirror
from cdcd.spark.reading.mirror import read_mirror, wait
from cdcd.spark.session import session
from cdcd.spark.target.versions import TABLE_FORMATS, TableFormat
from tests.bench.latency import CLIENTS, committed_at, quantile
from tests.bench.servers import POSTGRES_MAJOR
from tests.bench.spark.wanted import said_at_most
from tests.support.daemon import Daemon

RATE = 1_000
WARM_UP_S = 15
CLIENT_ROWS = 1_000_000_000
WITHIN_S = 120
WANTED_MS = {"p50": 1_000, "p99": 2_500}
TABLE = """
CREATE TABLE orders (id bigint PRIMARY KEY, customer int NOT NULL, amount numeric(12, 2), note text, at timestamptz)
"""


def by_commits(seconds: int) -> None:
    """Print the table."""
    cache, folder = Cache(), make_run_folder("cdcd-late-", server_account())
    programs = programs_from_npm(POSTGRES_MAJOR, cache)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        kafka = stack.enter_context(KafkaBroker(folder / "kafka", cache=cache))
        registry = stack.enter_context(SchemaRegistry(folder / "registry", cache=cache))
        postgres = stack.enter_context(PostgresServer(POSTGRES_MAJOR, programs, folder / "postgres"))
        spark = session("cdcd bench", "2")
        stack.callback(spark.stop)
        print(f"{RATE} transactions/s for {seconds} s, milliseconds from COMMIT to the version with the row")
        print(
            f"{'format':8} {'rows/s':>7} {'p50':>6} {'p95':>6} {'p99':>6} {'max':>6} {'versions/s':>11}",
            flush=True,
        )
        for table_format in TABLE_FORMATS:
            run = _Run(folder / table_format, postgres, kafka, registry, table_format)
            run.measure(spark, seconds)


class _Run:
    """A database, its daemon and its mirror in one format."""

    def __init__(
        self,
        folder: Path,
        postgres: PostgresServer,
        kafka: KafkaBroker,
        registry: SchemaRegistry,
        table_format: TableFormat,
    ) -> None:
        folder.mkdir()
        self._folder, self._postgres, self._format = folder, postgres, table_format
        self._database = f"late_{table_format}"
        postgres.create_database(self._database)
        postgres.execute(TABLE, dbname=self._database)
        postgres.execute(f"CREATE PUBLICATION cdcd_{self._database} FOR TABLE orders", dbname=self._database)
        self._daemon = Daemon(
            folder / "cdcd",
            self._database,
            dsn=postgres.dsn(self._database),
            bootstrap=kafka.bootstrap,
            registry_url=registry.url,
        )
        self._visible: list[tuple[int, int]] = []
        """For each version the time of its last commit, and when it was visible; microseconds."""

    def measure(self, spark: SparkSession, seconds: int) -> None:
        """Write, and print a line."""
        with self._daemon as daemon:
            daemon.start().wait_state("streaming")
            target = str(self._folder / "mirror")
            query = mirror(
                spark,
                None,
                target,
                config=str(daemon.config_path),
                format=self._format,
                trigger="0 seconds",
                on_error="fail",
                on_batch=self._seen,
            )
            try:
                warmed = self._committed("warm_up", WARM_UP_S, first=0)
                committed = self._committed("counted", seconds, first=len(warmed) + 1)
                lsn = self._postgres.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0]
                wait(target, lsn, timeout_s=WITHIN_S)
            finally:
                query.stop()
            assert query.exception() is None, query.exception()
        opened = read_mirror(target)
        (topic,) = opened.topics
        assert opened.rows(topic) == len(warmed) + len(committed)
        self._print(committed, seconds)

    def _seen(self, report: BatchReport) -> None:
        self._visible.append((report.commit_us, time.time_ns() // 1000))

    def _committed(self, name: str, seconds: int, *, first: int) -> list[int]:
        """Run pgbench; return the times when each COMMIT returned."""
        script, prefix = self._folder / f"{name}.sql", self._folder / name
        script.write_text(
            "\\set n :n + 1\n"
            f"INSERT INTO orders SELECT {CLIENT_ROWS}::bigint * :client_id + {first} + :n, "
            ":n::int % 1000, :n::int / 7.0, 'a note of some forty characters, or so', now();\n"
        )
        pgbench = programs_from_wheel(POSTGRES_MAJOR) / "bin" / "pgbench"
        command = [
            str(pgbench), "--no-vacuum", "--define", "n=0", "--protocol", "prepared",
            "--client", str(CLIENTS), "--jobs", "1", "--rate", str(RATE), "--time", str(seconds),
            "--file", str(script), "--log", "--log-prefix", str(prefix),
            "--host", self._postgres.host, "--port", str(self._postgres.port),
            "--username", self._postgres.superuser, self._database,
        ]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=seconds + WITHIN_S)
        lines = [
            line for path in self._folder.glob(f"{name}.[0-9]*") for line in path.read_text().splitlines()
        ]
        return sorted(committed_at(lines, CLIENT_ROWS).values())

    def _print(self, committed: Sequence[int], seconds: int) -> None:
        late = late_ms(committed, self._visible)
        counted = [at for _, at in self._visible if at >= committed[0]]
        p50, p95, p99 = (quantile(late, share) for share in (0.5, 0.95, 0.99))
        print(
            f"{self._format:8} {len(committed) / seconds:7.0f} {p50:6.0f} {p95:6.0f} {p99:6.0f} {late[-1]:6.0f} "
            f"{len(counted) / seconds:11.1f}",
            flush=True,
        )
        for name, measured in (("p50", p50), ("p99", p99)):
            print(f"{self._format}, {name}: {said_at_most(measured, WANTED_MS[name])}", flush=True)


def late_ms(committed: Sequence[int], visible: Sequence[tuple[int, int]]) -> list[float]:
    """Return, in order, how late each row was: until the first version whose last commit is not before it. Pure.

    `committed`: when each COMMIT returned. `visible`: the last commit of each version, and when it was visible, in
    order. All are in microseconds. The rows after the last of these commits are in the last version.
    """
    last_commits = [commit_us for commit_us, _ in visible]
    found = []
    for at_us in committed:
        place = bisect_left(last_commits, at_us)
        if place == len(visible):
            place -= 1
        found.append((visible[place][1] - at_us) / 1000)
    return sorted(found)
