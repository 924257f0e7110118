"""Find out when readers see what is durable, for those who wait for an LSN.

In: durable positions that readers may not see yet; the last stable offsets of partitions.
Out: the positions that readers see.
Why: a broker answers a commit when the coordinator has recorded it, and the partitions get their markers afterwards.
Until then the last stable offset is below the records, and a `read_committed` consumer does not get them.
Must not: query Kafka while nobody waits; end by an error of Kafka, which the writer finds and reports as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping

import structlog

from cdcd.errors import SinkError
from cdcd.ops.durable_waits import DurableWaits, Unseen
from cdcd.threads import in_thread

__all__ = ["Place", "StableOffsets", "watch_visible_commits"]

Place = tuple[str, int]
"""A topic and the number of a partition."""
StableOffsets = Callable[[Collection[Place]], Mapping[Place, int]]

FIRST_PAUSE_S = 0.001
LONGEST_PAUSE_S = 0.25
REPORTED_AFTER_S = 5.0
_LOG = structlog.stdlib.get_logger("cdcd.session")
_HINT = (
    "requests for this LSN wait. Either a broker cannot be reached, or a transaction of another producer is open in "
    "the partition, or a broker that was killed did not write the marker of the commit: the next row that is "
    "committed in the partition writes it"
)


async def watch_visible_commits(waits: DurableWaits, stable_offsets: StableOffsets) -> None:
    """Run until cancelled. `stable_offsets` returns the last stable offset of each partition; blocking."""
    while True:
        unseen = await waits.unseen()
        await _until_seen(unseen, stable_offsets)
        waits.seen(unseen)


async def _until_seen(unseen: Unseen, stable_offsets: StableOffsets) -> None:
    """Wait until the last stable offsets are not below the ends; report if that takes long."""
    left, pause_s = dict(unseen.ends), FIRST_PAUSE_S
    report_s: float | None = time.monotonic() + REPORTED_AFTER_S
    while left:
        failure = ""
        try:
            found = await in_thread(stable_offsets, tuple(left))
        except SinkError as error:
            found, failure = {}, str(error)
        left = {place: end for place, end in left.items() if found.get(place, -1) < end}
        if not left:
            return
        if report_s is not None and time.monotonic() >= report_s:
            (topic, partition), report_s = min(left), None
            _LOG.warning(
                "commit_not_visible", topic=topic, partition=partition, error=failure or None, hint=_HINT
            )
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
