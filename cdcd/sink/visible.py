"""Wait until a consumer with read_committed can read the last committed group to its end.

In: the sink, after a commit.  Out: nothing; `reached` returns when all records of the group are visible.
Invariant: a broker answers a commit when the coordinator has stored it, and writes the markers to the partitions
afterwards; until then the last stable offset of a partition is before the group, milliseconds at most with running
brokers. A group that another commit has followed is visible: the coordinator begins no transaction of the producer
before all markers of its last one are written.
Must not: run where nobody waits, or make the next group wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import ListOffsetsResultInfo, OffsetSpec

from cdcd.errors import CdcdError, TopicMissing
from cdcd.sink.admin import Admin
from cdcd.sink.kafka_sink import KafkaSink
from cdcd.sink.listed_offset import listed_offset
from cdcd.threads import in_thread

__all__ = ["Visibility"]

Ends = Mapping[str, Mapping[int, int]]
"""By topic and partition, the offset after the last record of a group."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.25
_DOING = "looking up the last stable offsets"


class Visibility:
    """Of one sink's groups. All methods belong to the event loop."""

    def __init__(self, sink: KafkaSink) -> None:
        self._sink = sink
        self._visible: Ends | None = None
        self._admin: Admin | None = None
        self._waiting = 0
        self._look: asyncio.Future[None] | None = None

    @property
    def is_reached(self) -> bool:
        """Whether it is known that the last group is visible."""
        return not self._sink.committed_ends or self._visible is self._sink.committed_ends

    async def reached(self) -> None:
        """Wait until the group that is the last one now is visible. Cancel it to give up."""
        wanted = self._sink.committed_ends
        self._waiting += 1
        try:
            while not self.is_reached and self._sink.committed_ends is wanted:
                if self._look is None or self._look.done():
                    self._look = asyncio.ensure_future(self._looked(wanted))
                await asyncio.shield(self._look)
        finally:
            self._waiting -= 1

    async def _looked(self, wanted: Ends) -> None:
        """Look until the group is visible, or another one follows it, or nobody waits. One task for all."""
        pause_s = _FIRST_PAUSE_S
        while self._sink.committed_ends is wanted and self._waiting:
            try:
                if await in_thread(self._are_visible, wanted):
                    self._visible = wanted
                    return
            except CdcdError:  # an outage ends, and who waits has a time-out
                self._admin = None  # the credentials may have changed
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _are_visible(self, ends: Ends) -> bool:
        """Return whether the last stable offsets are not below the ends. Blocks; raises Sink errors."""
        asked = {
            TopicPartition(topic, number): OffsetSpec.latest()
            for topic, of_topic in ends.items()
            for number in of_topic
        }
        if self._admin is None:
            self._admin = Admin(self._sink.settings)
        answers = self._admin.client.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=self._admin.timeout_s
        )
        return all(_end(answers[one], one.topic) >= ends[one.topic][one.partition] for one in asked)


def _end(answer: Future[ListOffsetsResultInfo], topic: str) -> float:
    """Return the last stable offset; a topic that was deleted has nothing to wait for."""
    try:
        return listed_offset(answer, _DOING, topic)
    except TopicMissing:
        return float("inf")
