"""A table whose topic lacks rows that cdcd is to copy is loading for readers, whatever the copy waits for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg2
import pytest
from pyspark.sql import SparkSession

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.errors import SnapshotIncomplete, TablesParked
from cdcd.spark.clients.connection import Connection, RegistryAccess
from cdcd.spark.data_source import CdcdReader
from cdcd.spark.mirroring.start import mirror
from cdcd.spark.reading.mirror import Mirror, read_mirror, wait
from cdcd.spark.source.source_options import parse_options
from tests.support.daemon import Daemon, await_confirmed
from tests.support.quick import QUICK
from tests.support.snapshot_commands import await_copied, command, reports, start
from tests.support.stack import run
from tests.support.waiting import eventually

ROWS = 1_000
TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, n int)",
    "INSERT INTO t VALUES (1, 0)",
    "CREATE TABLE big (id int PRIMARY KEY, n int)",
    f"INSERT INTO big SELECT g, 0 FROM generate_series(1, {ROWS}) g",
)
WRONG_RULE = [{"table": r"public\.big", "columns": ["nope"]}]


class Mirrored:
    """A daemon and its mirror."""

    def __init__(
        self, spark: SparkSession, postgres: PostgresServer, database: str, daemon: Daemon, target: str
    ) -> None:
        self.daemon, self.target = daemon, target
        self._spark, self._postgres, self._database = spark, postgres, database
        sink, registry = daemon.config["sink"], daemon.config["registry"]
        self._connection = Connection(
            sink["bootstrap_servers"], daemon.name, registry=RegistryAccess(registry["url"])
        )

    def execute(self, *statements: str) -> None:
        run(self._postgres, self._database, *statements)

    @property
    def dsn(self) -> str:
        return self._postgres.dsn(self._database)

    def topic(self, table: str) -> str:
        return f"{self.daemon.name}.public.{table}"

    def opened(self) -> Mirror:
        """Commit a row of another table, and return the mirror with all commits so far."""
        self.execute("UPDATE t SET n = n + 1")
        ((lsn,),) = self._postgres.execute("SELECT pg_current_wal_insert_lsn()::text")
        await_confirmed(self._postgres, self.daemon)
        mirror(self._spark, self._connection, self.target).awaitTermination()
        opened = read_mirror(self.target)
        ((n,),) = self._postgres.execute("SELECT n FROM t", dbname=self._database)
        (row,) = opened.table(self.topic("t")).to_pylist()
        assert row["n"] == n, "a table that is loading holds back no other"
        if opened.loading:
            with pytest.raises(TablesParked):
                wait(self.target, lsn, timeout_s=0)
        else:
            wait(self.target, lsn, timeout_s=0)
        return opened

    def loading(self) -> list[str]:
        """Return the names of the loading tables; a batch read refuses the same."""
        found = self.opened().loading
        given = {"brokers": self._connection.brokers, "prefix": self.daemon.name, "readers": "1"}
        with pytest.raises(SnapshotIncomplete) if found else contextlib.nullcontext() as raised:
            CdcdReader(parse_options(given)).partitions()
        assert raised is None or all(topic in str(raised.value) for topic in found)
        return [topic.rpartition(".")[2] for topic in found]

    def shown(self) -> list[str]:
        """Return the tables that the daemon's status lists."""
        return [one["topic"].rpartition(".")[2] for one in self.daemon.status()["incomplete_topics"]]

    def assert_same_rows(self, table: str) -> None:
        opened = self.opened()
        assert [*opened.loading, *opened.parked] == []
        rows = self._postgres.execute(f"SELECT to_jsonb(t) FROM {table} t ORDER BY id", dbname=self._database)
        found = sorted(
            opened.table(self.topic(table)).drop(["__special"]).to_pylist(), key=lambda row: row["id"]
        )
        assert found == [row for (row,) in rows]

    def rows(self, table: str) -> int:
        return read_mirror(self.target).rows(self.topic(table))


