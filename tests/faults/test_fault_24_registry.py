"""Fault 24: the registry is down, slow, answers 500, 401 or 409, or was restarted empty (F55).

The daemon is a process, the registry a real one, behind a proxy that can be closed or answer instead of the registry.
"""

from __future__ import annotations

import io
import json
import struct
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.integration.conftest import NewDaemon
from tests.support.daemon import STREAM_ONLY, Daemon, await_confirmed, await_received
from tests.support.hints import hint_of
from tests.support.nightly import nightly
from tests.support.reader import Event, Reader, assert_each_once
from tests.support.registry_door import Door
from tests.support.stack import commit_behind, confirmed_position, run
from tests.support.topics import committed_records
from tests.support.waiting import eventually

T = "CREATE TABLE t (id int PRIMARY KEY, v text)"
U = "CREATE TABLE u (id int PRIMARY KEY)"


@pytest.fixture
def door(registry: SchemaRegistry) -> Iterator[Door]:
    with Door(registry.url) as one:
        yield one


def behind(door: Door, new_daemon: NewDaemon, server: PostgresServer, database: str, **over: Any) -> Daemon:
    """Return a daemon that uses the proxy's address; the schemas of t are registered and one row is written."""
    run(server, database, T, "INSERT INTO t VALUES (1, 'a')")
    return new_daemon(server, database, registry={"url": door.url}, snapshot=STREAM_ONLY, **over)


def rows(events: list[Event]) -> dict[Any, str]:
    return {event.key["id"]: event.op for event in events if event.value is not None}


def wait_rows(reader: Reader, daemon: Daemon, table: str, *ids: int, within_s: float = 60) -> list[Event]:
    """Wait until the table's topic has exactly these rows, each once; return the events."""
    topic = f"{daemon.name}.public.{table}"
    events = reader.wait([topic], lambda events: sorted(rows(events)) == sorted(ids), within_s)
    assert_each_once(events)
    assert len(events) == len(ids)
    return events


def shut(door: Door) -> None:
    door.shut()


def answer_500(door: Door) -> None:
    door.status = 500


def hint(door: Door) -> None:
    door.status = None
    if door._server is None:
        door.open()


