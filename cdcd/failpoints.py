"""Failpoints: named points in the code at which a test can end the process as a power failure would.

In: the environment variable CDCD_TEST_CRASH_AT: `name`, or `name:3` for the third time the point is reached.
Out: exit status 137; nothing is closed or flushed, and no message is sent.
Invariant: without the variable `hit` does nothing. Every failpoint is in FAILPOINTS, and a test reaches each.
Must not: be called once per row.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

EXIT_STATUS = 137
VARIABLE = "CDCD_TEST_CRASH_AT"

FAILPOINTS = {
    "schema_level_set": "between a subject's compatibility and its first schema",
    "snapshot_begun": "the record that a snapshot has begun is durable, the slot is not created",
    "slot_made": "the slot, or a temporary one, is created, nothing is copied",
    "in_snapshot": "some rows of a table are passed to the writer",
    "snapshot_copied": "the snapshot is durable, the stream does not continue yet",
    "chunk_begun": "a chunk of an incremental snapshot has its snapshot, and no rows",
    "chunk_emitted": "a slice of a chunk was passed to the writer",
    "stale_rows_deleted": "deletes of rows that only the topic has were passed to the writer",
    "blocking_recorded": "a blocking snapshot is recorded, and may not be begun",
    "hold_reached": "the stream waits at the snapshot of a blocking copy, which has not begun",
    "new_table_found": "a new table waits for its copy, which is not recorded",
    "new_table_begun": "the copy of a new table is recorded, and the table still waits",
    "table_copied": "the last chunk of a table was passed to the writer",
    "received": "items were received and not processed",
    "in_transaction": "a part of a transaction's rows was passed to the writer",
    "in_spill": "a part of an open transaction was written to disk",
    "produced": "a group was produced, and not flushed",
    "flushed": "a group was flushed, its progress record not produced",
    "progress_produced": "the progress record was produced, the Kafka transaction not committed",
    "committed": "the Kafka transaction was committed, its position not confirmed to PostgreSQL",
    "confirmed": "the position was confirmed to PostgreSQL",
    "topics_written": "the record of the topics was written, the progress record that names it was not produced",
}


def _pass(_place: str) -> None:
    """Do nothing."""


def _ending(place: str, time: int) -> Callable[[str], None]:
    """Return a function that ends the process when the failpoint `place` is reached for the `time`th time."""
    counter = itertools.count(1)

    def reached(at: str) -> None:
        if at == place and next(counter) == time:
            os._exit(EXIT_STATUS)

    return reached


def _wanted(text: str) -> Callable[[str], None]:
    """Return the function `hit` for a value of the variable. Raises SystemExit for an unknown failpoint."""
    if not text:
        return _pass
    place, _, time = text.partition(":")
    if place not in FAILPOINTS:
        raise SystemExit(f"{VARIABLE}: no such failpoint: {place}")
    return _ending(place, int(time or 1))


hit = _wanted(os.environ.get(VARIABLE, ""))
