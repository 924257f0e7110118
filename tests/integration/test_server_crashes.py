"""A server that crashes each time it decodes one row: cdcd retries without the options, then stops retrying."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.hints import commands_in, hint_of
from tests.support.reader import Event, Reader
from tests.support.resolutions import command, halts_with
from tests.support.stack import PostgresServers, run_script
from tests.support.waiting import eventually

DBNAME = "shop"
TYPE = (
    "CREATE TYPE fragile",
    "CREATE FUNCTION fragile_in(cstring) RETURNS fragile LANGUAGE internal IMMUTABLE STRICT AS 'int4in'",
    "CREATE FUNCTION fragile_out(fragile) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'int4out'",
    "CREATE FUNCTION fragile_send(fragile) RETURNS bytea LANGUAGE internal IMMUTABLE STRICT AS 'textsend'",
    "CREATE TYPE fragile (INPUT = fragile_in, OUTPUT = fragile_out, LIKE = int4)",
    "CREATE TABLE t (id int PRIMARY KEY, v fragile)",
)
OUTPUT = "CREATE OR REPLACE FUNCTION fragile_out(fragile) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS '{}'"
"""`textout` takes the number for an address: a real signal 11, in the process that decodes the row."""


@pytest.fixture(
    params=[pytest.param(14, marks=pytest.mark.long), pytest.param(16, marks=pytest.mark.long), 18]
)
def server(pg_server: PostgresServers, request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """Yield a server of the test's own, because its crashes end all sessions."""
    server = pg_server.fresh(request.param)
    server.start()
    server.create_database(DBNAME)
    run_script(server.dsn(DBNAME), *TYPE)
    yield server
    server.stop()


def crashes_of(server: PostgresServer) -> int:
    """Return how many processes ended by signal 11, according to the server's log."""
    return server.log.read_text().count("was terminated by signal 11")


def answers(server: PostgresServer) -> bool:
    """Return whether the server accepts connections."""
    with contextlib.suppress(psycopg2.OperationalError):
        return bool(server.execute("SELECT true", dbname=DBNAME))
    return False


def run(server: PostgresServer, *statements: str) -> None:
    """Run statements as soon as the server accepts connections."""
    eventually(lambda: answers(server), "the server has recovered")
    run_script(server.dsn(DBNAME), *statements)


def crash_by(server: PostgresServer, breaks: str, value: str) -> None:
    """Commit the row that crashes its decoder, possibly before the COMMIT returns."""
    run(server, breaks)
    with contextlib.suppress(psycopg2.OperationalError):
        run(server, f"INSERT INTO t VALUES (2, '{value}')")


def id_of(event: Event) -> int | None:
    """Return the row's key; None for a record without a row."""
    return event.value["after"]["id"] if event.value["after"] else None


def stream(daemon: Daemon, server: PostgresServer) -> None:
    """Let the daemon run until a row is durable and confirmed."""
    daemon.start().wait_state("streaming")
    run(server, "INSERT INTO t VALUES (1)")
    await_confirmed(server, daemon)


def test_a_row_that_crashes_the_server_each_time_halts(
    server: PostgresServer, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F85: three crashes and no more. The server decodes with the catalog of the row's time, so only a new slot
    helps.
    """
    with new_daemon(server, DBNAME, snapshot={"mode": "initial"}) as daemon:
        stream(daemon, server)
        crash_by(server, OUTPUT.format("textout"), "2")
        reason = halts_with(daemon, "CDCD-SOURCE-CRASH")
        eventually(lambda: answers(server), "the server has recovered")
        assert crashes_of(server) == 3
        assert [one["option"] for one in daemon.events("option_disabled")] == ["source.protocol.streaming"]
        run(server, OUTPUT.format("int4out"))
        assert ("resnapshot",) in commands_in(hint_of(reason))
        ran = command(daemon, "resnapshot")
        assert ran.returncode == 0, ran.stderr
        daemon.wait_state("streaming")
        run(server, "INSERT INTO t VALUES (3, '3')")
        events = reader.wait([f"{daemon.name}.public.t"], lambda events: 3 in [id_of(one) for one in events])
    assert {(id_of(one), one.op) for one in events if id_of(one) in (2, 3)} == {(2, "r"), (3, "c")}
    assert crashes_of(server) == 3


@pytest.mark.nightly
def test_a_row_that_crashes_the_server_in_binary_is_read_as_text(
    server: PostgresServer, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F85: the option causes the crash, and no operator is needed."""
    run(server, "DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY, v date)")
    with new_daemon(server, DBNAME, source={"protocol": {"binary": True}}) as daemon:
        stream(daemon, server)
        crash_by(server, "UPDATE pg_type SET typsend = 'textsend' WHERE typname = 'date'", "2026-01-01")
        events = reader.wait([f"{daemon.name}.public.t"], lambda events: len(events) >= 2)
        assert not daemon.events("halted")
        options = {one["option"] for one in daemon.events("option_disabled")}
    assert options == {"source.protocol.streaming", "source.protocol.binary"}
    assert sorted(id_of(one) or 0 for one in events) == [1, 2]
    assert crashes_of(server) == 2


@pytest.mark.nightly  # fault 6 has a crash
def test_crashes_that_have_nothing_to_do_with_the_stream_are_only_waited_for(
    server: PostgresServer, new_daemon: NewDaemon, reader: Reader
) -> None:
    """Between them the stream advances: more crashes than cdcd accepts at one position, and no halt."""
    with new_daemon(server, DBNAME) as daemon:
        stream(daemon, server)
        for number in range(2, 7):
            with pytest.raises(psycopg2.OperationalError):
                server.execute("SELECT fragile_send('1')", dbname=DBNAME)
            eventually(lambda n=number: crashes_of(server) == n - 1, "the server logs the crash")
            run(server, f"INSERT INTO t VALUES ({number}, '1')")
            await_confirmed(server, daemon)
        assert not daemon.events("halted")
        events = reader.wait([f"{daemon.name}.public.t"], lambda events: len(events) >= 6)
    assert sorted(id_of(one) or 0 for one in events) == [1, 2, 3, 4, 5, 6]
    assert crashes_of(server) == 5