@pytest.mark.parametrize("fault", [shut, nightly(answer_500)], ids=["stopped", "500"])
def test_what_is_known_flows_and_what_is_new_waits(
    fault: Any,
    door: Door,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    """Rows with known schemas flow, also after a reconnection to PostgreSQL; a new table's row and all later wait."""
    with behind(door, new_daemon, postgres, database) as daemon:
        daemon.start().wait_state("streaming")
        fault(door)
        run(postgres, database, "INSERT INTO t VALUES (2, 'b')")
        wait_rows(reader, daemon, "t", 1, 2)
        await_confirmed(postgres, daemon)
        walsender = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s"
        postgres.execute(walsender, daemon.slot)
        run(postgres, database, "INSERT INTO t VALUES (3, 'c')")
        wait_rows(reader, daemon, "t", 1, 2, 3)
        await_confirmed(postgres, daemon)
        run(postgres, database, U)
        await_confirmed(postgres, daemon)
        before = commit_behind(postgres, database, "INSERT INTO u VALUES (1)")
        run(postgres, database, "INSERT INTO t VALUES (4, 'd')")
        page = daemon.wait_state("backoff")
        assert "CDCD-REGISTRY-UNAVAILABLE" in page["reason"]
        eventually(
            lambda: len(daemon.events("retrying")) >= 3, "the daemon has retried, with increasing pauses"
        )
        assert daemon.get("/livez")[0] == 200
        assert (confirmed_position(postgres, daemon.slot) or 0) <= before
        assert sorted(rows(reader.read(f"{daemon.name}.public.t"))) == [1, 2, 3]
        assert reader.read(f"{daemon.name}.public.u") == []
        hint(door)
        wait_rows(reader, daemon, "u", 1)
        wait_rows(reader, daemon, "t", 1, 2, 3, 4)
        await_confirmed(postgres, daemon)


def test_a_daemon_that_starts_without_the_registry_waits_for_it(
    door: Door, postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    with behind(door, new_daemon, postgres, database) as daemon:
        door.shut()
        daemon.start().wait_state("backoff")
        run(postgres, database, "INSERT INTO t VALUES (2, 'b')")
        assert reader.read(f"{daemon.name}.public.t") == []
        door.open()
        daemon.wait_state("streaming")
        wait_rows(reader, daemon, "t", 1, 2)


@pytest.mark.nightly
def test_a_slow_registry_only_delays(
    door: Door, postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """With a second a call, known schemas are not requested again, and the daemon answers on its admin port."""
    with behind(door, new_daemon, postgres, database) as daemon:
        daemon.start().wait_state("streaming")
        door.delay_s = 1.0
        asked = len(door.asked)
        run(postgres, database, U, "INSERT INTO t VALUES (2, 'b')")
        wait_rows(reader, daemon, "t", 1, 2)
        run(postgres, database, "INSERT INTO u VALUES (1)")
        eventually(lambda: len(door.asked) > asked, "the new table's schema is requested")
        assert daemon.get("/livez")[0] == 200
        assert daemon.status()["state"] == "streaming"
        wait_rows(reader, daemon, "u", 1)
        assert daemon.events("retrying") == []


def test_401_halts_until_the_credentials_are_corrected(
    door: Door, postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """Rows with known schemas flow; a new schema halts, and after SIGHUP the same row comes next."""
    with behind(door, new_daemon, postgres, database) as daemon:
        daemon.start().wait_state("streaming")
        door.status = 401
        run(postgres, database, U, "INSERT INTO t VALUES (2, 'b')")
        wait_rows(reader, daemon, "t", 1, 2)
        await_confirmed(postgres, daemon)
        before = commit_behind(postgres, database, "INSERT INTO u VALUES (1)")
        run(postgres, database, "INSERT INTO t VALUES (3, 'c')")
        page = daemon.wait_state("halted")
        assert "CDCD-REGISTRY-REFUSED" in page["reason"]
        assert "credentials" in page["reason"]
        assert daemon.get("/readyz")[0] == 503
        assert (confirmed_position(postgres, daemon.slot) or 0) <= before
        door.status = None
        daemon.reload()
        wait_rows(reader, daemon, "u", 1)
        wait_rows(reader, daemon, "t", 1, 2, 3)


@pytest.mark.nightly  # tests/hints has this halt
def test_409_halts_and_an_operator_decides(
    door: Door,
    registry: SchemaRegistry,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    """The registry answers 409 to an incompatible change; with a lower compatibility level the row is written."""
    with behind(door, new_daemon, postgres, database) as daemon:
        daemon.start().wait_state("streaming")
        run(postgres, database, "ALTER TABLE t ALTER v TYPE int USING 7")
        await_confirmed(postgres, daemon)
        before = commit_behind(postgres, database, "INSERT INTO t VALUES (2, 8)")
        page = daemon.wait_state("halted")
        assert "status=409" in page["reason"]
        assert (confirmed_position(postgres, daemon.slot) or 0) <= before
        daemon.reload()
        eventually(lambda: len(daemon.events("halted")) == 2, "a second attempt halts as well")
        topic = f"{daemon.name}.public.t"
        body = b'{"compatibility": "NONE"}'
        request = urllib.request.Request(
            f"{registry.url}/config/{topic}-value",
            body,
            {"Content-Type": "application/json"},
            method="PUT",
        )
        urllib.request.urlopen(request, timeout=10).close()
        daemon.reload()
        events = wait_rows(reader, daemon, "t", 1, 2)
        assert [event.value["after"]["v"] for event in events if event.key == {"id": 2}] == [8]


@pytest.mark.nightly  # tests/hints has this halt
def test_a_schema_that_is_not_registered_halts_and_is_printed(
    door: Door,
    registry: SchemaRegistry,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    """auto_register: false. The printed schemas of key and value are registered by hand, and the rows flow."""
    with behind(door, new_daemon, postgres, database) as daemon:
        daemon.config["registry"]["auto_register"] = False
        daemon.start()
        for number in (1, 2):  # the schema of the key, then of the value
            eventually(
                lambda n=number: len(daemon.events("halted")) == n, "the daemon halts at the next schema"
            )
            assert daemon.wait_state("halted")
            halted = daemon.events("halted")[-1]["error"]
            assert "auto_register is off" in halted
            subject = halted.partition("subject=")[2].partition("]")[0]
            printed = hint_of(halted).partition("then `cdcd resume`: ")[2]
            assert not any(one.method == "POST" and one.path.endswith("/versions") for one in door.asked)
            register(registry, subject, printed)
            daemon.reload()
        daemon.wait_state("streaming")
        run(postgres, database, "INSERT INTO t VALUES (2, 'b')")
        wait_rows(reader, daemon, "t", 1, 2)


def register(registry: SchemaRegistry, subject: str, schema: str) -> None:
    request = urllib.request.Request(
        f"{registry.url}/subjects/{subject}/versions",
        json.dumps({"schema": schema}).encode(),
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    urllib.request.urlopen(request, timeout=10).close()


def all_schemas(registry: SchemaRegistry, *subjects: str) -> dict[int, Any]:
    found = {}
    for subject in subjects:
        url = f"{registry.url}/subjects/{subject}/versions/latest"
        with urllib.request.urlopen(url, timeout=10) as answer:
            version = json.load(answer)
        found[version["id"]] = fastavro.parse_schema(json.loads(version["schema"]))
    return found


@pytest.mark.nightly
def test_a_registry_that_was_restarted_empty_gets_nothing_under_an_id_in_use(
    artefacts: Cache,
    stack_folder: Path,
    postgres: PostgresServer,
    database: str,
    kafka: KafkaBroker,
    new_daemon: NewDaemon,
) -> None:
    """The daemon halts before it registers a new schema there; after SIGHUP it registers all schemas again."""
    folder = stack_folder / "registry-that-forgets"
    with (
        SchemaRegistry(folder, cache=artefacts) as forgetful,
        Door(forgetful.url) as door,
        behind(door, new_daemon, postgres, database) as daemon,
    ):
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        before = all_schemas(forgetful, f"{topic}-value")
        run(postgres, database, U)
        await_confirmed(postgres, daemon)
        forgetful.stop()
        forgetful.start()
        door.registry_url = forgetful.url
        run(postgres, database, "INSERT INTO u VALUES (1)", "INSERT INTO t VALUES (2, 'b')")
        page = daemon.wait_state("halted")
        assert "the registry has lost" in page["reason"]
        with urllib.request.urlopen(f"{forgetful.url}/subjects", timeout=10) as answer:
            assert json.load(answer) == []
        daemon.reload()
        again = Reader(kafka.bootstrap, forgetful.url)
        wait_rows(again, daemon, "u", 1)
        await_received(postgres, daemon)
        await_confirmed(postgres, daemon)
        names = [f"{topic}-value", f"{daemon.name}.public.u-value"]
        after = all_schemas(forgetful, *names)
        first, second = committed_records(kafka.bootstrap, topic, at_least=2)
        by_offset = sorted((first, second), key=lambda record: record.timestamp())
        values = [
            fastavro.schemaless_reader(io.BytesIO(record.value()[5:]), schemas[number_of(record)])
            for record, schemas in zip(by_offset, (before, after), strict=True)
        ]
        assert [value["after"] for value in values] == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]


def number_of(record: Any) -> int:
    (number,) = struct.unpack_from(">I", record.value(), 1)
    return int(number)
