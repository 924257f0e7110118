"""A PostgreSQL transaction larger than the limit of a Kafka transaction: a halt, or partial transactions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.lsn import parse_lsn
from tests.integration.conftest import STREAMED, NewDaemon
from tests.support.daemon import Daemon
from tests.support.nightly import nightly
from tests.support.proxy import Proxy
from tests.support.reader import Reader, assert_each_once, of_transactions
from tests.support.stack import confirmed_position, wal_position
from tests.support.topics import committed_records
from tests.support.waiting import eventually

ROWS = 12_000


def large(rows: int = ROWS) -> str:
    """Return a transaction."""
    return f"""
        BEGIN;
        INSERT INTO t SELECT g, repeat('p', 200) FROM generate_series(1, {rows}) g;
        UPDATE t SET id = id + 100000 WHERE id % 100 = 0;
        DELETE FROM t WHERE id <= 50;
        COMMIT
    """


def changes_of(rows: int = ROWS) -> int:
    """Return the number of its changes: a change of the key is a delete and an insert (F47)."""
    return rows + 2 * (rows // 100) + 50


def changes(reader: Reader, topic: str) -> int:
    """Return the number of changes that readers have, without tombstones."""
    return sum(event.value is not None for event in reader.read(topic))


def progress(kafka: KafkaBroker, daemon: Daemon) -> list[dict[str, Any]]:
    """Return the progress records, in their order."""
    found = committed_records(kafka.bootstrap, f"{daemon.name}.__progress")
    return [json.loads(message.value() or b"") for message in found if message.key() == daemon.slot.encode()]


def parts_of(kafka: KafkaBroker, daemon: Daemon) -> int:
    return sum("part" in record for record in progress(kafka, daemon))


@pytest.mark.parametrize(
    ("streaming", "rows"), [("streamed", ROWS // 4), nightly("plain", ROWS), nightly("streamed", ROWS)]
)
def test_each_change_is_there_once_after_kills_between_parts(
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
    kafka: KafkaBroker,
    kafka_door: Proxy,
    streaming: str,
    rows: int,
) -> None:
    """F4, F5, F64: readers drop the parts of a transaction that comes again; nothing of it is confirmed before its
    end.
    """
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, pad text)", dbname=database)
    over = {
        "sink": {"large_transactions": {"policy": "parts", "max_rows": 500}},
        "format": {"transactions": True},
    }
    with new_daemon(postgres, database, **over) as daemon:
        if streaming == "streamed":
            daemon.config["source"]["dsn"] += f"?{STREAMED}"
        daemon.config["sink"]["bootstrap_servers"] = f"127.0.0.1:{kafka_door.port}"
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        before = wal_position(postgres)
        kafka_door.slow(bytes_per_s=300_000)  # so that the kill comes between its parts
        postgres.execute(large(rows), dbname=database)
        for kill in range(2):
            known = parts_of(kafka, daemon)
            eventually(lambda known=known: parts_of(kafka, daemon) > known, f"parts before kill {kill}", 120)
            daemon.kill()
            if "part" in progress(kafka, daemon)[-1]:
                # Nothing of a transaction is confirmed before all its rows are durable.
                written = parse_lsn(progress(kafka, daemon)[-1]["part"]["commit_lsn"])
                assert before <= (confirmed_position(postgres, daemon.slot) or 0) <= written
            daemon.start()
        kafka_door.heal()
        eventually(lambda: changes(reader, topic) >= changes_of(rows), "all changes", 150, 0.5)
        eventually(
            lambda: "part" not in progress(kafka, daemon)[-1], "the record that completes the transaction"
        )
        events = [event for event in reader.read(topic) if event.value is not None]
        assert len(events) == changes_of(rows)
        assert_each_once(events)
        assert {event.value["source"]["tx_seq"] for event in events} == set(range(1, changes_of(rows) + 1))
        marks = [event.value for event in of_transactions(reader.read(f"{daemon.name}.transaction"))]
        assert [(mark["status"], mark["event_count"]) for mark in marks] == [
            ("BEGIN", None),
            ("END", changes_of(rows)),
        ]


@pytest.mark.nightly  # tests/hints has this halt
def test_by_default_a_large_transaction_halts_with_its_resolutions(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """Nothing of the transaction is visible; earlier changes are; with parts allowed, all its changes arrive."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, pad text)", dbname=database)
    with new_daemon(postgres, database, sink={"large_transactions": {"max_rows": 1000}}) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        postgres.execute("INSERT INTO t VALUES (-1, 'before')", dbname=database)
        postgres.execute(large(), dbname=database)
        daemon.wait_state("halted")
        (halt,) = daemon.events("halted")
        assert halt["code"] == "CDCD-TRANSACTION-TOO-LARGE"
        assert "limit in rows" in halt["error"]
        assert "Raise sink.large_transactions.max_rows and restart" in halt["error"]
        assert "large_transactions.policy: parts" in halt["error"]
        assert changes(reader, topic) == 1
        assert daemon.stop() == 0
        daemon.config["sink"]["large_transactions"]["policy"] = "parts"
        daemon.start()
        eventually(lambda: changes(reader, topic) >= changes_of() + 1, "all changes", 60, 0.5)
        assert_each_once([event for event in reader.read(topic) if event.value is not None])
