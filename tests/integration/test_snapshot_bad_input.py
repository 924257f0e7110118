"""Bad input of a snapshot: locks, dropped tables and columns, rights, time-outs, limits of connections.

The other tables are copied in any case, and the error or the wait has what is in the way, and where. A lock is taken
between the slot's creation, which waits for the locking transaction otherwise, and the copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.nightly import nightly
from tests.support.proxy import Proxy, Way
from tests.support.reader import Event, Reader, assert_each_once, fold
from tests.support.resolutions import halts_with
from tests.support.stack import PostgresServers, drop_database, new_database_name, run, run_script
from tests.support.waiting import eventually

ROWS = 2_000
TABLES = (
    "CREATE TABLE locked (id int PRIMARY KEY, note text, gone text)",
    "INSERT INTO locked VALUES (1, 'a', 'b'), (2, 'c', 'd')",
    "CREATE TABLE other (id int PRIMARY KEY, body text)",
    f"INSERT INTO other SELECT g, repeat('x', 200) FROM generate_series(1, {ROWS}) g",
)

TIMEOUTS = (
    "statement_timeout",
    "lock_timeout",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "transaction_timeout",
)


@pytest.fixture
def source(pg_server: PostgresServers) -> Iterator[tuple[PostgresServer, str]]:
    server, name = pg_server(18), new_database_name()
    server.create_database(name)
    run(server, name, *TABLES)
    yield server, name
    drop_database(server, name)


@pytest.fixture
def role(source: tuple[PostgresServer, str]) -> Iterator[str]:
    """Yield a role that may do what a daemon needs."""
    server, database = source
    name = f"r_{database}"
    run(
        server,
        database,
        f"CREATE ROLE {name} LOGIN REPLICATION",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}",
    )
    yield name
    server.execute("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = %s", name)
    run(server, database, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


@contextlib.contextmanager
def locking(
    server: PostgresServer, database: str, daemon: Daemon
) -> Iterator[psycopg2.extensions.connection]:
    """Start the daemon; yield a session that locks a table when the exported snapshot is first used."""
    with (
        Proxy(server.port) as link,
        contextlib.closing(psycopg2.connect(server.dsn(database))) as connection,
    ):
        for name in TIMEOUTS:
            connection.cursor().execute(f"SET {name} = 0")
        connection.commit()
        dsn = daemon.config["source"]["dsn"]
        daemon.config["source"]["dsn"] = dsn.replace(f":{server.port}/", f":{link.port}/")
        has_locked: list[bool] = []

        def lock(direction: Way, piece: bytes) -> bytes:
            if direction == "up" and b"SET TRANSACTION SNAPSHOT" in piece and not has_locked:
                has_locked.append(True)
                connection.cursor().execute("LOCK TABLE locked")
            return piece

        link.change(lock)
        try:
            wait_until_only_the_locked_one_is_left(daemon.start(), connection.info.backend_pid)
            yield connection
        finally:
            connection.close()
            if daemon.process is not None and daemon.process.poll() is None:
                daemon.stop()


def ids(events: list[Event]) -> set[int]:
    assert_each_once(events)
    return set(fold(events, lambda row: row["id"]))


def wait_until_only_the_locked_one_is_left(daemon: Daemon, pid: int) -> None:
    """Wait until the other table is copied, and until the wait for the lock is shown with its holder."""

    def rows() -> int:
        return int((daemon.status().get("snapshot") or {}).get("rows", 0))

    def waits() -> list[list[int]]:
        found = daemon.status().get("waiting_for", [])
        locks = [wait for wait in found if "AccessShareLock on public.locked" in wait["waits_for"]]
        return [[blocker["pid"] for blocker in wait["blockers"]] for wait in locks]

    # The last row of the other table has its marker when the next table's first row has come.
    eventually(lambda: rows() == ROWS - 1, "the other table is copied")
    eventually(lambda: waits() == [[pid]], "the wait for the lock is shown")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("statement", "columns"),
    [
        nightly("ALTER TABLE locked DROP COLUMN gone", {"id", "note"}),
        nightly("ALTER TABLE locked ADD COLUMN more int", {"id", "note", "gone"}),  # the snapshot is older
        ("DROP TABLE locked", None),
        nightly("ALTER TABLE locked RENAME TO renamed", None),
    ],
)
def test_a_table_that_is_locked_then_altered_or_dropped_does_not_end_the_copy(
    statement: str,
    columns: set[str] | None,
    source: tuple[PostgresServer, str],
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    server, database = source
    with new_daemon(server, database, snapshot={"workers": 1}) as daemon:
        with locking(server, database, daemon) as connection:
            connection.cursor().execute(statement)
            connection.commit()
            daemon.wait_state("streaming")
            run(server, database, "INSERT INTO other VALUES (0, 'after')")
            await_confirmed(server, daemon)
            assert daemon.stop() == 0
        other = reader.read(f"{daemon.name}.public.other")
        assert ids(other) == set(range(ROWS + 1))
        assert sum(event.op == "r" for event in other) == ROWS, "the other table is copied once"
        if "RENAME" in statement:
            assert ids(reader.read(f"{daemon.name}.public.renamed")) == {1, 2}
        elif columns is not None:
            events = reader.read(f"{daemon.name}.public.locked")
            assert ids(events) == {1, 2}
            assert all(set(event.value["after"]) == columns for event in events if event.op == "r")
        assert daemon.events("halted") == []


@pytest.mark.nightly  # test_snapshot_units has it
def test_a_right_that_is_revoked_meanwhile_halts_after_the_other_tables(
    source: tuple[PostgresServer, str], role: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    with new_daemon(server, database, snapshot={"workers": 1}) as daemon:
        daemon.config["source"]["dsn"] = server.dsn(database, user=role)
        with locking(server, database, daemon) as connection:
            connection.cursor().execute(f"REVOKE SELECT ON locked FROM {role}")
            connection.commit()
            reason = halts_with(daemon, "CDCD-SOURCE-SETUP")
            assert "permission denied" in reason
            assert "table=public.locked" in reason
            assert "grant the role the privilege" in reason
            run(server, database, f"GRANT SELECT ON locked TO {role}")
            daemon.reload()
            daemon.wait_state("streaming")
            assert daemon.stop() == 0
        assert ids(reader.read(f"{daemon.name}.public.locked")) == {1, 2}
        other = reader.read(f"{daemon.name}.public.other")
        assert [event.op for event in other].count("r") == len(other) == ROWS, "it is not copied again"


@pytest.mark.nightly
@pytest.mark.parametrize("of", ["ROLE", nightly("DATABASE")])
def test_time_outs_of_the_role_or_the_database_do_not_end_the_copy(
    of: str, source: tuple[PostgresServer, str], role: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """The lock makes the copy last longer than each of them, also than that of the idle exporting connection."""
    server, database = source
    named = role if of == "ROLE" else database
    with new_daemon(server, database, snapshot={"workers": 1}) as daemon:
        daemon.config["source"]["dsn"] = server.dsn(database, user=role)
        run_script(server.dsn(), *[f"ALTER {of} {named} SET {name} = '300ms'" for name in TIMEOUTS])
        with locking(server, database, daemon) as connection:
            connection.rollback()
            daemon.wait_state("streaming")
            assert daemon.stop() == 0
        assert ids(reader.read(f"{daemon.name}.public.locked")) == {1, 2}
        assert len(daemon.events("snapshot_started")) == 1
        assert daemon.events("retrying") == []


@pytest.mark.nightly  # test_snapshot_units has it
def test_with_a_connection_limit_the_copy_goes_on_with_fewer_workers(
    source: tuple[PostgresServer, str], role: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    more = [f"CREATE TABLE t{number} AS SELECT * FROM other" for number in range(8)]
    keys = [f"ALTER TABLE t{number} ADD PRIMARY KEY (id)" for number in range(8)]
    grant = f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}"
    run(server, database, *more, *keys, grant, f"ALTER ROLE {role} CONNECTION LIMIT 8")
    with new_daemon(server, database, snapshot={"workers": 16}) as daemon:
        daemon.config["source"]["dsn"] = server.dsn(database, user=role)
        daemon.start().wait_state("streaming")
        assert daemon.stop() == 0
        missing = daemon.events("snapshot_worker_missing")
        assert missing
        assert all("too many connections for role" in line["error"] for line in missing)
        assert len(daemon.events("snapshot_started")) == 1
        for name in ("other", *(f"t{number}" for number in range(8))):
            assert ids(reader.read(f"{daemon.name}.public.{name}")) == set(range(1, ROWS + 1))


@pytest.mark.nightly
def test_with_all_connections_of_the_server_in_use_the_copy_goes_on(
    pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader
) -> None:
    """max_connections, whose last ones are reserved for superusers."""
    names = [f"t{number}" for number in range(30)]
    with pg_server.fresh(
        18, settings={"max_connections": "20", "superuser_reserved_connections": "3"}
    ) as server:
        made = [f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in names]
        filled = [f"INSERT INTO {name} SELECT generate_series(1, 100)" for name in names]
        rights = ("CREATE ROLE reading LOGIN REPLICATION", "GRANT pg_read_all_data TO reading")
        run(server, "postgres", *made, *filled, *rights)
        with new_daemon(server, "postgres", snapshot={"workers": 30}) as daemon:
            daemon.config["source"]["dsn"] = server.dsn("postgres", user="reading")
            daemon.start().wait_state("streaming")
            assert daemon.stop() == 0
            missing = daemon.events("snapshot_worker_missing")
            assert missing
            assert all("connection" in line["error"] for line in missing)
            assert len(daemon.events("snapshot_started")) == 1
            assert daemon.events("retrying") == []
            for name in names:
                assert ids(reader.read(f"{daemon.name}.public.{name}")) == set(range(1, 101))


def test_a_wrong_condition_is_refused_before_the_slot_is_created(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon
) -> None:
    """F79: also `cdcd check` has all of them."""
    server, database = source
    overrides = [
        {"table": "public.locked", "where": "id >"},
        {"table": "public.other", "where": "missing > 1"},
    ]
    with new_daemon(server, database, snapshot={"overrides": overrides}) as daemon:
        checked = daemon.run("check")
        assert checked.returncode != 0
        for table, message in (("locked", "syntax error"), ("other", 'column "missing" does not exist')):
            (line,) = [line for line in checked.stdout.splitlines() if message in line]
            assert f"public.{table}" in line
            assert "snapshot.overrides" in line
        halts_with(daemon.start(), "CDCD-SOURCE-SETUP")
        slots = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s"
        assert server.execute(slots, daemon.slot) == []
