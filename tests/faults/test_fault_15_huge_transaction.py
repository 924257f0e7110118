"""Fault 15: one transaction larger than any buffer: constant memory, no timeout, no delay of other transactions.

`make long` runs the long variants.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import psycopg2
import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed, memory_high_water_bytes
from tests.support.keys import assert_each_key_once
from tests.support.nightly import nightly
from tests.support.reader import Reader
from tests.support.stack import PostgresServers
from tests.support.waiting import eventually

LIMIT_BYTES = 150 * 1_000_000
PARTS = 10


@pytest.mark.parametrize("streaming", ["parallel", pytest.param("off", marks=pytest.mark.long)])
@pytest.mark.parametrize("rows", [40_000, nightly(250_000), pytest.param(1_000_000, marks=pytest.mark.long)])
@pytest.mark.timeout(420)
def test_a_transaction_of_very_many_rows(
    rows: int,
    streaming: str,
    pg_server: PostgresServers,
    kafka: KafkaBroker,
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    """F14, F30: wal_sender_timeout is 5 s; streamed rows are on disk until their commit."""
    small = {"buffer": {"memory": "1MiB"}}
    _run(rows, streaming, pg_server, kafka, new_daemon, reader, work_mem="1MB", over=small)


@pytest.mark.long
@pytest.mark.parametrize("streaming", ["parallel", "off"])
@pytest.mark.timeout(3600)
def test_a_transaction_of_ten_million_rows(
    streaming: str, pg_server: PostgresServers, kafka: KafkaBroker, new_daemon: NewDaemon, reader: Reader
) -> None:
    """The same with ten times as many rows and with default settings."""
    _run(10_000_000, streaming, pg_server, kafka, new_daemon, reader)


def _run(
    rows: int,
    streaming: str,
    pg_server: PostgresServers,
    kafka: KafkaBroker,
    new_daemon: NewDaemon,
    reader: Reader,
    *,
    work_mem: str = "64MB",
    over: dict[str, Any] | None = None,
) -> None:
    settings = {"max_wal_size": "8GB", "wal_sender_timeout": "5s", "logical_decoding_work_mem": work_mem}
    server = pg_server.fresh(18, settings=settings)
    server.start()
    try:
        server.create_database("huge")
        for table in ("big", "small"):
            server.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text, n int)", dbname="huge")
        protocol = {"source": {"protocol": {"streaming": streaming}}}
        with new_daemon(server, "huge", **protocol, **(over or {})) as daemon:
            daemon.start().wait_state("streaming", deadline_s=300)
            walsender = _walsender(server)
            _write(rows, server, daemon, reader, is_streamed=streaming != "off")
            started = time.monotonic()
            await_confirmed(server, daemon, 60 + rows / 5_000)
            seconds = time.monotonic() - started
            assert daemon.process is not None
            peak_bytes = memory_high_water_bytes(daemon.process.pid)
            print(
                f"\n{rows} rows in one transaction, streaming {streaming}: VmHWM {peak_bytes / 1e6:.0f} MB,"
                f" {seconds:.0f} s from its commit to its confirmation"
            )
            assert _walsender(server) == walsender, "the walsender has ended"
            assert daemon.events("retrying") == []
            assert peak_bytes <= LIMIT_BYTES
            assert daemon.stop() == 0
        assert_each_key_once(kafka.bootstrap, f"{daemon.name}.public.big", rows)
    finally:
        server.stop("immediate")


def _write(rows: int, server: PostgresServer, daemon: Daemon, reader: Reader, *, is_streamed: bool) -> None:
    """Write the large transaction, and small ones that arrive while it is open."""
    with closing(psycopg2.connect(server.dsn("huge"))) as large, large.cursor() as cursor:
        for part in range(PARTS):
            first = part * rows // PARTS + 1
            cursor.execute(
                "INSERT INTO big SELECT g, 'value ' || g, g %% 97 FROM generate_series(%s::int, %s) g",
                (first, (part + 1) * rows // PARTS),
            )
            server.execute("INSERT INTO small VALUES (%s, 'small', 0)", part, dbname="huge")
            topic = f"{daemon.name}.public.small"
            reader.wait([topic], lambda events, number=part: len(events) > number, 120)
        if is_streamed:
            eventually(
                lambda: _metric(daemon, "cdcd_spill_bytes") > 0, "a part of the transaction is on disk"
            )
        large.commit()
    server.execute("INSERT INTO small VALUES (%s, 'behind it', 0)", PARTS, dbname="huge")


def _walsender(server: PostgresServer) -> list[tuple[Any, ...]]:
    return server.execute("SELECT active_pid FROM pg_replication_slots")


def _metric(daemon: Daemon, name: str) -> float:
    for line in daemon.get("/metrics")[1].splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    raise AssertionError(f"there is no {name}")