@pytest.fixture
def mirrored(
    spark: SparkSession,
    postgres: PostgresServer,
    database: str,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
    tmp_path: Path,
) -> Iterator[Callable[[str], Mirrored]]:
    """Return what starts a daemon with a publication."""
    run(postgres, database, *TABLES)
    name = f"n{database}"
    daemon = Daemon(
        tmp_path / "cdcd",
        name,
        dsn=postgres.dsn(database),
        bootstrap=kafka.bootstrap,
        registry_url=registry.url,
    )
    daemon.entry = QUICK

    def started(published: str) -> Mirrored:
        run(postgres, database, f"CREATE PUBLICATION cdcd_{name} FOR {published}")
        daemon.start().wait_state("streaming")
        return Mirrored(spark, postgres, database, daemon, str(tmp_path / "mirror"))

    with daemon:
        yield started


@contextlib.contextmanager
def locked_behind(dsn: str, statements: str) -> Iterator[None]:
    """Execute statements that lock `big`, and hold a stronger lock from their COMMIT on, without a moment between."""
    with (
        contextlib.closing(psycopg2.connect(dsn)) as first,
        contextlib.closing(psycopg2.connect(dsn)) as locker,
    ):
        first.cursor().execute(statements)
        pid = locker.info.backend_pid
        lock = "LOCK TABLE big IN ACCESS EXCLUSIVE MODE"
        waiting = threading.Thread(target=lambda: locker.cursor().execute(lock))
        waiting.start()

        def is_queued() -> bool:
            with contextlib.closing(psycopg2.connect(dsn)) as other, other.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted", (pid,))
                return cursor.fetchone() == (1,)

        eventually(is_queued, "the lock waits")
        first.commit()
        waiting.join()
        yield


def test_a_table_that_waits_for_its_copy_is_loading(mirrored: Callable[[str], Mirrored]) -> None:
    """No comparison can find it while it is locked; then a wrong rule keeps its copy from the beginning."""
    one = mirrored("TABLE t")
    daemon = one.daemon
    assert one.loading() == []
    assert daemon.stop() == 0
    daemon.config["snapshot"] = {"overrides": WRONG_RULE}
    daemon.start().wait_state("streaming")
    joins = f"ALTER PUBLICATION cdcd_{daemon.name} ADD TABLE big; INSERT INTO big VALUES ({ROWS + 1}, 1)"
    with locked_behind(one.dsn, joins):
        assert one.loading() == ["big"]
        assert one.rows("big") == 1
        daemon.kill()
        daemon.start().wait_state("streaming")
        assert one.loading() == ["big"], "by the record of the former process"
    eventually(lambda: bool(daemon.events("new_table_not_begun")), "its copy cannot begin")
    assert one.loading() == ["big"]
    assert one.shown() == ["big"]
    assert daemon.stop() == 0
    daemon.config["snapshot"] = {"overrides": []}
    daemon.start().wait_state("streaming")
    eventually(lambda: bool(daemon.events("table_copied")), "the table is copied")
    assert one.loading() == []
    assert one.rows("big") == ROWS + 1
    assert one.shown() == []


def test_a_table_that_alter_table_rewrites_is_loading_until_it_is_copied(
    mirrored: Callable[[str], Mirrored],
) -> None:
    """PostgreSQL does not send the rows. A type that parks the table needs no operator, either."""
    one = mirrored("ALL TABLES")
    daemon = one.daemon
    one.assert_same_rows("big")
    assert daemon.stop() == 0
    daemon.config["snapshot"] = {"overrides": WRONG_RULE}
    daemon.start().wait_state("streaming")
    one.execute("ALTER TABLE big ADD c int DEFAULT 7", f"INSERT INTO big VALUES ({ROWS + 1}, 1)")
    eventually(lambda: bool(daemon.events("new_table_not_begun")), "its copy cannot begin")
    assert one.loading() == ["big"]
    assert daemon.stop() == 0
    daemon.config["snapshot"] = {"overrides": []}
    daemon.config["registry"]["incompatible"] = "register_with_none"
    daemon.start().wait_state("streaming")
    eventually(lambda: len(daemon.events("table_copied")) == 1, "the table is copied")
    one.assert_same_rows("big")
    for number, statement in enumerate(
        (
            "ALTER TABLE big ALTER n TYPE text USING 'n' || n; UPDATE big SET c = 8 WHERE id = 1",
            "ALTER TABLE big ADD d uuid DEFAULT gen_random_uuid()",
            "ALTER TABLE big DROP d, ADD e text NOT NULL DEFAULT 'e'; ALTER TABLE big ALTER e DROP DEFAULT",
        ),
        2,
    ):
        one.execute(statement)
        eventually(lambda number=number: len(daemon.events("table_copied")) == number, "the table is copied")
        one.assert_same_rows("big")


