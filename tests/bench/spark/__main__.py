"""`make bench-spark`: the cost of reading the topics. `make bench-spark ARGS="--rows N --rounds N"`.

In: options.  Out: a line for each way to decode and each set of columns: rows per second of one core, and the CPU of
a row; the median of the rounds, which alternate between the ways. All ways have the same records in Arrow's memory.
With --from-avro also Spark's own decoder, with the whole schema and with one of the wanted fields: the CPU of a JVM
with one core, on the same records in Spark's memory, in the same rounds.
With --live: the milliseconds of the data source's own steps for so many small batches.
With --figures: these ways and those of --kafka in the rounds of one run, in one table (`figures`).
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
import sys
from collections.abc import Callable

from cdcd.columnar import decoder
from cdcd.columnar.fallback import ColumnsInPython
from tests.bench.spark.cluster import by_cluster
from tests.bench.spark.committing import by_commits
from tests.bench.spark.decoding import table
from tests.bench.spark.figures import by_figures
from tests.bench.spark.jars import AVRO_SERIES
from tests.bench.spark.kafka import by_pipelines
from tests.bench.spark.live import by_steps
from tests.bench.spark.loads import by_loads
from tests.bench.spark.many_tables import by_tables
from tests.bench.spark.memory import by_memory
from tests.bench.spark.merges import by_merges
from tests.bench.spark.mirror import by_mirrors


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="make bench-spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--from-avro", action="store_true", help=f"measure from_avro of Spark {AVRO_SERIES}")
    parser.add_argument(
        "--kafka", action="store_true", help="from Kafka to columns, beside Spark's own source; nothing else"
    )
    parser.add_argument(
        "--figures", action="store_true", help="--from-avro and --kafka in the same rounds, in one table"
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
    if decoder.Columns is ColumnsInPython:
        print("the C extension cdcd.columnar._arrow is not compiled here", file=sys.stderr)
        return 1
    for chosen, run in _others(options):
        if chosen:
            return run() or 0
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
        (options.figures, lambda: by_figures(options.rows, options.rounds)),
        (options.kafka, lambda: by_pipelines(options.rows, options.rounds)),
        (options.load, lambda: by_loads(options.rows)),
        (options.latency, lambda: by_commits(options.latency)),
        (options.tables, lambda: by_tables([int(one) for one in options.tables.split(",")])),
    ]


if __name__ == "__main__":
    sys.exit(main())
