"""`make oracle`: every type of each major through the topics, as text and as binary, judged by PostgreSQL.

With `--spark` Spark reads the topics, by `cdcd.spark.decode` with one of its engines.
In: --majors, --values, --types, --spark.  Out: a line for each type, then sums; exit status 1 if a value differed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

from cdcd.demo.stack.accounts import make_run_folder, server_account
from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.packages import WHEEL_POSTGRES
from cdcd.demo.stack.postgres import PostgresServer, programs_from_wheel
from cdcd.demo.stack.registry import SchemaRegistry
from tests.bench.spark.jars import AVRO_SERIES
from tests.oracle.report import failures, table_of
from tests.oracle.run import Outcome, Reading, run
from tests.support.spark_versions import python_with_spark
from tests.support.stack import PostgresServers, Stack


def main() -> int:
    """Run the requested majors."""
    options = _options()
    if options.spark == "spark-avro":
        _continue_with_avro()
    cache, folder = Cache(), make_run_folder("cdcd-oracle-", server_account())
    servers = PostgresServers(cache, folder)
    failed: list[str] = []
    try:
        with (
            KafkaBroker(folder / "kafka", cache=cache) as kafka,
            SchemaRegistry(folder / "registry", cache=cache) as registry,
        ):
            for major in options.majors:
                began_s = time.monotonic()
                stack = Stack(servers(major), kafka, registry, folder)
                topics, by = _spark_topics(options.spark, stack) if options.spark else (None, "")
                failed += _say(major, by, run(stack, options.values, options.types, topics=topics), began_s)
                if major in WHEEL_POSTGRES and not options.types:
                    began_s = time.monotonic()
                    with PostgresServer(
                        major, programs_from_wheel(major), folder / f"vector-{major}"
                    ) as server:
                        stack = Stack(server, kafka, registry, folder)
                        outcome = run(stack, options.values, vectors=True, topics=topics)
                        failed += _say(major, f" with pgvector{by}", outcome, began_s)
    finally:
        servers.stop()
    shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


def _continue_with_avro() -> None:
    """Run this program again, by the Python of a Spark for which spark-avro exists."""
    python = python_with_spark(AVRO_SERIES)
    if Path(sys.prefix) != python.parents[1]:
        os.execv(python, [str(python), "-m", "tests.oracle", *sys.argv[1:]])


def _spark_topics(engine: str, stack: Stack) -> tuple[Reading, str]:
    from tests.oracle.spark_topic import ENGINES, SparkTopics, spark_session

    (chosen,) = [one for one in ENGINES if one == engine]
    spark = spark_session(chosen)
    topics = SparkTopics(stack.kafka.bootstrap, stack.registry.url, spark, chosen)
    return topics, f", read by Spark {spark.version} with the engine {engine}"


def _say(major: int, what: str, outcome: Outcome, began_s: float) -> list[str]:
    took_s = time.monotonic() - began_s
    print(f"PostgreSQL {major}{what}, {took_s:.0f} s\n{table_of(outcome)}", flush=True)
    found = failures(outcome)
    for one in found[:100]:
        print(f"  {one}", flush=True)
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make oracle", description=__doc__)
    parser.add_argument(
        "--majors", type=lambda text: [int(one) for one in text.split(",")], default=[14, 16, 18]
    )
    parser.add_argument(
        "--values", type=int, default=220, help="number of random values, in addition to those picked by hand"
    )
    parser.add_argument(
        "--types", type=lambda text: text.split(";"), default=[], help="only these types: int4;'char'"
    )
    parser.add_argument(
        "--spark",
        nargs="?",
        const="native",
        choices=["native", "spark-avro"],
        help="Spark reads the topics, with this engine of decode (native)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
