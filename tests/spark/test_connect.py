"""The reading side through Spark Connect: a server and a client, each a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.spark.events import column
from tests.spark.topics import TopicsWriter
from tests.support.spark_connect import ConnectServer

ITEMS = [column("id", "int", required=True), column("name", "string")]
IDS = [1, 2, 3]
DEADLINE_S = 500


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_each_way_of_reading_works_through_connect(topics: TopicsWriter, tmp_path: Path) -> None:
    """All but the mirror, which says where to run it."""
    items = topics.table("items", ITEMS)
    for number in IDS:
        row = {"id": number, "name": "a"}
        topics.commit(number * 10, topics.change(items, "c", number * 10, 1, after=row))
    task = {
        "options": topics.connection.options(),
        "topic": items.topic,
        "folder": str(tmp_path / "client"),
    }
    with ConnectServer(tmp_path / "server") as server:
        done = server.run("tests.spark.connected", json.dumps(task), timeout_s=DEADLINE_S)
        assert done.returncode == 0, done.stdout + done.stderr + server.output()[-8000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("session").startswith("pyspark.sql.connect")
    assert "run the mirror by spark-submit" in found.pop("mirror")
    assert found.pop("views") == [2, 1]
    assert found == {"table": IDS, "decode": IDS, "stream": IDS}
