"""`make bench-spark ARGS="--load --rows 20000000"`: the first load of a mirror on a cluster, into an object store.

In: a number of rows.  Out: for each format the rows per second on Spark's standalone cluster with two workers of one
core each, the memory of the driver's Python, and the number and the sizes of the files. After each load the rows are
counted: another number is an error. The S3 server is a real one on this machine, and takes a share of its processors.
"""

from __future__ import annotations

import json
import shutil
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.demo.stack.s3 import S3Server
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.target.versions import TABLE_FORMATS, TableFormat
from tests.bench.spark.backlog import PREFIX, Backlog, Writer
from tests.bench.spark.kafka import LARGE_JVM
from tests.support.spark_cluster import ROOT, SparkCluster

PROGRAM = ROOT / "tests" / "bench" / "spark" / "loading.py"
WORKERS = 2
MAX_ROWS = 2_000_000
DEADLINE_S = 3600


def by_loads(rows: int) -> None:
    """Print the table."""
    cache = Cache()
    with (
        TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        KafkaBroker(Path(folder, "kafka"), cache=cache, jvm_flags=LARGE_JVM) as kafka,
        SchemaRegistry(Path(folder, "registry"), cache=cache) as registry,
        S3Server(Path(folder, "s3"), cache=cache) as s3,
    ):
        backlog = Writer(kafka.bootstrap, registry.url).write(rows)
        print(f"{rows} rows in Kafka; {WORKERS} workers, S3")
        print(
            f"{'format':8} {'seconds':>8} {'rows/s':>9} {'batches':>8} {'driver MB':>10} "
            f"{'files':>6} {'median MB':>10} {'largest MB':>11} {'all MB':>7}",
            flush=True,
        )
        for number, table_format in enumerate(TABLE_FORMATS):
            bucket = s3.create_bucket(f"load{number}")
            _print_line(table_format, *_loaded(backlog, Path(folder, "load"), bucket, s3, table_format))


def _loaded(
    backlog: Backlog, folder: Path, bucket: str, s3: S3Server, table_format: TableFormat
) -> tuple[int, dict[str, Any], list[int]]:
    """Return the number of rows, what the program has measured, and the bytes of the tables' files."""
    folder.mkdir()
    target, options = f"{bucket}/mirror", s3.options()
    given = {
        "brokers": backlog.bootstrap,
        "registry": backlog.registry_url,
        "prefix": PREFIX,
        "target": target,
        "options": options,
        "format": table_format,
        "max_rows": MAX_ROWS,
        "folder": str(folder),
    }
    with SparkCluster(folder / "cluster", workers=WORKERS) as cluster:
        program = cluster.submit(PROGRAM, [json.dumps(given)])
        try:
            text, _ = program.communicate(timeout=DEADLINE_S)
        finally:
            program.kill()
    assert program.returncode == 0, text[-4000:]
    measured = json.loads((folder / "done.json").read_text())
    opened = read_mirror(target, options)
    found = sum(map(opened.rows, opened.topics))
    assert found == backlog.rows, f"{found} rows, not {backlog.rows}"
    sizes = [opened.target.open(path).seek(0, 2) for path in sorted(opened.version.files())]
    shutil.rmtree(folder)
    return found, measured, sizes


def _print_line(table_format: str, rows: int, measured: dict[str, Any], sizes: list[int]) -> None:
    print(
        f"{table_format:8} {measured['s']:8.1f} {rows / measured['s']:9,.0f} {measured['batches']:8} "
        f"{measured['peak_mb']:10} {len(sizes):6} {statistics.median(sizes) / 1e6:10.1f} {max(sizes) / 1e6:11.1f} "
        f"{sum(sizes) / 1e6:7.0f}",
        flush=True,
    )
