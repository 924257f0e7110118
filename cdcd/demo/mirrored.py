"""The mirror's position and tables, for the demo.

In: the mirror's target, and the broker for the end offsets.  Out: positions and Arrow tables.
Invariant: "reached" means that every record covered by a progress record has been applied, in every partition;
the end is read from the progress topic, as any reader of the topics can do.
Must not: query the Spark process, or wait.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from cdcd.spark.reading.mirror import Mirror as OpenedMirror
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.storage.uri import Target, open_storage
from cdcd.spark.target.commit_log import read_latest
from cdcd.spark.target.versions import TargetVersion

Offsets = Mapping[str, Mapping[str, int]]
PROGRESS_TIMEOUT_S = 30.0


class Mirror:
    """The mirror of everything under one prefix."""

    def __init__(self, target: Target, prefix: str) -> None:
        self._target, self._prefix = open_storage(target), prefix
        self._summed: tuple[int, str] = (-1, "not begun")

    def summary(self) -> str:
        """Return a short description of the mirror's position."""
        version = read_latest(self._target)
        if version is not None and version.number != self._summed[0]:
            opened = OpenedMirror(self._target, version)
            rows = sum(map(opened.rows, opened.topics))
            self._summed = version.number, f"{rows:,} rows in {len(opened.topics)} tables"
        return self._summed[1]

    def position(self) -> int:
        """Return a number that changes with every applied batch."""
        version = read_latest(self._target)
        return -1 if version is None else version.number

    def activity(self) -> tuple[int, int]:
        """Return the position and the number of files, which changes during a batch, too: the first may take long."""
        return self.position(), sum(1 for _ in self._target.paths())

    def has_reached(self, end: Offsets) -> bool:
        """Return whether all records before `end` have been applied."""
        version = read_latest(self._target)
        return version is not None and is_covered(end, version)

    def end(self, brokers: str) -> Offsets:
        """Return the sum of the progress records written so far, as offsets."""
        return progress_end(brokers, f"{self._prefix}.__progress")

    def read(self, schema: str, table: str) -> Any | None:
        """Return a table's mirror as a `pyarrow.Table`; None if there is none."""
        topic = f"{self._prefix}.{schema}.{table}"
        mirror = read_mirror(self._target)
        return mirror.table(topic) if topic in mirror.topics else None


def is_covered(end: Offsets, version: TargetVersion) -> bool:
    """Return whether the version's offsets reach `end` in every partition."""
    applied = version.offsets
    return all(
        applied.get(topic, {}).get(partition, 0) >= offset
        for topic, partitions in end.items()
        for partition, offset in partitions.items()
    )


def progress_end(brokers: str, topic: str) -> Offsets:
    """Read the progress topic to its end and return the largest offset of each partition it names."""
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "cdcd-demo",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 0,  # its log lines would mix with the demo's; its errors are raised as well
        }
    )
    end: dict[str, dict[str, int]] = {}
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while (message := consumer.poll(PROGRESS_TIMEOUT_S)) is not None:
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return end
            if error is not None:
                raise KafkaException(error)
            if b"/" in message.key():
                continue  # a record that describes a slot: a slot's name has no slash
            for name, partitions in json.loads(message.value())["offsets"].items():
                known = end.setdefault(name, {})
                for partition, offset in partitions.items():
                    known[partition] = max(offset, known.get(partition, 0))
    finally:
        consumer.close()
    raise TimeoutError(f"{topic} was not read to its end within {PROGRESS_TIMEOUT_S:g} s")
