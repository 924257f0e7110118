"""The mirror on a real cluster: a standalone master with two workers, the program given to spark-submit."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.storage.uri import open_storage
from cdcd.spark.target.commit_log import read_latest
from tests.spark.events import column
from tests.spark.topics import TopicsWriter, rows_of
from tests.support.spark_cluster import ROOT, SparkCluster
from tests.support.waiting import eventually

PROGRAM = ROOT / "deploy" / "spark" / "cdcd_spark.py"
ITEMS = [column("id", "int", required=True), column("body", "string")]
COMMITS, ROWS_OF_A_COMMIT = 12, 4000
IN_TASKS = ["--driver-mb", "0", "--max-rows", str(3 * ROWS_OF_A_COMMIT)]
DEADLINE_S = 280


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_worker_is_killed_and_the_mirror_is_equal(
    topics: TopicsWriter, target: Path, tmp_path: Path
) -> None:
    """Each batch is folded by tasks. The program ends by itself, with each row once."""
    items = topics.table("items", ITEMS)
    for number in range(COMMITS):
        commit_lsn = 10 * (number + 1)
        ids = range(number * ROWS_OF_A_COMMIT, (number + 1) * ROWS_OF_A_COMMIT)
        rows = [{"id": one, "body": f"text {one}"} for one in ids]
        topics.commit(
            commit_lsn,
            [
                sent
                for n, row in enumerate(rows)
                for sent in topics.change(items, "c", commit_lsn, n, after=row)
            ],
        )
    with SparkCluster(tmp_path / "cluster") as cluster:
        arguments = ["mirror", "--brokers", topics.bootstrap, "--prefix", topics.prefix]
        arguments += ["--registry", topics.registry_url, "--target", str(target), "--available-now"]
        program = cluster.submit(PROGRAM, [*arguments, *IN_TASKS])
        storage = open_storage(str(target))
        eventually(lambda: read_latest(storage) is not None, "the first batch is visible", DEADLINE_S)
        assert program.poll() is None
        cluster.workers[0].send(signal.SIGKILL)
        output, _ = program.communicate(timeout=DEADLINE_S)
    assert program.returncode == 0, output[-4000:]
    expected = [{"id": one, "body": f"text {one}"} for one in range(COMMITS * ROWS_OF_A_COMMIT)]
    assert rows_of(read_mirror(str(target)), items) == sorted(expected, key=repr)
