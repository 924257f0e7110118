"""Fault 20: a row of 50 MB exceeds the default limits; with raised limits it is written.

F65: the halt names the row, and nothing is written. The memory that such a row needs is a multiple of its size, which
is asserted here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import SMALL_JVM, KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.lsn import parse_lsn
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed, memory_high_water_bytes
from tests.support.nightly import nightly
from tests.support.reader import Reader, assert_each_once
from tests.support.snapshot_commands import await_copied, start
from tests.support.stack import confirmed_position

ROW_BYTES = 50_000_000
VALUES = {
    "text": "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 1562500) i)",
    "bytea": "(SELECT string_agg(sha512(i::text::bytea), '') FROM generate_series(1, 781250) i)",
}
LIMIT_BYTES = "60000000"
COPIES = {"text": 8, "bytea": 11}
"""The peak memory for such a row, as a multiple of its size: PostgreSQL sends a bytea as text of twice its size."""


@pytest.fixture(scope="module")
def roomy_broker(artefacts: Cache, stack_folder: Path) -> Iterator[KafkaBroker]:
    """A broker with enough memory for such a row."""
    heap = ("-Xmx768m", *SMALL_JVM[1:])
    with KafkaBroker(stack_folder / "roomy-kafka", cache=artefacts, jvm_flags=heap) as broker:
        yield broker


def memory_bytes(daemon: Daemon) -> int:
    """Return the peak memory of the process."""
    assert daemon.process is not None
    return memory_high_water_bytes(daemon.process.pid)


@pytest.mark.parametrize("kind", [nightly("text"), pytest.param("bytea", marks=pytest.mark.long)])
def test_a_row_of_fifty_megabytes(
    kind: str,
    roomy_broker: KafkaBroker,
    registry: SchemaRegistry,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
) -> None:
    postgres.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {kind})", dbname=database)
    sink: dict[str, Any] = {"bootstrap_servers": roomy_broker.bootstrap}
    sink["topics"] = {"properties": {"max.message.bytes": LIMIT_BYTES}}
    with new_daemon(postgres, database, sink=sink) as daemon:
        topic, reader = f"{daemon.name}.public.t", Reader(roomy_broker.bootstrap, registry.url)
        daemon.start().wait_state("streaming")
        postgres.execute("INSERT INTO t VALUES (1, '')", dbname=database)
        await_confirmed(postgres, daemon)
        small_bytes = memory_bytes(daemon)
        postgres.execute(f"INSERT INTO t VALUES (2, {VALUES[kind]}), (3, '')", dbname=database)
        page = daemon.wait_state("halted")
        refusing_bytes = memory_bytes(daemon) - small_bytes
        assert "CDCD-RECORD-TOO-LARGE" in page["reason"]
        assert "table=public.t" in page["reason"]
        assert [event.key["id"] for event in reader.read(topic)] == [1]
        (commit_lsn,) = re.findall(r"commit_lsn=(\S+)", page["reason"])
        assert (confirmed_position(postgres, daemon.slot) or 0) <= parse_lsn(commit_lsn)
        assert daemon.stop() == 0
        daemon.config["sink"]["properties"] = {"message.max.bytes": LIMIT_BYTES}
        daemon.start().wait_state("streaming")
        await_confirmed(postgres, daemon)
        passing_bytes = memory_bytes(daemon) - small_bytes
        events = reader.read(topic)
        assert_each_once(events)
        assert sorted(event.key["id"] for event in events) == [1, 2, 3]
        (large,) = [event.value["after"]["v"] for event in events if event.key["id"] == 2]
        raw = large.encode() if kind == "text" else large
        ((size, digest),) = postgres.execute(
            "SELECT octet_length(v), encode(sha256(v::bytea), 'hex') FROM t WHERE id = 2", dbname=database
        )
        assert (len(raw), hashlib.sha256(raw).hexdigest()) == (size, digest)
        assert size == ROW_BYTES
        print(
            f"{kind}: {refusing_bytes / size:.1f} times its size to refuse it, {passing_bytes / size:.1f} to write it"
        )
        assert max(refusing_bytes, passing_bytes) < COPIES[kind] * size


@pytest.mark.long
def test_several_such_rows_are_copied_while_the_stream_runs(
    roomy_broker: KafkaBroker,
    registry: SchemaRegistry,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
) -> None:
    """An incremental snapshot needs the memory of one of the rows, not of all rows of a chunk."""
    rows = 4
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", dbname=database)
    postgres.execute(
        f"INSERT INTO t SELECT g, {VALUES['text']} FROM generate_series(1, {rows}) g", dbname=database
    )
    sink: dict[str, Any] = {"bootstrap_servers": roomy_broker.bootstrap}
    sink["topics"] = {"properties": {"max.message.bytes": LIMIT_BYTES}}
    sink["properties"] = {"message.max.bytes": LIMIT_BYTES}
    with new_daemon(postgres, database, sink=sink, snapshot={"mode": "never"}) as daemon:
        daemon.start().wait_state("streaming")
        small_bytes = memory_bytes(daemon)
        start(daemon, "public.t")
        await_copied(daemon)
        await_confirmed(postgres, daemon)
        copying_bytes = memory_bytes(daemon) - small_bytes
        events = Reader(roomy_broker.bootstrap, registry.url).read(f"{daemon.name}.public.t")
        assert sorted((event.key["id"], len(event.value["after"]["v"])) for event in events) == [
            (id_, ROW_BYTES) for id_ in range(1, rows + 1)
        ]
        print(f"{rows} rows: {copying_bytes / ROW_BYTES:.1f} times the size of one")
        assert copying_bytes < COPIES["text"] * ROW_BYTES
