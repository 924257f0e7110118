"""The topics, read by confluent-kafka's consumer and fastavro with the schemas of the registry's HTTP API.

In: a bootstrap address, a registry, the daemon's name.  Out: events and progress records since the last call.
Invariant: read_committed, from the first offset on, each offset once; no code of cdcd. A record that cannot be
decoded becomes an event with the reason. `Live` reads during the faults and stores a digest of each record.
"""

from __future__ import annotations

import io
import json
import threading
import time
import urllib.request
import zlib
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import fastavro
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from tests.faults.facts import MESSAGE, Event, Key, Place, Progress, Row

DEADLINE_S = 90.0
LOOK_FOR_TOPICS_S = 0.5


def consumer(bootstrap: str, isolation: str = "read_committed") -> Consumer:
    """Return an independent consumer whose partitions are assigned by the caller."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "oracle",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 20,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 2000,
            "log_level": 0,
        }
    )


class Topics:
    """The topics of one daemon."""

    def __init__(self, bootstrap: str, registry_url: str, name: str, slot: str) -> None:
        self._brokers = bootstrap
        self._slot = slot
        self._decoder = Decoder(registry_url, name)
        self._name = name
        self._next: dict[Place, int] = {}
        self.digests: dict[tuple[str, int, int], int] = {}
        """The digest of every record read so far from the tables' topics."""

    @property
    def progress_topic(self) -> str:
        """The topic of the progress records."""
        return f"{self._name}.__progress"

    @property
    def ends(self) -> dict[Place, int]:
        """For each partition of the tables' topics, the offset after the last record read."""
        return {place: end for place, end in self._next.items() if place[0] != self.progress_topic}

    def partitions(self, reader: Consumer) -> dict[str, int]:
        """Return the daemon's topics that contain rows, with their number of partitions."""
        topics = reader.list_topics(timeout=30).topics
        return {
            name: len(one.partitions)
            for name, one in topics.items()
            if name.startswith(f"{self._name}.") and "__" not in name
        }

    def taken(self) -> tuple[tuple[Event, ...], tuple[Progress, ...], dict[str, int]]:
        """Return what was committed since the last call: events by partition and offset, progress; partitions."""
        reader = consumer(self._brokers)
        try:
            partitions = self.partitions(reader)
            places = [(name, number) for name, count in partitions.items() for number in range(count)]
            messages = self._read(reader, [*places, (self.progress_topic, 0)])
        finally:
            reader.close()
        messages.sort(key=lambda one: (one.topic(), one.partition(), one.offset()))
        of_tables = [one for one in messages if one.topic() != self.progress_topic]
        for one in of_tables:
            self.digests[one.topic(), one.partition(), one.offset()] = digest(one)
        events = [self._decoder.event(one) for one in of_tables]
        key = self._slot.encode()  # other records of that topic have other keys
        records = [
            progress_of(one) for one in messages if one.topic() == self.progress_topic and one.key() == key
        ]
        return tuple(events), tuple(records), partitions

    def _read(self, reader: Consumer, places: Iterable[Place]) -> list[Message]:
        waiting = set(places)
        reader.assign([TopicPartition(*place, self._next.get(place, 0)) for place in sorted(waiting)])
        found = []
        end_s = time.monotonic() + DEADLINE_S
        while waiting:
            assert time.monotonic() < end_s, f"no end of {sorted(waiting)[:5]}"
            for message in reader.consume(2000, 0.2):
                place = (message.topic(), message.partition())
                if message.error() is None:
                    found.append(message)
                    self._next[place] = message.offset() + 1
                elif message.error().name() == "_PARTITION_EOF":
                    waiting.discard(place)
                elif not message.error().retriable() and message.error().name() not in TRANSIENT:
                    raise KafkaException(message.error())
        return found


TRANSIENT = {
    "_TRANSPORT",
    "_ALL_BROKERS_DOWN",
    "_RESOLVE",
    "_TIMED_OUT",
    "NOT_LEADER_FOR_PARTITION",
    "LEADER_NOT_AVAILABLE",
}


def digest(message: Message) -> int:
    """Return a hash of a record's bytes."""
    return zlib.crc32((message.key() or b"\0") + b"\1" + (message.value() or b"\0"))


def lsn_of(text: str) -> int:
    """Return the LSN `16/B374D848` as a number."""
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def progress_of(message: Message) -> Progress:
    """Decode a progress record from its JSON."""
    document = json.loads(message.value())
    part, copy = document.get("part"), document.get("copy", {})
    return Progress(
        offset=message.offset(),
        phase=document["phase"],
        commit_lsn=lsn_of(document["commit_lsn"]),
        end_lsn=lsn_of(document["end_lsn"]),
        offsets={
            (topic, int(partition)): offset
            for topic, partitions in document["offsets"].items()
            for partition, offset in partitions.items()
        },
        part=part and (lsn_of(part["commit_lsn"]), part["tx_seq"]),
        commit_s=document["commit_us"] / 1e6 if document["commit_us"] > 0 else None,
        floors={int(relid): lsn_of(lsn) for relid, lsn in copy.get("floors", {}).items()},
        pending=frozenset(copy["pending"]) if "pending" in copy else None,
        copy_lsn=lsn_of(copy.get("point_lsn", "0/0")),
        in_chunks=frozenset(map(int, copy.get("tables", {}))),
    )


