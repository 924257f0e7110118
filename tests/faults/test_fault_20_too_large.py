"""Fault 20: a record exceeds a size limit. The halt names its position; nothing is skipped.

F65: the producer's limit refuses the record at once, the topic's (or the broker's) at its delivery.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.failpoints import EXIT_STATUS
from cdcd.lsn import Lsn, format_lsn
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.hints import hint_of
from tests.support.nightly import nightly, nightly_except
from tests.support.reader import BEGINNING, Event, Reader, assert_each_once, assert_metadata_counts
from tests.support.stack import commit_behind, confirmed_position
from tests.support.topics import committed_records, set_topic_config

LARGE = (
    "INSERT INTO t SELECT g, CASE g WHEN 2 THEN repeat('secret', 100000) ELSE 'small' END"
    " FROM generate_series(1, 3) g"
)
"""One row of 600 kB between two small ones."""
LIMITS: dict[str, dict[str, Any]] = {
    "the producer's": {"properties": {"message.max.bytes": "100000"}},
    "the topic's": {"topics": {"properties": {"max.message.bytes": "100000"}}},
}


def let_in(kafka: KafkaBroker, topic: str) -> None:
    """Raise the topic's limit."""
    set_topic_config(kafka.bootstrap, topic, "max.message.bytes", "2000000")


@pytest.mark.parametrize("whose", nightly_except(LIMITS, "the topic's"))
def test_a_halt_that_says_where_until_somebody_raises_the_limit(
    whose: str,
    kafka: KafkaBroker,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, note text)", dbname=database)
    with new_daemon(postgres, database, sink=LIMITS[whose]) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        before = commit_behind(postgres, database, LARGE)
        page = daemon.wait_state("halted")
        assert "CDCD-RECORD-TOO-LARGE" in page["reason"]
        assert topic in page["reason"]
        assert "max.message.bytes" in page["reason"]
        assert "table=public.t" in page["reason"]
        assert "secretsecret" not in daemon.log()
        assert reader.read(topic) == []
        assert (confirmed_position(postgres, daemon.slot) or 0) <= before
        if whose == "the topic's":
            let_in(kafka, topic)
            daemon.reload()
        else:
            assert daemon.stop() == 0
            del daemon.config["sink"]["properties"]
            daemon.start()
        events = reader.wait([topic], lambda events: len(events) >= 3)
        assert_each_once(events)
        commit_lsn = format_lsn(Lsn(events[0].source["commit_lsn"]))
        assert f"commit_lsn={commit_lsn} " in page["reason"], "the halt has the position of the transaction"
        assert sorted(len(event.value["after"]["note"]) for event in events) == [5, 5, 600_000]


@pytest.mark.nightly
def test_a_row_of_the_snapshot_halts_behind_what_is_durable_of_it(
    kafka: KafkaBroker,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    """The copy restarts from its beginning: each session commits rows before the broker refuses the large one."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, note text)", dbname=database)
    postgres.execute(
        "INSERT INTO t SELECT g, CASE g WHEN 2000 THEN (SELECT string_agg(md5(i::text), '')"
        " FROM generate_series(1, 5000) i) ELSE 'small' END FROM generate_series(1, 3000) g",
        dbname=database,
    )
    # Each large row is a separate batch, so that the error concerns this row only.
    sink = LIMITS["the topic's"] | {"commit": {"max_rows": 500}, "properties": {"batch.size": "10000"}}
    with new_daemon(postgres, database, sink=sink) as daemon:
        topic = f"{daemon.name}.public.t"
        # Kafka's client sends no more records of a transaction to abort: cdcd does not wait for them until a timeout.
        page = daemon.start().wait_state("halted", deadline_s=40)
        assert "CDCD-RECORD-TOO-LARGE" in page["reason"]
        assert topic in page["reason"]
        let_in(kafka, topic)
        daemon.reload()
        daemon.wait_state("streaming")
        copied = {event.key["id"]: event.value["after"]["note"] for event in reader.read(topic)}
        assert sorted(copied) == list(range(1, 3001))
        assert len(copied[2000]) == 160_000


@pytest.mark.nightly
def test_what_has_to_wait_for_what_was_sent_does_not_wait_for_it_to_linger(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F65: after a topic has refused a batch, its rows are sent in batches below its limit, one after another.

    If each batch waited for `linger.ms`, the test would take an hour.
    """
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, note text)", dbname=database)
    slow = {"linger.ms": "200000", "batch.size": "1000000"}
    with new_daemon(postgres, database, sink={**LIMITS["the topic's"], "properties": slow}) as daemon:
        daemon.start().wait_state("streaming")
        rows = "SELECT g, repeat('x', 10000) FROM generate_series(1, 200) g"
        postgres.execute(f"INSERT INTO t {rows}", dbname=database)
        events = reader.wait([f"{daemon.name}.public.t"], lambda events: len(events) >= 200)
        assert_each_once(events)
        refused = [line for line in daemon.events("retrying") if line["code"] == "CDCD-SINK-BATCH-TOO-LARGE"]
        assert all(hint_of(line["error"]).startswith("no action is needed:") for line in refused), (
            "as asserted above"
        )


