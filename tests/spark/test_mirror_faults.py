"""Real faults under a running mirror: it goes on by itself, and the target has each batch once and no other file."""

from __future__ import annotations

import http.client
import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.demo.stack.s3 import S3Server
from cdcd.errors import SinkUnavailable
from cdcd.spark.clients import kafka as kafka_client
from cdcd.spark.clients.connection import Connection, RegistryAccess
from cdcd.spark.clients.kafka import Cluster
from cdcd.spark.decoding import registry_schemas
from cdcd.spark.mirroring import retries as mirror_retries
from cdcd.spark.mirroring.query import MirrorQuery
from cdcd.spark.mirroring.retries import LOST_WORKER
from cdcd.spark.mirroring.start import mirror
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.storage import cloud as storage_cloud
from cdcd.spark.storage.uri import open_storage
from cdcd.spark.target.commit_log import LATEST, path_of, read_latest
from cdcd.spark.target.versions import TableFormat
from tests.spark.events import column
from tests.spark.topics import TopicsWriter, rows_of
from tests.support.doors import KafkaDoors
from tests.support.proxy import Proxy
from tests.support.registry_door import Door
from tests.support.topics import create_topic, new_name
from tests.support.waiting import eventually

ITEMS = [column("id", "int", required=True), column("body", "string")]
COMMITS = range(10, 200, 10)
WITHIN_S = 120


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients give up soon, so that the mirror's own attempts are tested."""
    monkeypatch.setattr(kafka_client, "REQUEST_TIMEOUT_S", 2.0)
    monkeypatch.setattr(kafka_client, "STALL_TIMEOUT_S", 2.0)
    monkeypatch.setattr(registry_schemas, "RETRY_TIMEOUT_S", 1.0)
    monkeypatch.setattr(storage_cloud, "RETRIES", {"max_retries": 0})
    monkeypatch.setattr(mirror_retries, "FIRST_PAUSE_S", 0.2)
    monkeypatch.setattr(mirror_retries, "MOST_PAUSE_S", 1.0)


class _Writing:
    """Commits of one table, one after another: each inserts a row and updates the row before."""

    def __init__(self, topics: TopicsWriter) -> None:
        self._topics = topics
        self.items = topics.table("items", ITEMS)
        self.expected: dict[int, dict[str, Any]] = {}

    def commit(self, lsn: int) -> None:
        self._topics.commit_us = lsn
        others: dict[str, Any] = {one["name"]: None for one in self.items.fields[2:]}
        inserted = {"id": lsn, "body": "a", **others}
        sent = self._topics.change(self.items, "r", lsn, 1, after=inserted)
        self.expected[lsn] = inserted
        if lsn - 10 in self.expected:
            changed = {"id": lsn - 10, "body": f"b{lsn}", **others}
            sent += self._topics.change(self.items, "u", lsn, 2, after=changed)
            self.expected[lsn - 10] = changed
        self._topics.commit(lsn, sent)


@contextmanager
def _running(spark: SparkSession, topics: TopicsWriter, target: str, **options: Any) -> Iterator[MirrorQuery]:
    query = mirror(
        spark,
        topics.connection,
        target,
        trigger="50 milliseconds",
        on_error="fail",
        metrics_port=0,
        **options,
    )
    try:
        yield query
    finally:
        query.stop()


def _reached(target: str, lsn: int, query: MirrorQuery, options: dict[str, str] | None = None) -> None:
    def has() -> bool:
        assert query.isActive, query.exception()
        version = read_latest(open_storage(target, options))
        return version is not None and version.commit_lsn >= lsn

    eventually(has, f"the mirror has {lsn}", deadline_s=WITHIN_S)


