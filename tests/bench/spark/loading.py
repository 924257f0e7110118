"""The first load of a mirror: run as a program of its own by spark-submit.

In: JSON: servers, the prefix, a target with its options, the format, the most rows of a batch.
Out: the file "done.json" in the folder: the seconds from the start of the mirror to its end, the batches, and the
peak of this process's memory, which is the driver's Python. The mirror ends at the newest commit.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from cdcd.spark.clients.connection import Connection, RegistryAccess
from cdcd.spark.mirroring.batches import BatchReport
from cdcd.spark.mirroring.start import mirror
from cdcd.spark.session import run_to_end, submitted_or_local


def main(text: str) -> None:
    """Mirror, and write what was measured."""
    given = json.loads(text)
    spark = submitted_or_local("cdcd load", "2", "1g")
    connection = Connection(given["brokers"], given["prefix"], registry=RegistryAccess(given["registry"]))
    reports: list[BatchReport] = []
    begun_s = time.monotonic()
    failure = run_to_end(
        lambda: mirror(
            spark,
            connection,
            given["target"],
            target_options=given["options"],
            format=given["format"],
            max_rows=given["max_rows"],
            on_error="fail",
            on_batch=reports.append,
        )
    )
    if failure is not None:
        raise failure
    measured = {
        "s": time.monotonic() - begun_s,
        "batches": len(reports),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }
    Path(given["folder"], "done.json").write_text(json.dumps(measured))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
