"""`cdcd check` and the daemon report the same for each setup, and a refused start leaves no trace (F79).

Run with -s for the table: setup, check, daemon.
"""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from confluent_kafka import Producer

from cdcd.cli.check import check, has_failed
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.integration.conftest import NewDaemon
from tests.support.broken_setups import SETUPS, Setup, World
from tests.support.daemon import Daemon
from tests.support.nightly import nightly_except
from tests.support.stack import PostgresServers
from tests.support.topics import create_topic, new_name

DEADLINE_S = 90.0


@pytest.fixture
def world(
    postgres: PostgresServer,
    database: str,
    pg_server: PostgresServers,
    new_daemon: NewDaemon,
    kafka: KafkaBroker,
    tmp_path: Path,
) -> Iterator[World]:
    """Yield servers and a daemon ready for a first start."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", dbname=database)
    daemon = new_daemon(postgres, database)
    spill = tmp_path / "spilling"
    spill.mkdir()
    daemon.config["buffer"] = {"spill_dir": str(spill)}
    with contextlib.ExitStack() as ends:
        ends.callback(daemon.__exit__)
        found = World(postgres, database, daemon, kafka, tmp_path, pg_server, ends)
        found.extra["producer"] = lambda slot: lasting_producer(kafka.bootstrap, f"cdcd-{slot}")
        yield found


def lasting_producer(bootstrap: str, transactional_id: str) -> Producer:
    """Return a producer whose transactions may stay open while a daemon waits for a broker that does not answer."""
    settings = {"transactional.id": transactional_id, "transaction.timeout.ms": 600_000}
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, **settings})
    producer.init_transactions(60)
    return producer


def verdict_of_check(world: World) -> str:
    """Return the code of the first failure, "unknown" if something could not be checked, "" if nothing failed."""
    findings = check(world.config)
    codes = [finding.code for finding in findings if finding.level == "fail"]
    verdict = codes[0] if codes else "unknown" if has_failed(findings) else ""
    assert all(finding.hint for finding in findings if finding.level != "ok")
    return verdict


def verdict_of_daemon(daemon: Daemon) -> str:
    """Return the code of the daemon's halt or wait, "" when it streams."""
    assert daemon.process is not None
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        if (status := daemon.process.poll()) is not None:
            return f"exit {status}"
        state = daemon.status().get("state")
        lines = daemon.events("halted") or daemon.events("retrying")
        if state in ("halted", "backoff", "waiting_slot") and lines:
            return str(lines[-1]["code"])
        if state == "streaming":
            return ""
        time.sleep(0.05)
    raise AssertionError(f"no verdict: {daemon.status()}\n{daemon.log()[-3000:]}")


def trace(world: World, registry: SchemaRegistry) -> dict[str, Any]:
    """Return everything that a start could have changed."""
    name = world.daemon.name
    topics = world.admin().list_topics(timeout=30).topics
    found: dict[str, Any] = {
        "topics": sorted(one for one in topics if name in one),
        "spill": sorted(str(path) for path in (world.folder / "spilling").rglob("*")),
    }
    with urllib.request.urlopen(f"{registry.url}/subjects", timeout=30) as answer:
        found["subjects"] = sorted(one for one in json.load(answer) if name in one)
    with contextlib.suppress(psycopg2.OperationalError):
        slots = "SELECT slot_name, plugin, confirmed_flush_lsn FROM pg_replication_slots ORDER BY 1"
        found["slots"] = world.server.execute(slots)
        publications = "SELECT pubname, oid FROM pg_publication ORDER BY 1"
        found["publications"] = world.server.execute(publications, dbname=world.database)
    return found


@pytest.fixture(scope="module")
def scratch(shared_kafka_and_door: tuple[KafkaBroker, object]) -> str:
    """Return a topic for the producer that must not be fenced."""
    name = new_name("scratch")
    create_topic(shared_kafka_and_door[0].bootstrap, name)
    return name


def working_producer(world: World, scratch: str) -> Producer:
    """Return a producer of the slot's id in the middle of a transaction, as a working daemon has it."""
    producer: Producer = world.extra["producer"](world.daemon.slot)
    producer.begin_transaction()
    producer.produce(scratch, b"a row of the right daemon")
    producer.flush(30)
    return producer


AT_EACH_CHANGE = (
    # tests/hints has more of the daemon's halts.
    "nothing is wrong, after a run",
    "slot dropped and made again",
    "another server than the position's",
    "more replicas than brokers",
)


@pytest.mark.parametrize(
    "setup",
    nightly_except(SETUPS, *AT_EACH_CHANGE, of=lambda setup: setup.name),
    ids=lambda setup: setup.name.replace(" ", "_"),
)
def test_check_and_the_daemon_agree_and_a_refused_start_leaves_no_trace(
    setup: Setup, world: World, registry: SchemaRegistry, scratch: str
) -> None:
    setup.make(world)
    producer = working_producer(world, scratch)
    before = trace(world, registry)
    checked = verdict_of_check(world)
    assert trace(world, registry) == before, "a check changed something"
    world.daemon.start()
    started = verdict_of_daemon(world.daemon)
    print(f"| {setup.name} | {checked or 'ok'} | {started or 'streams'} |")
    assert (checked, started) == setup.expected, world.daemon.log()[-3000:]
    if started:
        if started != "exit 78":
            assert world.daemon.stop() == 0
        assert trace(world, registry) == before
        producer.commit_transaction(30)  # the producer was not fenced


def test_there_are_at_least_forty_broken_ones() -> None:
    assert sum(any(setup.expected) for setup in SETUPS) >= 40
