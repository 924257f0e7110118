"""Readers of the topics during the faults: one that follows, and one that begins at the first offset again and again.

In: the brokers' own addresses, a registry, the daemon's name.  Out: records, cuts and visits.
Invariant: read_committed; no code of cdcd; each record as it was delivered, in the order of its delivery.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from tests.campaign.facts import Cut, Place, ReadRecord, Visit
from tests.campaign.witness import COLUMNS
from tests.faults.topics import TRANSIENT, Decoder, consumer, digest, lsn_of

LOOK_FOR_TOPICS_S = 0.5
PAUSE_S = 0.5


class Follower(threading.Thread):
    """Reads all topics of one daemon until `stop`."""

    def __init__(self, bootstrap: str, name: str, slot: str) -> None:
        super().__init__(name="follower", daemon=True)
        self._brokers, self._daemon_name, self._slot = bootstrap, name, slot.encode()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._messages: list[Message] = []
        self._cuts: list[Cut] = []
        self._reached: dict[Place, int] = {}
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Read; wait while brokers are down."""
        reader, assigned, looked_s = consumer(self._brokers), set[Place](), 0.0
        try:
            while not self._over.is_set():
                if time.monotonic() - looked_s > LOOK_FOR_TOPICS_S:
                    looked_s = time.monotonic()
                    self._assign(reader, assigned)
                if not assigned:
                    self._over.wait(0.1)
                    continue
                for message in reader.consume(1000, 0.2):
                    self._add(message)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that joins
            self.failure = error
        finally:
            reader.close()

    def _assign(self, reader: Consumer, assigned: set[Place]) -> None:
        try:
            topics = reader.list_topics(timeout=5).topics
        except KafkaException:
            return  # no broker answers
        wanted = {f"{self._daemon_name}.public.{table}" for table in COLUMNS} | {
            f"{self._daemon_name}.__progress"
        }
        places = {(name, number) for name in wanted & topics.keys() for number in topics[name].partitions}
        if new := places - assigned:
            reader.incremental_assign([TopicPartition(*place, 0) for place in sorted(new)])
            assigned |= new

    def _add(self, message: Message) -> None:
        if (error := message.error()) is not None:
            if error.name() == "_PARTITION_EOF":
                with self._lock:
                    self._reach((message.topic(), message.partition()), message.offset())
            elif not error.retriable() and error.name() not in TRANSIENT:
                raise KafkaException(error)
            return
        with self._lock:
            self._reach((message.topic(), message.partition()), message.offset() + 1)
            if not message.topic().endswith(".__progress"):
                self._messages.append(message)
            elif message.key() == self._slot:  # other records of that topic have other keys
                self._cuts.append(cut_of(message, self._cuts[-1].offsets if self._cuts else {}))

    def _reach(self, place: Place, offset: int) -> None:
        self._reached[place] = max(offset, self._reached.get(place, 0))

    def cuts(self) -> tuple[Cut, ...]:
        """Return the cuts so far."""
        with self._lock:
            return tuple(self._cuts)

    def last_cut(self) -> Cut | None:
        """Return the last cut whose records have all been delivered."""
        with self._lock:
            for cut in reversed(self._cuts):
                if has_reached(self._reached, cut.offsets):
                    return cut
        return None

    def messages(self) -> list[Message]:
        """Return the records of the tables so far."""
        with self._lock:
            return list(self._messages)

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self.join(60)
        if self.failure is not None:
            raise self.failure


def has_reached(reached: Mapping[Place, int], offsets: Mapping[Place, int]) -> bool:
    """Whether a reader is at or behind these offsets."""
    return all(reached.get(place, 0) >= offset for place, offset in offsets.items())


def cut_of(message: Message, before: Mapping[Place, int]) -> Cut:
    """Decode a progress record, which has the offsets of the partitions that its Kafka transaction wrote to.

    `before`: the offsets of the cut before it. While tables are being copied, it is no whole state, nor before the
    stream has all changes up to where they were copied.
    """
    document = json.loads(message.value())
    offsets = dict(before) | {
        (topic, int(partition)): offset
        for topic, partitions in document["offsets"].items()
        for partition, offset in partitions.items()
    }
    copy = document.get("copy") or {}
    end_lsn = lsn_of(document["end_lsn"])
    floor = max((lsn_of(lsn) for lsn in copy.get("floors", {}).values()), default=0)
    is_copied = document["phase"] == "streaming" and not copy.get("tables")
    is_whole = is_copied and not document.get("part") and floor <= end_lsn
    return Cut(message.offset(), end_lsn, offsets, is_whole, floor if is_copied else None)


class Visitor(threading.Thread):
    """Reads everything below the follower's last cut, from the first offset on, again and again until `stop`."""

    def __init__(self, follower: Follower, bootstrap: str) -> None:
        super().__init__(name="visitor", daemon=True)
        self._follower, self._brokers = follower, bootstrap
        self._over = threading.Event()
        self.visits: list[Visit] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Visit; a visit that `stop` interrupts does not count."""
        try:
            while not self._over.wait(PAUSE_S):
                cut = self._follower.last_cut()
                visit = cut and visited(self._brokers, cut, self._over)
                if visit:
                    self.visits.append(visit)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that joins
            self.failure = error

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self.join(60)
        if self.failure is not None:
            raise self.failure


def visited(bootstrap: str, cut: Cut, over: threading.Event) -> Visit | None:
    """Read everything below a cut; None if `over` was set before the end."""
    places = [place for place, offset in cut.offsets.items() if offset]
    reached: dict[Place, int] = {place: 0 for place in cut.offsets if not cut.offsets[place]}
    digests: dict[tuple[str, int, int], int] = {}
    reader = consumer(bootstrap)
    try:
        reader.assign([TopicPartition(*place, 0) for place in sorted(places)])
        while not has_reached(reached, cut.offsets):
            if over.is_set():
                return None
            for message in reader.consume(1000, 0.2):
                place = (message.topic(), message.partition())
                error = message.error()
                if error is None:
                    digests[*place, message.offset()] = digest(message)
                elif error.name() != "_PARTITION_EOF":
                    if not error.retriable() and error.name() not in TRANSIENT:
                        raise KafkaException(error)
                    continue
                reached[place] = max(reached.get(place, 0), message.offset() + (error is None))
    finally:
        reader.close()
    return Visit(cut, digests)


@dataclass
class Reading:
    """Messages -> records, with the schemas of a registry."""

    registry_url: str
    name: str

    def __post_init__(self) -> None:
        self._decoder: Any = Decoder(self.registry_url, self.name)

    def record(self, message: Message) -> ReadRecord:
        """Decode one record of a table."""
        event = self._decoder.event(message)
        row_key = (event.table, dict(event.key or ()).get("id") or "")
        value = (event.after or {}).get(COLUMNS.get(event.table, ""))
        return ReadRecord(
            event.place, event.offset, event.op, row_key, value, event.xid or 0, digest(message)
        )
