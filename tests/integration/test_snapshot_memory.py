"""The memory of a snapshot: of many rows of 1,000 bytes over four connections, and of one row of 50 MB among them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import SMALL_JVM, KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.integration.conftest import NewDaemon
from tests.support.daemon import memory_high_water_bytes
from tests.support.nightly import nightly

MB = 1_000_000
ROW_BYTES = 50 * MB
LIMIT_BYTES = "60000000"
OF_THE_ROW = 8
"""The peak memory of such a row in the stream, as a multiple of its size."""
WITHOUT_ROW_BYTES = 200 * MB


@pytest.fixture(scope="module")
def roomy_broker(artefacts: Cache, stack_folder: Path) -> Iterator[KafkaBroker]:
    """A broker with enough memory for such a row."""
    heap = ("-Xmx768m", *SMALL_JVM[1:])
    with KafkaBroker(stack_folder / "roomy-kafka", cache=artefacts, jvm_flags=heap) as broker:
        yield broker


@pytest.mark.parametrize(
    ("rows", "row_bytes", "broker"),
    [
        (30_000, 5 * MB, "kafka"),
        nightly(50_000, ROW_BYTES, "roomy_broker"),
        pytest.param(
            1_000_000, ROW_BYTES, "roomy_broker", marks=[pytest.mark.long, pytest.mark.timeout(1200)]
        ),
    ],
)
def test_a_large_table_and_a_large_row_need_bounded_memory(
    rows: int,
    row_bytes: int,
    broker: str,
    request: pytest.FixtureRequest,
    registry: SchemaRegistry,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
) -> None:
    kafka: KafkaBroker = request.getfixturevalue(broker)
    fill = f"INSERT INTO t SELECT g, repeat(md5(g::text), 30) FROM generate_series(1, {rows}) g"
    large = f"(SELECT string_agg(md5(i::text), '') FROM generate_series(1, {row_bytes // 32}) i)"
    for statement in (
        "CREATE TABLE t (id int PRIMARY KEY, body text)",
        fill,
        "CREATE TABLE u (id int PRIMARY KEY, body text)",
        f"INSERT INTO u VALUES (1, 'small'), (2, {large}), (3, 'small')",
    ):
        postgres.execute(statement, dbname=database)
    sink = {
        "bootstrap_servers": kafka.bootstrap,
        "topics": {"properties": {"max.message.bytes": LIMIT_BYTES}},
        "properties": {"message.max.bytes": LIMIT_BYTES},
    }
    peaks = {}
    for name, override in (("without", [{"table": "public.u", "include": False}]), ("with", [])):
        snapshot = {"workers": 4, "overrides": override}
        with new_daemon(postgres, database, snapshot=snapshot, sink=sink) as daemon:
            daemon.start().wait_state("streaming", deadline_s=600)
            assert daemon.process is not None
            peaks[name] = memory_high_water_bytes(daemon.process.pid)
            assert daemon.stop() == 0
    print(f"\n{rows:,} rows of 1,000 bytes, 4 connections: peak {peaks['without'] / MB:.0f} MB", end="")
    print(f"; with one row of {row_bytes / MB:.0f} MB: {peaks['with'] / MB:.0f} MB")
    assert peaks["without"] < WITHOUT_ROW_BYTES
    assert peaks["with"] < WITHOUT_ROW_BYTES + OF_THE_ROW * row_bytes
