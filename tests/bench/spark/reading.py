"""A stream of a backlog's tables into Parquet: run as a program of its own, local or by spark-submit.

In: JSON: the options of `format("cdcd")`, a folder, the cores of a local session.
Out: the file "done.json" in the folder: the seconds from the start of the query to its end, the number of its
batches, and the files that Spark has committed. The query ends at the newest commit.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql.streaming import StreamingQuery

from cdcd.spark.data_source import register
from cdcd.spark.session import run_to_end, submitted_or_local

STARTS = 60
"""How often a query is started until the machine starts its worker within Spark's 10 seconds."""


def main(text: str) -> None:
    """Read, and write what was measured."""
    given = json.loads(text)
    spark = submitted_or_local("cdcd backlog", given.get("cores", "2"), "2g")
    register(spark)
    folder = Path(given["folder"])
    rows, begun_s = folder / "rows", 0.0
    started: list[StreamingQuery] = []

    def start() -> StreamingQuery:
        nonlocal begun_s
        begun_s = time.monotonic()
        typed = spark.readStream.format("cdcd").options(**given["options"]).load()
        chosen = typed.select("topic", "partition", "offset", "op", "after.*", "commit_lsn", "tx_seq")
        writing = chosen.writeStream.format("parquet").option("path", str(rows))
        writing = writing.option("checkpointLocation", str(folder / "checkpoint"))
        started.append(writing.trigger(availableNow=True).start())
        return started[-1]

    if failure := run_to_end(start, starts=STARTS):
        raise failure
    took_s = time.monotonic() - begun_s
    files = [unquote(urlsplit(one).path) for one in spark.read.parquet(str(rows)).inputFiles()]
    batches = len([one for one in started[-1].recentProgress if one["numInputRows"]])
    measured: dict[str, Any] = {"s": took_s, "batches": batches, "files": files}
    (folder / "done.json").write_text(json.dumps(measured))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
