"""A Spark of its own that keeps everything it shows: `python -m tests.spark.spark_output FOLDER`.

In: FOLDER/task.json with a connection's options, a topic, and options that have to be refused.
Out: in FOLDER the event log, the plans, the pages of the UI, the checkpoint, and result.json.
Invariant: every way in which Spark shows a query is used, also that of a query that fails: the test searches the
folder for secrets.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from cdcd.spark import decode
from cdcd.spark.clients.connection_options import connection_from
from cdcd.spark.data_source import register
from cdcd.spark.session import run_to_end

UI = ("/SQL/", "/StreamingQuery/", "/environment/", "/jobs/", "/stages/", "/executors/")
REST = ("sql?details=true&planDescription=true", "environment", "jobs", "stages")


def _session(folder: Path) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    (folder / "events").mkdir()
    return (
        SparkSession.builder.appName("shown")
        .master("local[1]")
        .config("spark.ui.port", "0")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", (folder / "events").as_uri())
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )


class Shown:
    """The session, and the folder for what it shows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spark = _session(folder)
        register(self.spark)

    def read(self, options: Mapping[str, str], topic: str) -> list[Any]:
        """Read a batch, as a table of SQL and decoded, and a stream; return the ids of the rows."""
        raw = self.spark.read.format("cdcd").options(**options).load()
        raw.createOrReplaceTempView("changes")
        self.spark.sql("select topic, count(*) from changes group by topic").collect()
        decoded = decode(raw, topic=topic, connection=connection_from(options))
        self._plan("batch", decoded)
        self._stream(options)
        return sorted(row["id"] for row in decoded.select("after.id").collect())

    def refused(self, options: Mapping[str, str]) -> str:
        """Return the error of a read that has to fail."""
        try:
            frame = self.spark.read.format("cdcd").options(**options).load()
            frame.createOrReplaceTempView("refused")
            frame.collect()
        except PySparkException as error:
            return str(error)
        raise AssertionError("the read did not fail")

    def keep_pages(self) -> None:
        """Store the pages of the UI and of its REST interface."""
        url = self.spark.sparkContext.uiWebUrl
        paths = [
            *UI,
            *(f"/api/v1/applications/{self.spark.sparkContext.applicationId}/{one}" for one in REST),
        ]
        paths += [f"/SQL/execution/?id={number}" for number in range(12)]
        for number, path in enumerate(paths):
            with suppress(urllib.error.HTTPError), urllib.request.urlopen(url + path, timeout=60) as page:
                (self.folder / f"page{number}.html").write_bytes(page.read())

    def _stream(self, options: Mapping[str, str]) -> None:
        stream = self.spark.readStream.format("cdcd").options(**options).load()
        writer = (
            stream.writeStream.format("noop")
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
        )
        failure = run_to_end(writer.start)
        if failure is not None:
            raise failure
        self._plan("stream", stream)

    def _plan(self, name: str, frame: DataFrame) -> None:
        execution = frame._jdf.queryExecution()
        (self.folder / f"{name}.plan").write_text(f"{execution.toString()}{execution.logical().toJSON()}")


def main(folder: Path) -> None:
    """Do the task of the folder."""
    task = json.loads((folder / "task.json").read_text())
    shown = Shown(folder)
    try:
        result = {
            "ids": shown.read(task["options"], task["topic"]),
            "refused": [shown.refused(one) for one in task["refused"]],
        }
        shown.keep_pages()
    finally:
        shown.spark.stop()
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
