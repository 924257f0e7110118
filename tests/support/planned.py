"""A Kafka without brokers for the planner of the Spark data source: topics, and the log of the progress topic.

In: topics with their ids and offsets; progress records and records of topics, as the daemon writes them.
Out: the batches that the real readers plan: `Planned` takes the place of `Cluster`, and of the consumer `Tail`.
Invariant: only Kafka is replaced; each offset that is passed to a reader has been through JSON, as Spark's have.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from cdcd.errors import SinkAuthorization, SinkUnavailable
from cdcd.lsn import format_lsn
from cdcd.sink.progress import FIRST_OFFSETS, dump_offsets
from cdcd.spark.data_source import CdcdReader, CdcdStreamReader
from cdcd.spark.source.cuts import Offsets, is_pseudo
from cdcd.spark.source.source_options import parse_options

PREFIX = "p"
PROGRESS = f"{PREFIX}.__progress"
T, U, V, X = "p.s.T", "p.s.U", "p.s.V", "p.s.X"
Moves = dict[str, tuple[int, int]]
"""By topic, the first offset of a batch and the next one after it."""


@dataclass
class PlannedTopic:
    """A topic of one partition."""

    id: str
    end: int
    start: int = 0


@dataclass(frozen=True)
class _Message:
    place: int
    name: bytes
    content: bytes | None
    firsts: bytes | None = None
    written_ms: int = 0

    def timestamp(self) -> tuple[int, int]:
        return (1, self.written_ms)

    def key(self) -> bytes:
        return self.name

    def value(self) -> bytes | None:
        return self.content

    def offset(self) -> int:
        return self.place

    def headers(self) -> list[tuple[str, bytes]] | None:
        return None if self.firsts is None else [(FIRST_OFFSETS, self.firsts)]


@dataclass
class Planned:
    """The topics, and the log of the progress topic. `place`: the offset of the next record."""

    topics: dict[str, PlannedTopic] = field(default_factory=dict)
    log: list[_Message] = field(default_factory=list)
    place: int = 0
    asked: list[str] = field(default_factory=list)
    """The topics that were described, in order."""
    hidden: set[str] = field(default_factory=set)
    """The topics that the principal may not describe."""
    _described_at: dict[str, int] = field(default_factory=dict)
    readable: int | None = None
    """The first offset of the progress topic whose transaction is not complete there yet; None: all are."""
    late: dict[str, str] = field(default_factory=dict)
    """The ids that the asked broker knows, where it does not know the present ones."""

    def progress(
        self,
        lsn: int,
        offsets: Mapping[str, int],
        slot: str = "s",
        *,
        is_part: bool = False,
        snapshot: Sequence[str] | None = None,
        loading: Sequence[str] = (),
        firsts: Mapping[str, int] | None = None,
        end_lsn: int | None = None,
        timeline: int = 1,
        began_lsn: int = 0,
        system: str = "7",
        commit_us: int | None = None,
        written_ms: int = 0,
    ) -> None:
        """Append a slot's progress record.

        `snapshot`: the topics that an incomplete snapshot has begun. `firsts`: the first offsets of the records.
        `timeline`, `began_lsn`, `system`: the server's. `commit_us`: its commit time, by default that of its LSN.
        `written_ms`: its timestamp in Kafka.
        """
        value: dict[str, Any] = {
            "format": 2,
            "commit_lsn": format_lsn(lsn),
            "end_lsn": format_lsn(lsn + 8 if end_lsn is None else end_lsn),
            "system_identifier": system,
            "timeline": timeline,
            "commit_us": lsn * 1_000_000 if commit_us is None else commit_us,
            "offsets": {topic: {"0": offset} for topic, offset in offsets.items()},
            "phase": "streaming" if snapshot is None else "snapshot",
            "snapshot_tables": list(snapshot or ()),
        }
        if began_lsn:
            value["timeline_lsn"] = format_lsn(began_lsn)
        if slot in self._described_at:
            value["topics_at"] = self._described_at[slot]
        if is_part:
            value["part"] = {"commit_lsn": "0/1", "tx_seq": 1}
        if loading:
            value["copy"] = {
                "pending": [],
                "tables": {str(n): {"topic": one} for n, one in enumerate(loading)},
            }
        header = None if firsts is None else {topic: {0: first} for topic, first in firsts.items()}
        self._append(slot, value, None if header is None else dump_offsets(header), written_ms)

    def describe(self, *names: str, slot: str = "s", incomplete: Mapping[str, Any] | None = None) -> None:
        """Append the record of a slot's topics, with their present ids. `incomplete`: those that lack rows."""
        self._described_at[slot] = self.place
        known = {name: {"id": self.topics[name].id, "partitions": 1} for name in names}
        document: dict[str, Any] = {"format": 1, "topics": known}
        self._append(f"{slot}/topics", document | ({} if incomplete is None else {"incomplete": incomplete}))

    def _append(
        self, key: str, value: Mapping[str, Any], firsts: bytes | None = None, written_ms: int = 0
    ) -> None:
        self.log.append(_Message(self.place, key.encode(), json.dumps(value).encode(), firsts, written_ms))
        self.place += 1

    def clear(self) -> None:
        """Begin with a progress topic without records."""
        self.log.clear()
        self._described_at.clear()

    def compact(self, keys: Iterable[str], before: int) -> None:
        """Remove the records of these keys before a place."""
        removed = {key.encode() for key in keys}
        self.log = [one for one in self.log if one.place >= before or one.name not in removed]

    # --- Cluster

    def partitions(self) -> dict[str, list[int]]:
        return {name: [0] for name in (*self.topics, PROGRESS) if name not in self.hidden}

    def missing(self, topics: Collection[str]) -> frozenset[str]:
        return frozenset(topics) - self.partitions().keys() - self.hidden

    def ids(self, topics: Sequence[str]) -> dict[str, str]:
        self.asked += topics
        known = [name for name in topics if name in self.topics and name not in self.hidden]
        return {name: self.late.get(name, self.topics[name].id) for name in known}

    def starts(self, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return {place: self._topic(place[0]).start for place in places}

    def ends(self, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return {place: self._topic(place[0]).end for place in places}

    high_watermarks = ends

    def bounds(self, places: Sequence[tuple[str, int]]) -> tuple[dict[Any, int], dict[Any, int]]:
        return self.starts(places), self.ends(places)

    def _topic(self, name: str) -> PlannedTopic:
        if name in self.hidden:
            raise SinkAuthorization("Kafka does not list offsets", kafka="TOPIC_AUTHORIZATION_FAILED")
        if name not in self.topics:
            raise SinkUnavailable("Kafka does not list offsets", reason="UNKNOWN_TOPIC_OR_PART")
        return self.topics[name]


class PlannedTail:
    """The progress topic, read forward."""

    def __init__(self, kafka: Planned) -> None:
        self._kafka, self._next = kafka, 0
        self._end: int | None = None
        self._written = 0

    @property
    def exists(self) -> bool:
        return PROGRESS not in self._kafka.hidden

    def messages(self) -> Iterator[_Message]:
        newest = self._newest()
        end = newest if self._end is None else min(newest, self._end)
        for one in list(self._kafka.log):
            if self._next <= one.place < end:
                self._next = one.place + 1
                yield one
        self._next = max(self._next, end)

    def _newest(self) -> int:
        if not self.exists:
            return 0
        return self._kafka.place if self._kafka.readable is None else self._kafka.readable

    def note_written(self) -> None:
        self._written = self._kafka.place
        self._end = None if self._end is None else max(self._end, self._written)

    @property
    def has_read_written(self) -> bool:
        return self._next >= self._written

    def rewind(self) -> None:
        self._next = 0

    def end_now(self) -> None:
        self._end = self._newest()

    def close(self) -> None:
        pass


def planned(monkeypatch: pytest.MonkeyPatch) -> Planned:
    """Return a Kafka that the readers of this test use."""
    kafka = Planned()
    monkeypatch.setattr("cdcd.spark.source.commits.Cluster", lambda *_: kafka)
    monkeypatch.setattr("cdcd.spark.source.progress_reader.Tail", lambda *_: PlannedTail(kafka))
    monkeypatch.setattr("cdcd.spark.source.record_sizes._sample", lambda *_: {})
    for name in (
        "cdcd.spark.source.retained_ranges.SETTLES_WITHIN_S",
        "cdcd.spark.source.retained_ranges.LOOK_AGAIN_S",
        "cdcd.spark.source.progress_log.COMPLETE_WITHIN_S",
        "cdcd.spark.source.progress_log.RETIRED_EVERY_S",
    ):
        monkeypatch.setattr(name, 0.0)
    return kafka


def options(**given: str) -> dict[str, str]:
    """Return the options of a data source."""
    return {"brokers": "127.0.0.1:1", "prefix": PREFIX, "readers": "1", **given}


class Query:
    """A stream as Spark runs it: `again` is a new process that continues from the checkpoint."""

    def __init__(self, **given: str) -> None:
        self._given = given
        self.reached: Offsets | None = None
        self.ends: list[Offsets] = []
        self._start()

    def _start(self) -> None:
        self.reader = CdcdStreamReader(parse_options(options(**self._given)))

    def with_options(self, **given: str) -> Query:
        """Set options of the next process."""
        self._given |= given
        return self

    def again(self) -> Query:
        """End the process, and start a new one, for which Spark first plans an empty batch at the last end."""
        return self._again(self.reached)

    def _again(self, end: Offsets | None) -> Query:
        self.reader.stop()
        self._start()
        if end is not None:
            assert not [topic for topic in self.planned(end, end) if not is_pseudo(topic)]
        return self

    def batch(self) -> Moves:
        """Plan and commit the next batch; return what it reads of each topic, nothing if there is none.

        As of Spark, the first one is also run if it is empty.
        """
        start = self._started()
        end = stored(self.reader.latestOffset(start, self.reader.getDefaultReadLimit()))
        if end == start and self.reached is not None:
            return {}
        self.ends.append(end)
        moves = self.planned(start, end)
        self.reached = end
        return moves

    def fail(self) -> Offsets:
        """Plan the next batch, whose end Spark stores, and end the process; return the end."""
        end = stored(self.reader.latestOffset(self._started(), self.reader.getDefaultReadLimit()))
        self._again(end)
        return end

    def repeat(self, end: Offsets) -> Moves:
        """Run the batch that failed once more, and commit it."""
        moves = self.planned(self._started(), end)
        self.reached = end
        return moves

    def planned(self, start: Offsets, end: Offsets) -> Moves:
        """Return what the batch between two offsets reads."""
        return moves_of(self.reader.partitions(start, end))

    def _started(self) -> Offsets:
        return stored(self.reader.initialOffset()) if self.reached is None else self.reached


def read(**given: str) -> Moves:
    """Return what a batch read reads."""
    return moves_of(CdcdReader(parse_options(options(**given))).partitions())


def moves_of(tasks: Sequence[Any]) -> Moves:
    """Return what tasks read."""
    return {part.topic: (part.start, part.end) for task in tasks for part in task.value}


def stored(offsets: Offsets) -> Offsets:
    """Return offsets as Spark's checkpoint returns them."""
    found: Offsets = json.loads(json.dumps(offsets))
    return found
