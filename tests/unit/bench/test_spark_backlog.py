"""The backlog of the reading benchmark: its records, what judges their reading, and the limits of the memory."""

from __future__ import annotations

import io
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdcd.columnar.fallback import HEADER_BYTES
from tests.bench.spark import envelopes
from tests.bench.spark.backlog import MARKS, joined, parts_of, zigzag
from tests.bench.spark.memory import LARGE_BYTES, Run, findings
from tests.bench.spark.outcome import Ids, ids_of, longest_of
from tests.bench.spark.workers import TASKS, part_of

MB = 1 << 20


@pytest.mark.parametrize("number", [0, 1, 63, 64, 8191, 8192, 2**31, 2**34 + 5, 2**62])
def test_a_number_has_the_bytes_of_fastavro(number: int) -> None:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema("long"), number)
    assert zigzag(number) == out.getvalue()


def test_a_record_is_joined_from_the_parts_of_another_one() -> None:
    parsed = fastavro.parse_schema(envelopes.schema())
    kinds = [one.as_py() for one in envelopes.records(20, same=MARKS)]
    for number, kind in enumerate(kinds):
        record = joined(parts_of(kind), zigzag(number), zigzag(2**34), zigzag(70 * number))
        row = fastavro.schemaless_reader(io.BytesIO(record[HEADER_BYTES:]), parsed)
        of_kind = fastavro.schemaless_reader(io.BytesIO(kind[HEADER_BYTES:]), parsed)
        of_kind["after"]["id"] = number
        of_kind["source"] |= {"commit_lsn": 2**34, "tx_seq": 70 * number}
        assert row == of_kind


@pytest.mark.parametrize(
    ("ids", "is_each_once"),
    [
        ([[0, 1], [2, 3]], True),
        ([[3, 1], [0, 2]], True),
        ([[0, 1], [2]], False),
        ([[0, 1], [2, 2]], False),
        ([[0, 1], [2, 3, 3]], False),
        ([[0, 1], [2, 4]], False),
        ([[], []], False),
    ],
)
def test_each_row_once_or_an_error(ids: list[list[int]], is_each_once: bool, tmp_path: Path) -> None:
    files = []
    for number, part in enumerate(ids):
        files.append(str(tmp_path / f"{number}.parquet"))
        notes = [None, *["x" * one for one in part]][: len(part)]
        pq.write_table(
            pa.table({"id": pa.array(part, pa.int64()), "note": pa.array(notes, pa.string())}), files[-1]
        )
    found = ids_of(files)
    if is_each_once:
        found.check(4)
        assert found == Ids(4, 4, 0, 3, 6)
        assert longest_of(files, "note") == max(one for part in ids for one in part[:-1])
    else:
        with pytest.raises(AssertionError, match="not each row once"):
            found.check(4)


def run(tasks: int, planner: int = 100, large_bytes: int = 0) -> Run:
    return Run("a run", 10, {"tasks": [tasks * MB, 50 * MB], "planner": [planner * MB]}, large_bytes)


@pytest.mark.parametrize(
    ("runs", "wrong"),
    [
        ([run(180), run(200), run(400, large_bytes=LARGE_BYTES)], []),
        ([run(180), run(301), run(400, large_bytes=LARGE_BYTES)], ["more than 300 MB", "tasks grows"]),
        ([run(180), run(200), run(600, large_bytes=LARGE_BYTES)], ["more than 490 MB"]),
        ([run(180), run(200, 290), run(200, 100)], ["planner grows with the backlog: from 100 MB to 290"]),
        ([run(180), Run("a run", 1, {"tasks": [MB]}), run(200)], ["no worker of planner was seen"]),
    ],
)
def test_a_worker_above_its_limit_or_one_that_grows_is_a_finding(runs: list[Run], wrong: list[str]) -> None:
    found = findings(runs)
    assert len(found) == len(wrong)
    assert all(text in one for text, one in zip(wrong, found, strict=True))


def test_the_parts_of_spark_by_their_commands() -> None:
    python = ["/usr/bin/python", "-m"]
    assert part_of([*python, "pyspark.daemon", "pyspark.worker", ""]) == TASKS
    assert part_of([*python, "pyspark.sql.streaming.python_streaming_source_runner"]) == "planner"
    assert part_of([*python, "pyspark.daemon", "pyspark.sql.worker.create_data_source"]) == (
        "pyspark.sql.worker.create_data_source"
    )
    assert part_of(["/usr/bin/java", "org.apache.spark.deploy.SparkSubmit"]) is None
