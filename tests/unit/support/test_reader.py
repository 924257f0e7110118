"""The reader of the tests continues behind the records that it has returned."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from tests.support.reader import Event, Reader

Step = tuple[int, int, bool]
"""A partition, an offset, and whether the partition ends there."""
GROWS_AFTER_ITS_END: list[Step] = [
    (0, 0, False),
    (0, 1, True),
    (0, 1, False),  # committed since; the end of the other partition is not reached
    (0, 2, False),
    (1, 0, False),
    (1, 1, True),
]
LATER: list[Step] = [
    *((0, offset, False) for offset in range(4)),
    (0, 5, True),  # after a control record
    (1, 0, False),
    (1, 1, True),
]
LAST: list[Step] = [
    *((0, offset, False) for offset in (0, 1, 2, 3, 5)),
    (0, 6, True),
    *((1, offset, False) for offset in range(2)),
    (1, 2, True),
]


class PlayedConsumer:
    """Delivers the next steps after each assignment, from the assigned offsets on."""

    def __init__(self, *rounds: list[Step]) -> None:
        self._rounds = iter(rounds)

    def list_topics(self, _topic: str, timeout: float) -> Any:
        return SimpleNamespace(topics={"t": SimpleNamespace(partitions={0: None, 1: None})})

    def assign(self, partitions: list[TopicPartition]) -> None:
        at = {one.partition: one.offset for one in partitions}
        self._left = iter([step for step in next(self._rounds) if step[1] >= at[step[0]]])

    def unassign(self) -> None:
        self._left = iter(())

    def poll(self, timeout: float) -> Any:
        partition, offset, is_end = next(self._left)
        error = KafkaError(KafkaError._PARTITION_EOF) if is_end else None
        return SimpleNamespace(
            topic=lambda: "t",
            partition=lambda: partition,
            offset=lambda: offset,
            key=lambda: None,
            value=lambda: None,
            error=lambda: error,
        )

    def close(self) -> None:
        pass


def test_records_committed_after_a_partitions_end_was_reached_are_returned_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A partition may grow while the end of another one is waited for."""
    reader = Reader("nowhere", "http://nowhere")
    monkeypatch.setattr(reader, "_consumer", lambda: PlayedConsumer(GROWS_AFTER_ITS_END, LATER, LAST))
    counts: list[int] = []

    def third_time(events: list[Event]) -> bool:
        counts.append(len(events))
        return len(counts) == 3

    events = reader.wait(["t"], third_time)
    read = [(event.partition, event.offset) for event in events]
    assert sorted(read) == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 5), (1, 0), (1, 1)]
    assert counts == [4, 5, 7]
