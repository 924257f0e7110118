"""`make bench-spark ARGS="--live 50"`: the source's own time for a small batch, without Spark.

In: the number of batches.  Out: for each step the median and the 90th percentile in milliseconds, with a client that
connects anew for each batch, and with one that a worker of Spark reuses; the batches alternate. A batch is one
commit of 10 rows, which is complete before the clock starts.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.spark.clients.idle_client import WORKERS_ARE_REUSED
from cdcd.spark.clients.kafka import Cluster
from cdcd.spark.data_source import CdcdStreamReader
from cdcd.spark.source.cuts import Offsets
from cdcd.spark.source.source_options import parse_options
from tests.spark.topics import PARTITIONS, Sent, TopicsWriter
from tests.support.topics import create_topic
from tests.support.waiting import eventually

ROWS = 10
STEPS = ("latestOffset", "partitions", "read", "all")
CLIENTS = ("new", "reused")


def by_steps(batches: int) -> None:
    """Print the times of each step."""
    with (
        TemporaryDirectory() as folder,
        KafkaBroker(Path(folder, "kafka"), cache=Cache()) as kafka,
    ):
        topics = TopicsWriter(kafka.bootstrap, "", "shop")
        times = measured(topics, batches)
        topics.close()
    print(f"{batches} batches of {ROWS} rows each, milliseconds")
    print(f"{'client':10} {'step':14} {'median':>8} {'90th':>8}")
    for client, name in itertools.product(CLIENTS, STEPS):
        found = sorted(times[client, name])
        median, high = statistics.median(found), found[int(len(found) * 0.9)]
        print(f"{client:10} {name:14} {median:8.1f} {high:8.1f}", flush=True)


def measured(topics: TopicsWriter, batches: int) -> dict[tuple[str, str], list[float]]:
    """Return the milliseconds of each step in each batch, by client and step."""
    topic = f"{topics.prefix}.public.orders"
    create_topic(topics.bootstrap, topic, PARTITIONS)
    options = {"brokers": topics.bootstrap, "prefix": topics.prefix, "startingOffsets": "earliest"}
    reader = CdcdStreamReader(parse_options(options))
    cluster = Cluster(topics.bootstrap, {})
    start = reader.initialOffset()
    times: dict[tuple[str, str], list[float]] = {}
    for number in range(1, 2 * batches + 3):
        client = CLIENTS[number % 2]
        os.environ.pop(WORKERS_ARE_REUSED, None)
        if client == "reused":
            os.environ[WORKERS_ARE_REUSED] = "1"
        topics.commit(10 * number, records(topic, number))
        await_markers(cluster, topics.progress_topic, topic)
        start, spent = batch(reader, start)
        if number > 2:  # the first ones connect
            for name, seconds in zip(STEPS, spent, strict=True):
                times.setdefault((client, name), []).append(seconds * 1000)
    reader.stop()
    return times


def batch(reader: CdcdStreamReader, start: Offsets) -> tuple[Offsets, tuple[float, ...]]:
    """Return the end of a batch, and the seconds of its steps."""
    moments = [time.monotonic()]
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    moments.append(time.monotonic())
    tasks = reader.partitions(start, end)
    moments.append(time.monotonic())
    rows = sum(found.num_rows for task in tasks for found in reader.read(task))
    moments.append(time.monotonic())
    assert rows == ROWS, rows
    steps = [after - before for before, after in itertools.pairwise(moments)]
    return end, (*steps, moments[-1] - moments[0])


def records(topic: str, number: int) -> list[Sent]:
    """Return the records of a commit."""
    return [(topic, at % PARTITIONS, b"%d" % at, b"%d" % number * 50) for at in range(ROWS)]


def await_markers(cluster: Cluster, *topics: str) -> None:
    """Wait until no transaction is open."""
    places = [(name, partition) for name in topics for partition in cluster.partitions()[name]]
    eventually(lambda: cluster.ends(places) == cluster.high_watermarks(places), "the markers are written")
