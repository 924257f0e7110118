"""A mirror in a bucket of a real S3 API, and in a real HDFS: no lock exists, so the commit log says who may write."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdcd.demo.stack.s3 import S3Server
from cdcd.errors import EXIT_FAILURE
from cdcd.spark.mirroring.start import mirror
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.session import run_to_end
from cdcd.spark.storage.uri import Storage, open_storage
from cdcd.spark.target.commit_log import LATEST, path_of, read_latest
from cdcd.spark.target.target_writer import take_over
from tests.spark.conftest import S3_PASSWORD
from tests.spark.events import Table, column
from tests.spark.topics import TopicsWriter, rows_of
from tests.support.hdfs import HdfsServer

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(1200),
]  # the S3 server is built at its first use on a host
Lake = tuple[str, dict[str, str]]
ITEMS = [column("id", "int", required=True), column("body", "string")]
WITHIN_S = 60


@pytest.fixture(params=["s3", "hdfs"])
def lake(request: pytest.FixtureRequest) -> Lake:
    """Return a target, and its options."""
    if request.param == "hdfs":
        cluster: HdfsServer = request.getfixturevalue("hdfs")
        return cluster.uri, cluster.options()
    server: S3Server = request.getfixturevalue("s3")
    return request.getfixturevalue("bucket") + "/lake", server.options()


def rows(table: Table, target: str, options: dict[str, str]) -> list[dict[str, Any]]:
    return rows_of(read_mirror(target, options), table)


@pytest.mark.parametrize("driver_bytes", [1 << 20, 0], ids=["driver", "tasks"])
def test_a_mirror_in_a_bucket_is_equal_to_the_topics(
    spark: SparkSession, topics: TopicsWriter, lake: Lake, driver_bytes: int
) -> None:
    """Spark's tasks read the secret themselves."""
    target, options = lake
    items = topics.table("items", ITEMS)
    run = partial(mirror, spark, topics.connection, target, target_options=options, driver_bytes=driver_bytes)
    expected = [{"id": n, "body": f"text {n}"} for n in range(500)]
    topics.commit(
        10, [one for row in expected for one in topics.change(items, "r", 10, row["id"], after=row)]
    )
    assert run_to_end(run) is None
    assert rows(items, target, options) == sorted(expected, key=repr)
    changed = {"id": 0, "body": "changed"}
    gone = topics.change(items, "d", 20, 2, before={"id": 1, "body": None})
    topics.commit(20, [*topics.change(items, "u", 20, 1, after=changed), *gone])
    for _ in range(2):  # the second start changes nothing
        assert run_to_end(run) is None
        assert rows(items, target, options) == sorted([changed, *expected[2:]], key=repr)
    assert_only_its_files(open_storage(target, options))


def assert_only_its_files(storage: Storage) -> None:
    version = read_latest(storage)
    assert version is not None
    records = {path_of(number) for number in range(1, version.number + 1)}
    replaced = {path for path, _ in version.replaced}
    assert {*storage.paths()} == {LATEST, *records, *version.files(), *replaced}


def command_of(topics: TopicsWriter, lake: Lake) -> list[str]:
    target, options = lake
    command = [sys.executable, "-m", "cdcd.spark", "mirror", "--target", target, "--trigger-ms", "100"]
    command += ["--brokers", topics.bootstrap, "--prefix", topics.prefix, "--registry", topics.registry_url]
    return [*command, *(f"--target-option={name}={value}" for name, value in options.items())]


def test_a_mirror_that_is_killed_continues(spark: SparkSession, topics: TopicsWriter, lake: Lake) -> None:
    target, options = lake
    items = topics.table("items", ITEMS)
    expected: list[dict[str, Any]] = []

    def insert() -> None:
        expected.append({"id": len(expected), "body": "x" * 1000})
        lsn = 10 * len(expected)
        topics.commit(lsn, topics.change(items, "c", lsn, 1, after=expected[-1]))

    insert()
    for _ in range(2):
        with subprocess.Popen(
            command_of(topics, lake), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            batches = 0
            for line in process.stdout:
                if " files with " in line:
                    batches += 1
                    insert()
                if batches == 4:
                    process.kill()  # while it reads, writes or publishes the row
        assert batches >= 4
    run = partial(mirror, spark, topics.connection, target, target_options=options)
    assert run_to_end(run) is None
    assert rows(items, target, options) == sorted(expected, key=repr)
    assert_only_its_files(open_storage(target, options))


def test_the_command_takes_the_options_of_a_bucket_and_stops_when_another_takes_over(
    topics: TopicsWriter, lake: Lake
) -> None:
    target, options = lake
    items = topics.table("items", ITEMS)
    topics.commit(10, topics.change(items, "r", 10, 1, after={"id": 1, "body": "a"}))
    command = command_of(topics, lake)
    storage = open_storage(target, options)
    text = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            text += line
            if " 1 files with 1 rows" in line:
                found = read_latest(storage)
                assert found is not None
                take_over(storage, found)
                topics.commit(20, topics.change(items, "r", 20, 1, after={"id": 2, "body": "b"}))
    assert process.returncode == EXIT_FAILURE, text
    assert "CDCD-STORAGE-CONFLICT" in text
    assert S3_PASSWORD not in text
    assert [row["id"] for row in rows(items, target, options)] == [1]


def test_a_mirror_that_another_has_taken_over_stops(
    spark: SparkSession, topics: TopicsWriter, lake: Lake
) -> None:
    """Both would otherwise remove files that the other is about to name (F80)."""
    target, options = lake
    storage = open_storage(target, options)
    items = topics.table("items", ITEMS)
    topics.commit(10, topics.change(items, "r", 10, 1, after={"id": 1, "body": "a"}))
    query = mirror(spark, topics.connection, target, target_options=options, trigger="100 milliseconds")
    try:
        deadline_s = time.monotonic() + WITHIN_S
        while (found := read_latest(storage)) is None or not found.tables:
            assert time.monotonic() < deadline_s
            assert query.isActive, query.exception()
            time.sleep(0.1)
        taken = take_over(storage, found)  # as the start of another process does
        topics.commit(20, topics.change(items, "r", 20, 1, after={"id": 2, "body": "b"}))
        while query.isActive:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        assert "CDCD-STORAGE-CONFLICT" in str(query.exception())
        assert "another mirror has taken over the target" in str(query.exception())
    finally:
        query.stop()
    assert read_latest(storage) == taken.version
    assert run_to_end(partial(mirror, spark, topics.connection, target, target_options=options)) is None
    assert [row["id"] for row in rows(items, target, options)] == [1, 2]