class Decoder:
    """Messages -> events."""

    def __init__(self, registry_url: str, name: str) -> None:
        self._url = registry_url
        self._name = name
        self._schemas: dict[int, Any] = {}

    def event(self, message: Message) -> Event:
        """Decode one record; one that cannot be decoded becomes an event with the reason."""
        topic = message.topic()
        table = topic.removeprefix(f"{self._name}.").removeprefix("public.")
        at = (topic, message.partition(), message.offset(), table)
        try:
            key = message.key() and _key(self._read(message.key()))
            if message.value() is None:
                return Event(*at, "x", key, raw_key=message.key())
            value = self._read(message.value())
            return (
                self._message(at, value) if table == MESSAGE else self._change(at, message.key(), key, value)
            )
        except Exception as error:  # noqa: BLE001 - the oracle reports every error
            return Event(*at, "?", is_odd=f"{type(error).__name__}: {error}")

    @staticmethod
    def _message(at: tuple[str, int, int, str], value: dict[str, Any]) -> Event:
        after = {"content": value["content"].decode()}
        xid, lsn, tx_seq = value["txId"], value["commit_lsn"], value["tx_seq"]
        timeline = value["timeline"]
        return Event(*at, "m", after=after, xid=xid, timeline=timeline, commit_lsn=lsn, tx_seq=tx_seq)

    @staticmethod
    def _change(
        at: tuple[str, int, int, str], raw_key: bytes | None, key: Key | None, value: dict[str, Any]
    ) -> Event:
        source = value["source"]
        return Event(
            *at,
            value["op"],
            key,
            _row(value["before"]),
            _row(value["after"]),
            frozenset(source["unchanged"]),
            source["txId"],
            source["timeline"],
            source["commit_lsn"],
            source["tx_seq"],
            source["snapshot"] not in (None, "false"),
            raw_key=raw_key,
        )

    def _read(self, raw: bytes) -> Any:
        assert raw[0] == 0, "not the registry's framing"
        number = int.from_bytes(raw[1:5], "big")
        if number not in self._schemas:
            with urllib.request.urlopen(f"{self._url}/schemas/ids/{number}", timeout=30) as answer:
                self._schemas[number] = fastavro.parse_schema(json.loads(json.load(answer)["schema"]))
        stream = io.BytesIO(raw[5:])
        value = fastavro.schemaless_reader(stream, self._schemas[number], None)
        assert not stream.read(1), "extra bytes after the value"
        return value


def _row(value: dict[str, Any] | None) -> Row | None:
    return None if value is None else {name: _text(one) for name, one in value.items()}


def _key(value: dict[str, Any]) -> Key:
    return tuple((name, _text(one)) for name, one in value.items())


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, Decimal):
        return f"{value:f}"
    assert isinstance(value, int), f"no column of these tables is {type(value)}"
    return str(value)


class Live(threading.Thread):
    """A read_committed reader of the tables' topics during the faults; `taken` returns what it read."""

    def __init__(self, topics: Topics, bootstrap: str) -> None:
        super().__init__(name="live reader", daemon=True)
        self._topics = topics
        self._brokers = bootstrap
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, int, int], int] = {}
        self._next: dict[Place, int] = {}

    def run(self) -> None:
        """Read until `stop`; wait for a broker that is down."""
        reader = consumer(self._brokers)
        assigned: set[Place] = set()
        looked_s = 0.0
        try:
            while not self._over.is_set():
                if time.monotonic() - looked_s > LOOK_FOR_TOPICS_S:
                    looked_s = time.monotonic()
                    self._assign(reader, assigned)
                if not assigned:
                    self._over.wait(0.1)
                    continue
                for message in reader.consume(1000, 0.2):
                    if message.error() is None:
                        at = message.topic(), message.partition()
                        with self._lock:
                            self._seen[*at, message.offset()] = digest(message)
                            self._next[at] = message.offset() + 1
        finally:
            reader.close()

    def _assign(self, reader: Consumer, assigned: set[Place]) -> None:
        try:
            partitions = self._topics.partitions(reader)
        except KafkaException:
            return  # no broker answers
        new = {(name, number) for name, count in partitions.items() for number in range(count)} - assigned
        if new:
            reader.incremental_assign([TopicPartition(*place, 0) for place in sorted(new)])
            assigned |= new

    def taken(self, ends: Mapping[Place, int], within_s: float) -> dict[tuple[str, int, int], int]:
        """Return the digests since the last call, once the reader has reached `ends`, or after `within_s`."""
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s and not self._is_at(ends):
            time.sleep(0.02)
        with self._lock:
            seen, self._seen = self._seen, {}
        return seen

    def _is_at(self, ends: Mapping[Place, int]) -> bool:
        with self._lock:
            return all(self._next.get(place, 0) >= end for place, end in ends.items())

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self.join(60)
