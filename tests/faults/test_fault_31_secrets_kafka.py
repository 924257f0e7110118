"""Fault 31: a password of Kafka's that is changed, on the broker and on disk, while rows come all the time.

librdkafka reads passwords and certificates when a client is made: cdcd makes its clients anew between two Kafka
transactions, without ending the session with PostgreSQL.
"""

from __future__ import annotations

from pathlib import Path

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.faults.inserting import Inserting, assert_all_there
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.reader import Reader
from tests.support.secured_kafka import SecuredKafka
from tests.support.waiting import eventually

TABLE = "CREATE TABLE t (id int PRIMARY KEY)"


def by_password(secured: SecuredKafka, user: str, secret: Path) -> dict[str, object]:
    """A sink whose user's password is in a file."""
    return {
        "bootstrap_servers": f"127.0.0.1:{secured.sasl.port}",
        "properties": {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user,
        },
        "secret_files": {"sasl.password": str(secret)},
    }


def hasty(daemon: Daemon) -> Daemon:
    """A daemon that looks at its files often."""
    daemon.entry = ("-m", "tests.faults.hasty")
    return daemon


def await_more_rows(daemon: Daemon) -> None:
    """Wait until rows have come that had not come before."""
    before = daemon.status()["rows_written"]
    eventually(lambda: daemon.status()["rows_written"] > before, "rows flow", 60)


def test_a_password_is_changed_under_load(
    secured_kafka: SecuredKafka,
    registry: SchemaRegistry,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    tmp_path: Path,
) -> None:
    """One session from beginning to end; after the change it can connect with the new password only."""
    secured, user, secret = secured_kafka, "rotated", tmp_path / "password"
    secured.set_password(user, "canary one")
    secured.allow(f"User:{user}")
    secret.write_text("canary one")
    postgres.execute(TABLE, dbname=database)
    with hasty(new_daemon(postgres, database, sink=by_password(secured, user, secret))) as daemon:
        daemon.start().wait_state("streaming")
        with Inserting(postgres.dsn(database)) as rows:
            await_more_rows(daemon)
            secured.set_password(user, "canary two")
            secret.write_text("canary two")
            eventually(lambda: daemon.events("producer_rebuilt"), "it is picked up")
            await_more_rows(daemon)
            secured.sasl.cut()
            await_more_rows(daemon)
        await_confirmed(postgres, daemon)
        (rebuilt,) = daemon.events("producer_rebuilt")
        assert rebuilt["files"] == [str(secret)]
        assert "cdcd_producer_rebuilds_total 1.0" in daemon.get("/metrics")[1]
        assert len(daemon.events("streaming")) == 1
        assert not daemon.events("retrying")
        assert daemon.stop() == 0
        assert "canary" not in daemon.log()
        reader = Reader(secured.broker.bootstrap, registry.url)
        assert_all_there(reader.read(f"{daemon.name}.public.t"), rows)


def test_a_password_that_the_broker_does_not_know_yet_is_waited_for(
    secured_kafka: SecuredKafka,
    registry: SchemaRegistry,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    tmp_path: Path,
) -> None:
    """The file first, the broker afterwards: refused, tried again, and then nothing is missing or there twice."""
    secured, user, secret = secured_kafka, "early", tmp_path / "password"
    secured.set_password(user, "one")
    secured.allow(f"User:{user}")
    secret.write_text("one")
    postgres.execute(TABLE, dbname=database)
    with hasty(new_daemon(postgres, database, sink=by_password(secured, user, secret))) as daemon:
        daemon.start().wait_state("streaming")
        with Inserting(postgres.dsn(database)) as rows:
            await_more_rows(daemon)
            secret.write_text("two")
            eventually(lambda: "CDCD-SINK-AUTH" in daemon.status()["reason"], "the new one is refused")
            secured.set_password(user, "two")
            daemon.wait_state("streaming")
            await_more_rows(daemon)
        await_confirmed(postgres, daemon)
        assert not daemon.events("halted")
        reader = Reader(secured.broker.bootstrap, registry.url)
        assert_all_there(reader.read(f"{daemon.name}.public.t"), rows)