def letters(kafka: KafkaBroker, name: str) -> list[tuple[bytes | None, dict[str, Any]]]:
    """Return the records of the dead-letter topic for a read_committed reader."""
    found = committed_records(kafka.bootstrap, f"{name}.__dead_letters")
    return [(record.key(), json.loads(record.value())) for record in found]


def assert_reported_once(daemon: Daemon, kafka: KafkaBroker, events: list[Event], large: list[int]) -> None:
    """Assert that each row is there once, or instead a marker with its key and number, and one dead letter."""
    topic = f"{daemon.name}.public.t"
    rows = [event for event in events if event.topic == topic]
    assert_each_once(rows)
    assert sorted(event.key["id"] for event in rows) == list(range(1, len(rows) + 1))
    markers = {event.key["id"]: event for event in rows if event.op == "g"}
    assert sorted(markers) == large
    found = letters(kafka, daemon.name)
    reported = {
        (letter["timeline"], letter["commit_lsn"], letter["tx_seq"]): (key, letter) for key, letter in found
    }
    assert len(reported) == len(found) == len(large)
    raw = {record.key() for record in committed_records(kafka.bootstrap, topic)}
    for event in markers.values():
        timeline, commit_lsn, tx_seq = event.sequence or BEGINNING
        key, letter = reported[timeline, format_lsn(Lsn(commit_lsn)), tx_seq]
        assert key in raw
        assert (letter["table"], letter["key_columns"]) == ("t", ["id"])
        assert event.value["after"] is None
        special = event.source["special"]
        assert special["gap.dead_letters"] == f"{daemon.name}.__dead_letters"
        assert special["gap.op"] == letter["op"]
    ends = [event for event in events if event.topic == f"{daemon.name}.transaction"]
    assert ends, "the END record counts a marker as a change"
    streamed = [
        event for event in events if event.value.get("source", {}).get("snapshot", "false") == "false"
    ]
    assert_metadata_counts(streamed, ends[0].topic)


def run_to_its_crash(daemon: Daemon, failpoint: str) -> None:
    """Start the daemon with a failpoint, and wait for its crash there."""
    daemon.environment["CDCD_TEST_CRASH_AT"] = failpoint
    daemon.start()
    assert daemon.wait_exit() == EXIT_STATUS
    del daemon.environment["CDCD_TEST_CRASH_AT"]


def test_a_dead_letter_and_a_marker_once_for_each_row_though_killed_between(
    kafka: KafkaBroker, postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """In the snapshot and in the stream; the crash is after all records were sent and before their commit."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, note text)", dbname=database)
    postgres.execute(LARGE, dbname=database)
    with new_daemon(postgres, database, sink=LIMITS["the producer's"]) as daemon:
        daemon.config["sink"]["too_large"] = "dead_letter"
        daemon.config["format"] = {"transactions": True}
        daemon.start().wait_state("streaming")
        daemon.kill()
        postgres.execute(LARGE.replace("WHEN 2", "WHEN 5").replace("(1, 3)", "(4, 6)"), dbname=database)
        run_to_its_crash(daemon, "flushed")
        daemon.start().wait_state("streaming")
        await_confirmed(postgres, daemon)
        topics = [f"{daemon.name}.public.t", f"{daemon.name}.transaction"]
        assert_reported_once(daemon, kafka, reader.read(*topics), [2, 5])
        assert daemon.status()["dead_letters"] == 1
        assert 'cdcd_dead_letters_total{table="public.t"} 1.0' in daemon.get("/metrics")[1]
        reported = daemon.events("dead_letter")
        assert [(one["table"], one["op"]) for one in reported] == [("public.t", "r"), ("public.t", "c")]
        assert "secretsecret" not in daemon.log()


MIXED = """INSERT INTO t SELECT g, CASE
    WHEN g IN (40, 80) THEN (SELECT string_agg(md5(i::text), '') FROM generate_series(g, g + 20000) i)
    WHEN g = 60 THEN repeat('secret', 100000)
    ELSE repeat(md5(g::text), 60) END FROM generate_series(1, 120) g"""
"""Rows of 2 kB that fit alone and together exceed the limit, two of 640 kB, and one that compresses well."""


@pytest.mark.parametrize(("compression", "large"), [("none", [40, 60, 80]), nightly("zstd", [40, 80])])
def test_what_the_broker_refuses_is_found_row_by_row_and_what_fits_goes_on(
    compression: str,
    large: list[int],
    kafka: KafkaBroker,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    """The broker refuses whole batches; only the broker measures the compressed size."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, note text)", dbname=database)
    sink = LIMITS["the topic's"] | {
        "too_large": "dead_letter",
        "properties": {"compression.type": compression},
    }
    with new_daemon(postgres, database, sink=sink, format={"transactions": True}) as daemon:
        daemon.start().wait_state("streaming")
        postgres.execute(MIXED, dbname=database)
        await_confirmed(postgres, daemon, 150)  # each refusal costs a session with a pause before it
        topics = [f"{daemon.name}.public.t", f"{daemon.name}.transaction"]
        assert_reported_once(daemon, kafka, reader.read(*topics), large)
        assert "CDCD-SINK-BATCH-TOO-LARGE" in daemon.log()
        assert daemon.status()["dead_letters"] == len(large)