def test_a_table_that_is_streamed_only_is_not_loading(mirrored: Callable[[str], Mirrored]) -> None:
    """By its rule, by `snapshot.new_tables`, and because the stream has all of its rows, without another commit."""
    one = mirrored("TABLE t")
    daemon = one.daemon
    assert daemon.stop() == 0
    daemon.config["snapshot"] = {"overrides": WRONG_RULE}
    daemon.start().wait_state("streaming")
    joins = f"ALTER PUBLICATION cdcd_{daemon.name} ADD TABLE big"
    one.execute(joins, f"INSERT INTO big VALUES ({ROWS + 1}, 1)")
    assert one.loading() == ["big"]
    assert daemon.stop() == 0
    daemon.config["snapshot"] = {"new_tables": "stream_only"}
    daemon.start().wait_state("streaming")
    assert one.loading() == []
    assert one.rows("big") == 1


def test_a_table_that_is_created_while_all_are_published_is_soon_complete(
    mirrored: Callable[[str], Mirrored],
) -> None:
    one = mirrored("ALL TABLES")
    one.execute("CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later VALUES (1)")
    eventually(lambda: "later" not in one.opened().loading, "the stream has all of its rows")
    assert one.rows("later") == 1


def test_a_copy_that_has_emptied_its_topic_and_was_stopped_leaves_the_table_loading(
    mirrored: Callable[[str], Mirrored],
) -> None:
    """Also in the next process. A copy without rows accepts what there is, a whole one completes the table."""
    one = mirrored("ALL TABLES")
    daemon = one.daemon
    assert one.loading() == []
    start(daemon, "public.big")
    assert command(daemon, "stop", "public.big")[0] in (200, 422)
    assert one.loading() == [], "readers have all rows that they had"
    assert daemon.stop() == 0
    daemon.config["snapshot"] = {"incremental": {"max_rows_per_second": 20}}
    daemon.start().wait_state("streaming")
    start(daemon, "public.big", recopy=True)
    eventually(lambda: bool(reports(daemon)) and reports(daemon)[0]["rows"] > 0, "some rows are copied")
    assert command(daemon, "stop", "public.big")[0] == 200
    assert one.loading() == ["big"]
    assert one.rows("big") < ROWS
    assert one.shown() == ["big"]
    daemon.kill()
    daemon.config["snapshot"] = {}
    daemon.start().wait_state("streaming")
    assert one.loading() == ["big"]
    start(daemon, "public.big", where="false")
    await_copied(daemon)
    assert one.loading() == []
    assert one.rows("big") < ROWS
    start(daemon, "public.big", recopy=True)
    await_copied(daemon)
    assert one.loading() == []
    assert one.rows("big") == ROWS