def _metrics(query: MirrorQuery) -> str:
    """Return the page of a mirror that runs: its port ends with it."""
    assert query.isActive, query.exception()
    assert query.metrics_port is not None
    connection = http.client.HTTPConnection("127.0.0.1", query.metrics_port, timeout=10)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def _assert_whole(target: str, writing: _Writing, options: dict[str, str] | None = None) -> None:
    storage = open_storage(target, options)
    version = read_latest(storage)
    assert version is not None
    records = {path_of(number) for number in range(version.complete[0][0], version.number + 1)}
    replaced = {path for path, _ in version.replaced}
    lock = {"_lock"} & {*storage.paths()}
    of_logs = {path for path in storage.paths() if path.startswith("public.items/metadata/")}
    assert bool(of_logs) == (version.table_format == "iceberg")
    assert {*storage.paths()} == {LATEST, *records, *version.files(), *replaced, *lock, *of_logs}
    assert rows_of(read_mirror(target, options), writing.items) == sorted(writing.expected.values(), key=repr)


def _with_faults(
    spark: SparkSession,
    topics: TopicsWriter,
    target: str,
    fault: Callable[[], None],
    heal: Callable[[], None],
    code: str,
    options: dict[str, str] | None = None,
    alter: Callable[[_Writing], None] = lambda _: None,
    **others: Any,
) -> None:
    """Run a mirror, with the fault twice while the source goes on."""
    writing = _Writing(topics)
    commits = iter(COMMITS)
    writing.commit(next(commits))
    with _running(spark, topics, target, target_options=options, **others) as query:
        _reached(target, COMMITS[0], query, options)
        for _ in range(2):
            alter(writing)
            fault()
            try:
                lsn = 0
                for lsn in [next(commits) for _ in range(4)]:
                    writing.commit(lsn)
                eventually(
                    lambda: "cdcd_mirror_retrying 1.0" in _metrics(query),
                    "the mirror meets the fault",
                    deadline_s=WITHIN_S,
                )
            finally:
                heal()
            _reached(target, lsn, query, options)
        eventually(
            lambda: (
                "cdcd_mirror_lag_seconds 0.0" in _metrics(query)
                and "cdcd_mirror_retrying 0.0" in _metrics(query)
            ),
            "the mirror is up to date",
        )
        assert f'cdcd_mirror_restarts_total{{reason="{code}"}}' in _metrics(query)
    assert query.exception() is None
    _assert_whole(target, writing, options)


class _Proxied(TopicsWriter):
    """A writer whose readers connect through proxies."""

    readers_connection: Connection

    @property
    def connection(self) -> Connection:
        return self.readers_connection


@pytest.fixture
def proxied(kafka: KafkaBroker, registry: SchemaRegistry) -> Iterator[Callable[..., _Proxied]]:
    opened: list[_Proxied] = []

    def open_(broker: KafkaBroker | None = None, **through: Any) -> _Proxied:
        made = _Proxied((broker or kafka).bootstrap, registry.url, f"t{uuid.uuid4().hex[:8]}")
        opened.append(made)
        made.readers_connection = replace(super(_Proxied, made).connection, **through)
        return made

    yield open_
    for one in opened:
        one.close()


@pytest.mark.own_broker
def test_a_broker_that_cannot_be_reached_is_waited_for(
    spark: SparkSession,
    own_kafka_and_doors: tuple[KafkaBroker, KafkaDoors],
    proxied: Callable[..., _Proxied],
    target: Path,
) -> None:
    broker, doors = own_kafka_and_doors
    (proxy,) = doors.proxies
    topics = proxied(broker, brokers=doors.bootstrap)
    _with_faults(spark, topics, str(target), proxy.refuse, proxy.accept, "CDCD-SINK-UNAVAILABLE")


@pytest.mark.own_broker
def test_an_offset_is_never_one_that_kafka_has_not_listed(
    own_kafka_and_doors: tuple[KafkaBroker, KafkaDoors],
) -> None:
    """Connections are cut at any moment of a request. An end before the position would end the mirror."""
    broker, doors = own_kafka_and_doors
    (proxy,) = doors.proxies
    place = (new_name("ends"), 0)
    create_topic(broker.bootstrap, place[0], 1)
    for _ in range(15):
        cluster = Cluster(doors.bootstrap, {})
        eventually(lambda asked=cluster: _is_listed(asked, place), "Kafka answers")  # type: ignore[misc]
        cut = threading.Thread(target=proxy.refuse)
        cut.start()
        try:
            while _is_listed(cluster, place):
                pass
        finally:
            cut.join()
            proxy.accept()


