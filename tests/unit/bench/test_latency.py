"""Latency: the time from the commit of a row to its read."""

from __future__ import annotations

import struct

import pytest

from cdcd.errors import StackError
from tests.bench.latency import committed_at, id_of_key, insert_script, latencies_ms, memory_mib, quantile
from tests.faults.watched import MIB, Held


def test_a_line_of_pgbench_s_log_says_when_a_row_was_committed() -> None:
    lines = ["0 1 205 0 1700000000 5", "3 12 190 0 1700000001 999999 40"]
    assert committed_at(lines, 1000) == {1: 1_700_000_000_000_005, 3012: 1_700_000_001_999_999}


def test_a_row_is_as_late_as_its_reader_was_behind_its_commit() -> None:
    assert latencies_ms({1: 1_000_000, 2: 1_000_500}, [(2, 1_001_000), (1, 1_004_000)]) == [0.5, 4.0]


@pytest.mark.parametrize(
    "seen", [[(1, 5)], [(1, 5), (2, 5), (2, 6)], [(1, 5), (3, 5)]], ids=["missing", "twice", "other"]
)
def test_a_row_that_is_missing_or_there_twice_is_no_result(seen: list[tuple[int, int]]) -> None:
    with pytest.raises(StackError, match="not the rows committed"):
        latencies_ms({1: 1, 2: 2}, seen)


def test_quantiles_are_values_that_were_measured() -> None:
    ordered = [float(n) for n in range(1, 101)]
    assert [quantile(ordered, share) for share in (0.5, 0.95, 0.99, 1.0)] == [51.0, 96.0, 100.0, 100.0]
    assert quantile([7.0], 0.99) == 7.0


@pytest.mark.parametrize(("length_s", "parts"), [(600, [50, 60, 70, 80, 90, 100]), (60, [])])
def test_memory_is_listed_for_each_sixth_of_a_long_run(length_s: int, parts: list[float]) -> None:
    samples = [Held(float(at), (50 + at * 6 // length_s * 10) * MIB, 9, 9, 0) for at in range(length_s)]
    assert memory_mib(samples) == parts


@pytest.mark.parametrize("number", [0, 1, -1, 63, 64, -65, 1_000_000_001, -4_000_000_000, 2**63 - 1])
def test_the_id_is_read_from_a_key(number: int) -> None:
    from io import BytesIO

    import fastavro

    key = BytesIO()
    schema = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
    fastavro.schemaless_writer(key, schema, {"id": number})
    assert id_of_key(struct.pack(">bI", 0, 7) + key.getvalue()) == number


def test_rows_of_the_warm_up_have_other_ids() -> None:
    assert "SELECT -1000000000::bigint * (:client_id + 1) + :n AS g" in insert_script(is_warm_up=True)
    assert "SELECT 1000000000::bigint * :client_id + :n AS g" in insert_script(is_warm_up=False)
