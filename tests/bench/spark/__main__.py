"""`make bench-spark`: the cost of reading the topics. `make bench-spark ARGS="--rows N --rounds N"`.

In: options.  Out: a line for each way to decode and each set of columns: rows per second of one core, and the CPU of
a row; the median of the rounds, which alternate between the ways. All ways have the same records in Arrow's memory.
With --from-avro also Spark's own decoder, with the whole schema and with one of the wanted fields: the CPU of a JVM
with one core, on the same records in Spark's memory, in the same rounds.
With --live: the milliseconds of the data source's own steps for so many small batches.
With --kafka: from a broker of its own to columns in a noop sink, by cdcd's data source and by Spark's.
With --cluster: a backlog on one and on two workers of a Spark cluster, and a worker that is killed (`cluster`).
With --memory: the peak memory of Spark's Python workers (`memory`).
With --mirror: the cost of the mirror's batches (`mirror`).
With --merge: the mirror beside a hand-written pipeline with Delta's MERGE (`merges`).
With --load: the first load on a cluster, into an object store (`loads`).
With --latency: from COMMIT in PostgreSQL to a version of the mirror, at 1,000 transactions/s (`committing`).
With --tables: what a batch costs, by the number of tables (`many_tables`).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from cdcd.columnar import decoder
from cdcd.columnar.decoder import RecordDecoder
from cdcd.columnar.fallback import HEADER_BYTES, ColumnsInPython
from cdcd.spark.decoding.columns import arrow_array
from cdcd.spark.decoding.schemas import expand, parsed_physical
from tests.bench.spark import envelopes
from tests.bench.spark.cluster import by_cluster
from tests.bench.spark.committing import by_commits
from tests.bench.spark.jars import AVRO_SERIES, avro_jar
from tests.bench.spark.kafka import by_pipelines
from tests.bench.spark.live import by_steps
from tests.bench.spark.loads import by_loads
from tests.bench.spark.many_tables import by_tables
from tests.bench.spark.memory import by_memory
from tests.bench.spark.merges import by_merges
from tests.bench.spark.mirror import by_mirrors
from tests.bench.spark.wanted import said
from tests.support.spark_versions import python_with_spark

SLICE_ROWS = 10_000
SLOW_SHARE = 20
"""The ways in Python decode one record of so many."""
WANTED_RATE = 2_500_000
WANTED_RATIO = 5
Way = Callable[[pa.Array], object]


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="make bench-spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--from-avro", action="store_true", help=f"measure from_avro of Spark {AVRO_SERIES}")
    parser.add_argument(
        "--kafka", action="store_true", help="from Kafka to columns, beside Spark's own source; nothing else"
    )
    parser.add_argument("--live", type=int, metavar="BATCHES", help="the source's own time for small batches")
    parser.add_argument(
        "--cluster", action="store_true", help="a backlog on Spark's standalone cluster; nothing else"
    )
    parser.add_argument(
        "--memory", action="store_true", help="the peak memory of the Python workers; nothing else"
    )
    parser.add_argument(
        "--mirror", action="store_true", help="the cost of the mirror's batches; nothing else"
    )
    parser.add_argument(
        "--merge", action="store_true", help="the mirror beside a pipeline with MERGE; nothing else"
    )
    parser.add_argument("--load", action="store_true", help="a first load into an object store; nothing else")
    parser.add_argument(
        "--latency", type=int, metavar="SECONDS", help="from COMMIT to the mirror; nothing else"
    )
    parser.add_argument("--tables", metavar="N,N", help="batches by the number of tables; nothing else")
    options = parser.parse_args()
    for chosen, run in _others(options):
        if chosen:
            return run() or 0
    if decoder.Columns is ColumnsInPython:
        print("the C extension cdcd.columnar._arrow is not compiled here", file=sys.stderr)
        return 1
    table(options, before=False)
    table(options, before=True)
    return 0


def _others(options: argparse.Namespace) -> list[tuple[object, Callable[[], int | None]]]:
    """Return the other measurements: the option that asks for each, and what runs it."""
    return [
        (options.merge, lambda: by_merges(options.rows, options.rounds)),
        (options.mirror, lambda: by_mirrors(options.rows)),
        (options.live, lambda: by_steps(options.live)),
        (options.cluster, lambda: by_cluster(options.rows, options.rounds)),
        (options.memory, lambda: by_memory(options.rows)),
        (options.kafka, lambda: by_pipelines(options.rows, options.rounds)),
        (options.load, lambda: by_loads(options.rows)),
        (options.latency, lambda: by_commits(options.latency)),
        (options.tables, lambda: by_tables([int(one) for one in options.tables.split(",")])),
    ]


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
            for columns, schema in wanted.items():
                for name, cost_s in measured(ways(schema), records).items():
                    costs.setdefault((name, f"{columns} of {whole}"), []).append(cost_s)
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
        command += [given, str(schema_file), str(avro_jar())]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
            assert peer.stdin is not None
            assert peer.stdout is not None
            if not peer.stdout.readline():
                raise RuntimeError("the program with Spark has ended")
            asked, answers = peer.stdin, peer.stdout

            def measured_round() -> dict[str, float]:
                asked.write("\n")
                asked.flush()
                found: dict[str, float] = json.loads(answers.readline())
                return found

            yield measured_round
            peer.stdin.close()


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


if __name__ == "__main__":
    sys.exit(main())
