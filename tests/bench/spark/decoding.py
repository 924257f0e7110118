"""The cost of decoding alone: records in Arrow's memory to columns, by each way.

In: a number of records.  Out: the CPU seconds of a row, and a table of them; the ways alternate.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from cdcd.columnar.decoder import RecordDecoder
from cdcd.columnar.fallback import HEADER_BYTES, ColumnsInPython
from cdcd.spark.decoding.columns import arrow_array
from cdcd.spark.decoding.schemas import expand, parsed_physical
from tests.bench.spark import envelopes
from tests.bench.spark.asked import asked
from tests.bench.spark.jars import AVRO_SERIES, avro_jar
from tests.bench.spark.wanted import said
from tests.support.spark_versions import python_with_spark

SLICE_ROWS = 10_000
SLOW_SHARE = 20
"""The ways in Python decode one record of so many."""
WANTED_RATE = 2_500_000
WANTED_RATIO = 5
Way = Callable[[pa.Array], object]


def table(options: argparse.Namespace, *, before: bool) -> None:
    """Print the costs for records without or with the old row."""
    records = envelopes.records(options.rows, before=before)
    whole = 23 if before else 13
    wanted = {13: envelopes.all_columns(), 3: envelopes.few_columns()}
    if before:
        wanted = {23: envelopes.all_columns(before=True)} | wanted
    print(f"{options.rows} records of {records.nbytes // options.rows} bytes, {options.rounds} rounds")
    print(f"{'way':10} {'columns':>8} {'rows/s a core':>14} {'us a row':>9}")
    with contextlib.ExitStack() as stack:
        others: list[Callable[[], dict[str, float]]] = []
        if options.from_avro and not before:
            others.append(stack.enter_context(spark_rounds(records, wanted)))
        costs: dict[tuple[str, str], list[float]] = {}
        for _ in range(options.rounds):
            for way, cost_s in python_round(records, wanted, whole).items():
                costs.setdefault(way, []).append(cost_s)
            for name, cost_s in (one for round_of in others for one in round_of().items()):
                share = "whole" if name == "whole" else f"{name} of {whole}"
                costs.setdefault(("from_avro", share), []).append(cost_s)
    for (name, share), found in costs.items():
        cost_s = statistics.median(found)
        print(f"{name:10} {share:>8} {1 / cost_s:14,.0f} {cost_s * 1e6:9.2f}", flush=True)
    if not before:
        _compare({way: statistics.median(found) for way, found in costs.items()})


def _compare(costs: dict[tuple[str, str], float]) -> None:
    """Print the figures of which something is wanted."""
    native_s, pruned_s = costs["native", "13 of 13"], costs.get(("from_avro", "13 of 13"))
    rate = 1 / native_s
    print(f"native, 13 columns: {rate:,.0f} rows/s a core, {said(rate, WANTED_RATE)}")
    if pruned_s is not None:
        ratio = pruned_s / native_s
        print(f"that of from_avro with the wanted fields, {ratio:.1f} times; {said(ratio, WANTED_RATIO)}")


@contextlib.contextmanager
def spark_rounds(records: pa.Array, wanted: dict[int, pa.Schema]) -> Iterator[Callable[[], dict[str, float]]]:
    """Yield what measures a round of Spark's `from_avro`: the writer's schema ("whole") and the columns."""
    schemas = {str(columns): envelopes.pruned_schema(schema) for columns, schema in wanted.items()}
    with TemporaryDirectory() as folder:
        given, schema_file = f"{folder}/records.parquet", Path(folder, "schemas.json")
        pq.write_table(pa.table({"value": records}), given)
        schema_file.write_text(json.dumps({"whole": envelopes.schema(), **schemas}))
        command = [str(python_with_spark(AVRO_SERIES)), "-m", "tests.bench.spark.from_avro"]
        with asked([*command, given, str(schema_file), str(avro_jar())]) as measured_round:
            yield measured_round


def python_round(
    records: pa.Array, wanted: dict[int, pa.Schema], whole: int = 13
) -> dict[tuple[str, str], float]:
    """Return the CPU seconds of a row, for each way of Python and each set of columns."""
    return {
        (name, f"{columns} of {whole}"): cost_s
        for columns, schema in wanted.items()
        for name, cost_s in measured(ways(schema), records).items()
    }


def ways(wanted: pa.Schema) -> dict[str, Way]:
    """Return the ways to decode records into these columns."""
    schema = expand(envelopes.schema())
    native = RecordDecoder(wanted, lambda number: schema)
    fallback = RecordDecoder(wanted, lambda number: schema, ColumnsInPython)
    return {"native": native.decode, "fallback": fallback.decode, "fastavro": _with_fastavro(wanted, schema)}


def _with_fastavro(wanted: pa.Schema, schema: Any) -> Way:
    """Return a function that reads each record into Python objects, and makes the columns of them."""
    parsed = parsed_physical(envelopes.schema())
    fields = {field["name"]: field["type"] for field in schema["fields"]}

    def decode(batch: pa.Array) -> list[pa.Array]:
        rows = []
        for record in batch:
            data = io.BytesIO(record.as_py())
            data.seek(HEADER_BYTES)
            rows.append(fastavro.schemaless_reader(data, parsed))
        return [arrow_array([row[name] for row in rows], fields[name]) for name in wanted.names]

    return decode


def measured(ways: dict[str, Way], records: pa.Array) -> dict[str, float]:
    """Return the CPU seconds of a row."""
    costs: dict[str, float] = {}
    for name, way in ways.items():
        rows = len(records) if name == "native" else len(records) // SLOW_SHARE
        begun_s = time.process_time()
        for first in range(0, rows, SLICE_ROWS):
            way(records.slice(first, min(SLICE_ROWS, rows - first)))
        costs[name] = (time.process_time() - begun_s) / rows
    return costs
