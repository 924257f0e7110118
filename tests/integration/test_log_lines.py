"""Every message of libpq and librdkafka is a line of the log: structured, and counted when it repeats."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.nightly import nightly
from tests.support.reader import Reader
from tests.support.resolutions import command
from tests.support.stack import PostgresServers, drop_database, new_database_name
from tests.support.waiting import eventually

LOGIN = (
    "CREATE SCHEMA app",
    "CREATE TABLE app.logins (n int)",
    "CREATE TABLE public.t (id int PRIMARY KEY, day date)",
    """CREATE FUNCTION app.at_login() RETURNS event_trigger LANGUAGE plpgsql AS $$
       BEGIN
           PERFORM count(*) FROM logins;  -- found by the search path of the database
           PERFORM set_config('datestyle', 'German', false), set_config('timezone', 'Asia/Tokyo', false);
           RAISE WARNING 'the office is closed' USING DETAIL = 'a value of a row', HINT = 'come again';
       END $$""",
    "CREATE EVENT TRIGGER at_login ON login EXECUTE FUNCTION app.at_login()",
)
STORED_UNDER_GERMAN = "INSERT INTO public.t VALUES (1, '2024-02-01')"


@pytest.mark.parametrize("major", [nightly(17), 18])
def test_a_login_event_trigger_runs_as_for_everybody_and_what_it_says_is_logged(
    pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader, major: int
) -> None:
    """The trigger finds its names by the database's own search path, and its settings do not affect values (F53)."""
    server = pg_server(major)
    dbname = new_database_name()
    server.create_database(dbname)
    try:
        server.execute(f"ALTER DATABASE {dbname} SET search_path = app, public")
        for statement in LOGIN:
            server.execute(statement, dbname=dbname)
        daemon = new_daemon(server, dbname)
        server.execute(STORED_UNDER_GERMAN, dbname=dbname)
        checked = command(daemon, "check")
        assert checked.returncode == 0, checked.stdout
        assert {one["event"] for one in lines(checked.stderr)} == {"server_notice"}
        captured = command(
            daemon, "capture", "--output", str(daemon.config_path) + ".frames", "--seconds", "0.1"
        )
        assert captured.returncode == 0, captured.stderr
        raw = [line for line in captured.stderr.splitlines() if not line.startswith("cdcd: ")]
        assert {one["event"] for one in lines("\n".join(raw))} == {"server_notice"}
        assert len(raw) < len(captured.stderr.splitlines()), "the command's own lines are plain text"
        with daemon.start():
            daemon.wait_state("streaming")
            server.execute("INSERT INTO public.t VALUES (2, '2024-02-02')", dbname=dbname)
            await_confirmed(server, daemon)
            daemon.stop()
        days = [event.value["after"]["day"] for event in reader.read(f"{daemon.name}.public.t")]
        assert [str(day) for day in sorted(days)] == ["2024-02-01", "2024-02-02"]
        notices = [one for one in lines(daemon.log()) if one["event"] == "server_notice"]
        assert [(one["level"], one["message"]) for one in notices] == [
            ("warning", "the office is closed"),
            ("info", "the office is closed"),
        ]
        assert notices[1]["repeated"] > 3
        assert "a value of a row" not in daemon.log()
    finally:
        drop_database(server, dbname)


@pytest.mark.nightly
@pytest.mark.own_broker
def test_a_broker_that_restarts_is_one_warning(
    pg_server: PostgresServers, database: str, new_daemon: NewDaemon, kafka: KafkaBroker
) -> None:
    """Each client of the daemon meets the restart repeatedly: the refused connection is logged once, then counted."""
    server = pg_server(18)
    server.execute("CREATE TABLE public.t (id int PRIMARY KEY)", dbname=database)
    daemon = new_daemon(server, database)
    with daemon.start():
        daemon.wait_state("streaming")
        kafka.stop()
        try:
            server.execute("INSERT INTO public.t VALUES (1)", dbname=database)
            eventually(lambda: len(refused(daemon)) > 0, "a client is refused")
        finally:
            kafka.start()
        await_confirmed(server, daemon)
        daemon.stop()
    warnings = [one for one in refused(daemon) if one["level"] != "info"]
    assert [one["level"] for one in warnings] == ["warning"] * len({one["broker"] for one in warnings})
    (counted,) = [one for one in refused(daemon) if one["level"] == "info"]
    assert counted["repeated"] >= 1
    errors = [one for one in lines(daemon.log()) if one["level"] == "error"]
    assert errors == []


def refused(daemon: Daemon) -> list[dict[str, Any]]:
    return [one for one in daemon.events("kafka_client") if one["reason"] == "Connection refused"]


def lines(log: str) -> list[dict[str, Any]]:
    """Return every line: a line that is not JSON fails here."""
    return [json.loads(line) for line in log.splitlines()]
