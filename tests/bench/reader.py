"""`python -m tests.bench.reader BOOTSTRAP TOPIC BEFORE FILE`: note when each row was readable.

Out: the line `reading` when it has the BEFORE rows of the warm-up, whose ids are negative; at the end FILE with pairs
of 64-bit numbers, id and microseconds.
In, on standard input: the number of rows, and the time (seconds of the epoch) at which to stop waiting for them.
Invariant: read_committed; the clock is read when the consumer returns a row, before the row is processed.
"""

from __future__ import annotations

import array
import sys
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

from cdcd.errors import StackError
from tests.bench.kafka import consumer
from tests.bench.latency import id_of_key

POLL_S = 0.1
CREATED_WITHIN_S = 60.0


def main() -> None:
    """Read until there are as many rows as standard input requests."""
    bootstrap, topic, before, output = sys.argv[1:]
    ending = _Ending()
    reader = consumer(bootstrap, **{"enable.partition.eof": False})  # no consumer needs it, and it takes time
    reader.assign([TopicPartition(topic, number, 0) for number in _partitions(reader, topic)])
    seen, left = array.array("q"), int(before)
    while not ending.is_reached(len(seen) // 2):
        message = reader.poll(POLL_S)
        now_us = time.time_ns() // 1000
        if message is None:
            continue
        error = message.error()
        if error is None:
            row = id_of_key(message.key() or b"")
            if row > 0:
                seen.extend((row, now_us))
                continue
            left -= 1
            if left == 0:
                print("reading", flush=True)
        elif not error.retriable():
            raise KafkaException(error)
    reader.close()
    Path(output).write_bytes(seen.tobytes())


def _partitions(reader: Consumer, topic: str) -> list[int]:
    """Return the topic's partitions. The daemon creates the topic at the first row, late on a cold broker."""
    end_s = time.monotonic() + CREATED_WITHIN_S
    while not (partitions := reader.list_topics(topic, 30).topics[topic].partitions):
        if time.monotonic() > end_s:
            raise StackError("the topic does not exist", topic=topic, seconds=CREATED_WITHIN_S)
        time.sleep(POLL_S)
    return list(partitions)


class _Ending:
    def __init__(self) -> None:
        self._count: int | None = None
        self._until_s = 0.0
        threading.Thread(target=self._hear, daemon=True).start()

    def is_reached(self, count: int) -> bool:
        """Return whether the requested number is reached, or the time is over."""
        return self._count is not None and (count >= self._count or time.time() > self._until_s)

    def _hear(self) -> None:
        count, until_s = sys.stdin.readline().split()
        self._until_s = float(until_s)
        self._count = int(count)


if __name__ == "__main__":
    main()