def test_a_table_that_leaves_the_publications_during_its_copy_remains_loading(
    mirrored: Callable[[str], Mirrored],
) -> None:
    one = mirrored("TABLE t")
    daemon = one.daemon
    assert daemon.stop() == 0
    daemon.config["snapshot"] = {"incremental": {"max_rows_per_second": 20}}
    daemon.start().wait_state("streaming")
    one.execute(f"ALTER PUBLICATION cdcd_{daemon.name} ADD TABLE big")
    eventually(lambda: bool(reports(daemon)) and reports(daemon)[0]["rows"] > 0, "some rows are copied")
    one.execute(f"ALTER PUBLICATION cdcd_{daemon.name} DROP TABLE big")
    eventually(lambda: bool(daemon.events("table_not_copied")), "the copy has ended")
    assert one.loading() == ["big"]
    assert daemon.stop() == 0
    daemon.config["snapshot"] = {}
    one.execute(f"ALTER PUBLICATION cdcd_{daemon.name} ADD TABLE big")
    daemon.start().wait_state("streaming")
    eventually(lambda: bool(daemon.events("table_copied")), "the table is copied")
    assert one.loading() == []
    assert one.rows("big") == ROWS


def test_a_table_that_is_dropped_and_created_again_each_night_is_not_loading_for_ever(
    mirrored: Callable[[str], Mirrored],
) -> None:
    """Dropped while it waits for its copy, and during the copy, which a recreated name always needs."""
    one = mirrored("ALL TABLES")
    daemon = one.daemon
    fills = "INSERT INTO staging SELECT generate_series(1, 2000)"
    one.execute("CREATE TABLE staging (id int PRIMARY KEY)", fills)
    eventually(lambda: one.opened().loading == [], "the stream has all of its rows")
    one.execute("DROP TABLE staging")
    assert daemon.stop() == 0
    daemon.config["snapshot"] = {"incremental": {"max_rows_per_second": 20}}
    daemon.start().wait_state("streaming")
    one.execute("CREATE TABLE staging (id int PRIMARY KEY)", fills)
    eventually(lambda: bool(reports(daemon)) and reports(daemon)[0]["rows"] > 0, "some rows are copied")
    assert one.shown() == ["staging"]
    one.execute("DROP TABLE staging")
    eventually(lambda: bool(daemon.events("table_not_copied")), "the copy has ended")
    eventually(lambda: one.shown() == [], "no copy can follow")
    assert one.loading() == []
    one.execute("CREATE TABLE staging (id int PRIMARY KEY)", fills)
    eventually(lambda: one.shown() == ["staging"], "it waits, or is copied")
    one.execute("DROP TABLE staging")
    eventually(lambda: one.shown() == [], "no copy can follow")
    daemon.kill()
    daemon.start().wait_state("streaming")
    assert one.loading() == []


def test_a_created_table_is_soon_complete_after_a_lock_on_another_one(
    mirrored: Callable[[str], Mirrored],
) -> None:
    one = mirrored("ALL TABLES")
    daemon = one.daemon
    with contextlib.closing(psycopg2.connect(one.dsn)) as locker:
        locker.cursor().execute("LOCK TABLE big IN ACCESS EXCLUSIVE MODE")
        one.execute("CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later VALUES (1)")
        assert one.loading() == ["later"], "nobody can read the publications"
    eventually(lambda: one.shown() == [], "the stream has all of its rows")
    assert one.loading() == []
    assert one.rows("later") == 1
    assert daemon.events("table_copied") == []


@pytest.mark.nightly
def test_a_blocking_copy_that_was_stopped_before_it_has_emptied_the_topic_leaves_the_table_complete(
    mirrored: Callable[[str], Mirrored],
) -> None:
    one = mirrored("ALL TABLES")
    assert one.loading() == []
    with contextlib.closing(psycopg2.connect(one.dsn)) as open_transaction:  # the copy waits for its end
        open_transaction.cursor().execute("CREATE TABLE never (id int)")
        start(one.daemon, "public.big", blocking=True, recopy=True)
        assert command(one.daemon, "stop", "public.big")[0] == 200
    assert one.loading() == []
    assert one.rows("big") == ROWS
    start(one.daemon, "public.big", blocking=True, recopy=True)
    await_copied(one.daemon)
    assert one.loading() == []
    assert one.rows("big") == ROWS
