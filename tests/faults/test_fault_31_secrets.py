"""Fault 31: a password that changes on disk is used from the next connection on."""

from __future__ import annotations

from pathlib import Path

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.reader import Reader, assert_each_once
from tests.support.stack import PostgresServers
from tests.support.waiting import eventually

TABLE = "CREATE TABLE t (id int PRIMARY KEY)"


def hang_up(server: PostgresServer) -> None:
    """Terminate every connection of the role, including the stream."""
    server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'cdcd'")


def assert_once(reader: Reader, daemon: Daemon, ids: list[int]) -> None:
    events = reader.read(f"{daemon.name}.public.t")
    assert_each_once(events)
    assert [event.value["after"]["id"] for event in events] == ids


def test_a_password_that_was_changed_is_read_at_the_next_connection(
    pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader, tmp_path: Path
) -> None:
    secret = tmp_path / "password"
    secret.write_text("first")
    with pg_server.fresh(18, authentication="scram-sha-256") as server:
        server.create_database("shop")
        server.execute(TABLE, dbname="shop")
        server.create_role("cdcd", "first")
        server.execute("GRANT SELECT ON t TO cdcd", dbname="shop")
        one_partition = {"topics": {"partitions": 1}}
        with new_daemon(server, "shop", sink=one_partition) as daemon:
            plain = f"postgresql://cdcd@{server.host}:{server.port}/shop"
            daemon.config["source"] |= {"dsn": plain, "password_file": str(secret)}
            daemon.start().wait_state("streaming")
            server.execute("INSERT INTO t VALUES (1)", dbname="shop")
            await_confirmed(server, daemon)
            server.execute("ALTER ROLE cdcd PASSWORD 'second'")
            hang_up(server)
            page = daemon.wait_state("backoff")
            eventually(lambda: "CDCD-SOURCE-AUTH" in daemon.status()["reason"], "the old password is refused")
            assert "first" not in page["reason"]
            server.execute("INSERT INTO t VALUES (2)", dbname="shop")
            secret.write_text("second")
            daemon.wait_state("streaming")
            await_confirmed(server, daemon)
            assert daemon.stop() == 0
            assert not {"first", "second"} & set(daemon.log().replace('"', " ").split())
            assert_once(reader, daemon, [1, 2])