def _is_listed(cluster: Cluster, place: tuple[str, int]) -> bool:
    """Return whether Kafka answers; it has no record."""
    try:
        assert cluster.ends([place]) == {place: 0}
    except SinkUnavailable:
        return False
    return True


def test_a_registry_that_fails_is_waited_for(
    spark: SparkSession, registry: SchemaRegistry, proxied: Callable[..., _Proxied], target: Path
) -> None:
    """Each fault comes with a new column, because the mirror asks for each schema once."""
    with Door(registry.url) as door:
        topics = proxied(registry=RegistryAccess(door.url))

        def alter(writing: _Writing) -> None:
            name = f"c{len(writing.items.fields)}"
            writing.items.alter([*writing.items.fields, column(name, "string")])
            for row in writing.expected.values():
                row[name] = None

        def fail() -> None:
            door.status = 503

        def heal() -> None:
            door.status = None

        _with_faults(spark, topics, str(target), fail, heal, "CDCD-REGISTRY-UNAVAILABLE", alter=alter)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_lost_worker_is_no_lost_batch(spark: SparkSession, topics: TopicsWriter, target: Path) -> None:
    """In a local Spark a lost worker ends the job, which a cluster repeats first."""
    stopping = threading.Event()
    threads: list[threading.Thread] = []

    def kill() -> None:
        while not stopping.wait(0.02):
            for pid in _workers():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def fail() -> None:
        stopping.clear()
        threads.append(threading.Thread(target=kill))
        threads[-1].start()

    def heal() -> None:
        stopping.set()
        threads[-1].join()

    _with_faults(spark, topics, str(target), fail, heal, LOST_WORKER, driver_bytes=0)


def _workers() -> list[int]:
    """Return the workers of Python that this process's Spark has."""
    parents, commands = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            commands[int(folder.name)] = (folder / "cmdline").read_text()
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    daemons = {pid for pid, command in commands.items() if "pyspark.daemon" in command}
    return [pid for pid in daemons if parents.get(pid) in daemons and os.getpid() in _ancestors(pid, parents)]


def _ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while pid := parents.get(pid, 0):
        yield pid


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("table_format", ["parquet", "iceberg"])
def test_a_bucket_that_does_not_answer_is_waited_for(
    spark: SparkSession, topics: TopicsWriter, s3: S3Server, bucket: str, table_format: TableFormat
) -> None:
    target, code = f"{bucket}/lake", "CDCD-STORAGE-UNAVAILABLE"
    _with_faults(spark, topics, target, s3.stop, s3.start, code, s3.options(), format=table_format)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("table_format", ["parquet", "iceberg"])
def test_connections_to_a_bucket_that_are_cut_at_any_byte_lose_nothing(
    spark: SparkSession, topics: TopicsWriter, s3: S3Server, bucket: str, table_format: TableFormat
) -> None:
    """An answer that is lost leaves open whether the request took effect."""
    with Proxy(s3.port) as proxy:
        options = s3.options(endpoint=f"http://127.0.0.1:{proxy.port}")
        writing, target = _Writing(topics), f"{bucket}/lake"
        writing.commit(COMMITS[0])
        with _running(spark, topics, target, target_options=options, format=table_format) as query:
            _reached(target, COMMITS[0], query, s3.options())
            for lsn in COMMITS[1:]:
                proxy.cut_after("down", lsn * 7)
                writing.commit(lsn)
            proxy.heal()
            _reached(target, COMMITS[-1], query, s3.options())
            assert 'cdcd_mirror_restarts_total{reason="CDCD-STORAGE-UNAVAILABLE"}' in _metrics(query)
        _assert_whole(target, writing, s3.options())
