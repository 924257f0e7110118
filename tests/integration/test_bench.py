"""The benchmark runs, and its figures include all rows. No test asserts its speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.bench import killed_copy
from tests.bench.__main__ import main
from tests.bench.report import document
from tests.bench.servers import Servers
from tests.support.nightly import nightly

pytestmark = pytest.mark.own_broker
"""These tests measure the CPU of the servers' processes."""


@pytest.fixture
def servers(
    postgres: PostgresServer, kafka: KafkaBroker, own_registry: SchemaRegistry, tmp_path: Path
) -> Servers:
    return Servers(postgres, kafka, own_registry, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("scale", ["0.002", nightly("tiny")])
def test_a_backlog_is_drained_by_each_and_every_row_is_counted(
    servers: Servers, tmp_path: Path, capsys: pytest.CaptureFixture[str], scale: str
) -> None:
    file = tmp_path / "bench.json"
    options = ["--scale", scale, "--pairs", "1", "--repeats", "0", "--no-warm-up", "--json", str(file)]
    assert main(["--cases", "insert-1000", "--runners", "unix,cdcd", *options], servers) == 0
    result = json.loads(file.read_text())
    unix, cdcd = result["runs"]
    rows = result["cases"]["insert-1000"]["rows"]
    assert (unix["runner"], unix["records"]) == ("unix", None)
    assert (cdcd["runner"], cdcd["records"]) == ("cdcd", rows)
    for run in (unix, cdcd):
        assert run["total_rows"] == rows
        assert 0 < run["rows"] <= rows
        assert run["seconds"] > 0
        assert 0 < run["ready_seconds"] < run["total_seconds"]
        assert {"walsender", "receiver", "broker", "registry", "postgres", "bench"} <= run["cpu"].keys()
        assert run["peak_memory_bytes"] > 1 << 20
    assert set(result["absent"]) == {"debezium", "debezium_tuned", "debezium_quick"}
    assert result["failures"] == []
    assert "insert-1000: inserts, 10 columns" in capsys.readouterr().out
    assert f"Inserts, 10 columns, 1,000 rows a transaction; {rows:,} rows" in document("", [result])
    left = servers.postgres.execute("SELECT count(*) FROM pg_replication_slots WHERE slot_name ~ '^bench'")
    assert left == [(0,)]


@pytest.mark.nightly
def test_every_row_at_a_rate_is_committed_and_read_once(servers: Servers, tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    options = ["--seconds", "2", "--no-warm-up", "--json", str(file)]
    assert main(["--cases", "latency-100", "--runners", "at_least_once", *options], servers) == 0
    (one,) = json.loads(file.read_text())["latencies"]
    assert one["rows"] > 0
    assert one["p50_ms"] <= one["p95_ms"] <= one["p99_ms"] <= one["max_ms"]


@pytest.mark.nightly
def test_the_latency_floor_counts_every_row(servers: Servers, tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    options = ["--seconds", "1", "--no-warm-up", "--json", str(file)]
    assert main(["--cases", "latency-floor", *options], servers) == 0
    result = json.loads(file.read_text())
    ways = ["one producer", "one producer, at once", "two in turn", "no transactions"]
    assert [one["way"] for one in result["floors"]] == ways
    for one in result["floors"]:
        assert 0 < one["p50_ms"] <= one["p99_ms"] <= one["max_ms"]
        assert one["rows"] > 0
    assert "from a row's arrival to the commit's return" in document("", [result])


def test_an_unknown_name_is_refused_before_a_server_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cases", "insert-7"]) == 1
    assert main(["--runners", "nobody"]) == 1
    assert main(["--runners", "before"]) == 1
    assert "insert-7" in (output := capsys.readouterr().err)
    assert "--before FOLDER makes before" in output


def test_another_checkout_has_its_extensions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--runners", "before", "--before", str(tmp_path)]) == 1
    assert f"{tmp_path} holds no checkout of cdcd with its C extensions" in capsys.readouterr().err


@pytest.mark.nightly
def test_a_table_that_is_copied_under_kills_is_judged(servers: Servers) -> None:
    """What the judgement finds is in tests/unit/bench/test_folded_topic.py."""
    assert killed_copy.run(servers, rows=40_000, per_second=200, kills=2) == []
