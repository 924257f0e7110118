"""Named places at which a test may have the process end, as a power cut would: between any two instructions.

In: the environment's CDCD_TEST_CRASH_AT, `place` or `place:3` for the third time it is reached.
Out: exit status 137, with nothing closed, flushed or told to anybody.
Invariant: without the variable `hit` does nothing at all. Every place is in FAILPOINTS, and a test reaches each.
Must not: be called once a row.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

EXIT_STATUS = 137
VARIABLE = "CDCD_TEST_CRASH_AT"

FAILPOINTS = {
    "schema_level_set": "between a subject's compatibility and its first schema",
    "snapshot_begun": "the record that a snapshot has begun is durable, the slot is not made",
    "slot_made": "the slot is made, nothing is copied",
    "in_snapshot": "some rows of a table are handed on to the writer",
    "snapshot_copied": "the snapshot is durable, the stream is not open",
    "received": "items were received and nothing was done with them",
    "in_transaction": "a part of a transaction's rows was handed on to the writer",
    "in_spill": "a part of an open transaction was written to disk",
    "produced": "a group was produced, and not flushed",
    "flushed": "a group was flushed, its progress record not produced",
    "progress_produced": "the progress record was produced, the Kafka transaction not committed",
    "committed": "the Kafka transaction was committed, PostgreSQL not told",
    "confirmed": "PostgreSQL was told",
}


def _pass(_place: str) -> None:
    """Do nothing."""


def _ending(place: str, time: int) -> Callable[[str], None]:
    """Return what ends the process when `place` is reached for the `time`th time."""
    counter = itertools.count(1)

    def reached(at: str) -> None:
        if at == place and next(counter) == time:
            os._exit(EXIT_STATUS)

    return reached


def _wanted(text: str) -> Callable[[str], None]:
    """Return what `hit` does for a value of the variable; a place that is not there ends cdcd's start."""
    if not text:
        return _pass
    place, _, time = text.partition(":")
    if place not in FAILPOINTS:
        raise SystemExit(f"{VARIABLE}: no such place: {place}")
    return _ending(place, int(time or 1))


hit = _wanted(os.environ.get(VARIABLE, ""))
