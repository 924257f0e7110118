"""Fault 22: Kafka does not let cdcd in, or takes a right away from it: named, tried again, and mended."""

from __future__ import annotations

from pathlib import Path

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.faults.inserting import Inserting, assert_all_there
from tests.faults.test_fault_31_secrets_kafka import TABLE, await_more_rows, by_password
from tests.integration.conftest import NewDaemon
from tests.support.daemon import await_confirmed
from tests.support.reader import Reader
from tests.support.secured_kafka import SecuredKafka
from tests.support.stack import confirmed_position
from tests.support.waiting import eventually


def test_a_wrong_password_is_named_and_heals_with_the_file(
    secured_kafka: SecuredKafka,
    registry: SchemaRegistry,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    tmp_path: Path,
) -> None:
    secured, user, secret = secured_kafka, "mistaken", tmp_path / "password"
    secured.set_password(user, "the right one")
    secured.allow(f"User:{user}")
    secret.write_text("canary")
    postgres.execute(TABLE, dbname=database)
    with new_daemon(postgres, database, sink=by_password(secured, user, secret)) as daemon:
        daemon.start()
        eventually(lambda: "CDCD-SINK-AUTH" in daemon.status().get("reason", ""), "the refusal is named")
        assert daemon.status()["state"] == "backoff"
        assert daemon.get("/readyz")[0] == 503
        postgres.execute("INSERT INTO t VALUES (1)", dbname=database)
        secret.write_text("the right one")
        daemon.wait_state("streaming")
        with Inserting(postgres.dsn(database), after=1) as rows:
            await_more_rows(daemon)
        await_confirmed(postgres, daemon)
        assert not daemon.events("halted")
        assert "canary" not in daemon.log()
        reader = Reader(secured.broker.bootstrap, registry.url)
        assert_all_there(reader.read(f"{daemon.name}.public.t"), rows)


def test_a_right_that_is_taken_away_is_told_and_waited_for(
    secured_kafka: SecuredKafka,
    registry: SchemaRegistry,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    tmp_path: Path,
) -> None:
    """While it may not write nothing is confirmed; the moment it may again, what has come meanwhile is written."""
    secured, user, secret = secured_kafka, "forbidden", tmp_path / "password"
    secured.set_password(user, "one")
    secured.allow(f"User:{user}")
    secret.write_text("one")
    postgres.execute(TABLE, dbname=database)
    with new_daemon(postgres, database, sink=by_password(secured, user, secret)) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        with Inserting(postgres.dsn(database)) as rows:
            await_more_rows(daemon)
            secured.deny(f"User:{user}", topic)
            eventually(lambda: "CDCD-SINK-AUTH" in daemon.status()["reason"], "the refusal is named")
            before = confirmed_position(postgres, daemon.slot)
            failed = 'cdcd_errors_total{class="retryable",component="sink"}'
            assert f"{failed} 0.0" not in daemon.get("/metrics")[1]
            assert topic in daemon.log()
            assert confirmed_position(postgres, daemon.slot) == before
            secured.give_back(f"User:{user}", topic)
            daemon.wait_state("streaming")
            await_more_rows(daemon)
        await_confirmed(postgres, daemon)
        assert not daemon.events("halted")
        assert_all_there(Reader(secured.broker.bootstrap, registry.url).read(topic), rows)
