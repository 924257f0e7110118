"""The records of one table's topics, read into files of entries, and read on from there.

In: the sink's settings, the topics, a folder.  Out: entries by file, and what the records say about the table.
Invariant: the files have every record below `next`, and only entries of these topics, this table and this sample; a
record that is in them twice, after a run that was interrupted, is folded as once. So an interrupted run continues
where its last state was stored. A topic is known by its id, because a new one may have the same name.
Must not: decide what a snapshot has: the entries are the same for every snapshot.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from cdcd.sink.admin import Admin
from cdcd.sink.settings import SinkSettings
from cdcd.sink.topic_records import (
    Bounds,
    RecordsRemoved,
    TopicRecord,
    bounds_of,
    read_records,
    topic_ids,
    topics_with_records,
)
from cdcd.verify.outcome import CannotTell
from cdcd.verify.records import ComparedTable, Found, Place, Records
from cdcd.verify.spill import SpillFolder, file_bits
from cdcd.version import __version__

_STORED_EVERY = 1_000_000
STATE = "topics.json"
"""The file by which another process can continue."""
_FORMAT = 3
_REMOVED = "Kafka has removed records while they were read (retention)"
Partition = tuple[str, int]


class _Stored(NamedTuple):
    """The state of a run that was interrupted."""

    bits: int
    sizes: dict[str, int]
    ids: dict[str, str]
    following: dict[Partition, int]
    starts: dict[Partition, int]
    found: Found

    def has_entries(self, folder: Path) -> bool:
        """Return whether no file is shorter than it was: a power loss may leave the state, and not all entries."""
        try:
            return all((folder / name).stat().st_size >= size for name, size in self.sizes.items())
        except FileNotFoundError:
            return False


class TopicLog:
    """The topics of one table. Errors: CannotTell, Sink errors, those of `schema_of`, OSError."""

    def __init__(
        self,
        settings: SinkSettings,
        admin: Admin,
        table: ComparedTable,
        topic: str,
        folder: Path,
        schema_of: Callable[[int], Any],
    ) -> None:
        self._settings, self._admin, self._table = settings, admin, table
        self._topic = topic
        self._state = folder / STATE
        self._records = Records(table, schema_of)
        self._ids: dict[str, str] = {}
        self.topics: list[str] = []
        self.starts: dict[Partition, int] = {}
        self._next: dict[Partition, int] = {}
        stored = self._stored()
        self._look()
        if stored is not None:
            self._bits = stored.bits
            self.starts, self._next = stored.starts, stored.following
            self._records.found = stored.found
        else:
            bounds = bounds_of(admin, self.topics)
            self._bits = file_bits(sum(one.end - one.start for one in bounds.values()))
        self._files = SpillFolder(folder, "topics", table.entry_bytes, self._bits)
        if stored is None:
            self.remove()  # the entries of another table, sample or topic
        self._files.trim()

    @property
    def found(self) -> Found:
        """What the records say about the whole table."""
        return self._records.found

    @property
    def files(self) -> SpillFolder:
        """The entries."""
        return self._files

    def read_on(self, silence_s: float, report: Callable[[int, int], None]) -> Iterator[None]:
        """Read up to the ends that the logs have now. Yields after each batch; the last one is complete.

        `report` gets the records that were read, and those there are.
        """
        bounds = self._bounds()
        total = sum(one.end - one.start for one in bounds.values())
        stored_at = 0
        for batch in self._records_within(bounds, silence_s):
            self._files.append(self._entries(batch))
            self._next |= {one[:2]: one.offset + 1 for one in batch}
            done = sum(self._next[place] - one.start for place, one in bounds.items())
            report(done, total)
            if done - stored_at >= _STORED_EVERY:
                stored_at = done
                self.store()
            yield
        self._look()  # these are the topics that were read
        self._next |= {place: one.end for place, one in bounds.items()}
        self._files.flush()

    def _records_within(
        self, bounds: Mapping[Partition, Bounds], silence_s: float
    ) -> Iterator[list[TopicRecord]]:
        try:
            yield from read_records(self._settings, bounds, silence_s)
        except RecordsRemoved:
            raise CannotTell(_REMOVED) from None

    def _entries(self, batch: list[TopicRecord]) -> bytes:
        numbers = {topic: number for number, topic in enumerate(self.topics)}
        at, found = 0, list[bytes]()
        while at < len(batch):
            at, made = self._records.read(batch, at, numbers)
            found.append(made)
            if at < len(batch):
                topic, partition, offset, key, value = batch[at]
                found.append(self._entry(Place(numbers[topic], partition, offset), key, value) or b"")
                at += 1
        return b"".join(found)

    def _entry(self, place: Place, key: bytes | None, value: bytes | None) -> bytes | None:
        try:
            return self._records.entry(place, key, value)
        except (ArithmeticError, EOFError, LookupError, TypeError, ValueError, struct.error) as error:
            topic, partition, offset = self.topic_of(place)
            what = f"record {topic} {partition}@{offset} cannot be decoded: {type(error).__name__}"
            raise CannotTell(f"{what}; another program may have written it") from None

    def _look(self) -> None:
        """Add the topics that are new. Raises CannotTell if one is not there any more, or was recreated."""
        names = topics_with_records(self._admin, self._topic)
        now = topic_ids(self._admin, names)
        if any(now.get(topic) != known for topic, known in self._ids.items()):
            raise CannotTell("a topic was removed or recreated while it was read")
        self.topics += [
            name for name in names if name not in self._ids
        ]  # entries have the numbers of the others
        self._ids = now

    def _bounds(self) -> dict[Partition, Bounds]:
        """Return what is left to read. A topic or a partition may be new since."""
        self._look()
        now = bounds_of(self._admin, self.topics)
        left = {}
        for place, one in now.items():
            at = self._next.setdefault(place, one.start)
            self.starts.setdefault(place, one.start)
            if one.start > at:
                raise CannotTell(_REMOVED)
            if one.end < at:
                raise CannotTell("a topic was recreated while it was read")
            left[place] = Bounds(at, one.end)
        return left

    def unread(self) -> list[str]:
        """Return the topics of the table that were not known when they were read last."""
        self._look()
        known = {topic for topic, _ in self._next}
        return [topic for topic in self.topics if topic not in known]

    def topic_of(self, place: Place) -> tuple[str, int, int]:
        """Return topic, partition and offset of a place."""
        return self.topics[place.topic], place.partition, place.offset

    def key_at(self, place: Place) -> str:
        """Return the text of the key of the record at a place. Raises CannotTell if Kafka has removed it."""
        topic, partition, offset = self.topic_of(place)
        wanted = {(topic, partition): Bounds(offset, offset + 1)}
        for batch in self._records_within(wanted, self._settings.operation_timeout_s):
            for record in batch:
                if record.offset == offset and record.key is not None:
                    return self._records.key_text(record.key)
        raise CannotTell("Kafka has removed a record while it was read")

    def remove(self) -> None:
        """Remove all files."""
        self._files.remove()
        self._state.unlink(missing_ok=True)

    # --- the state of an interrupted run

    def store(self) -> None:
        """Write the entries and the state, so that another process can continue here."""
        self._files.flush()
        found = self.found
        document = {
            "format": _FORMAT,
            "table": fingerprint(self._table),
            "bits": self._bits,
            "sizes": self._files.sizes(),
            "topics": [[topic, self._ids[topic]] for topic in self.topics],
            "next": [[*place, offset] for place, offset in self._next.items()],
            "starts": [[*place, offset] for place, offset in self.starts.items()],
            "truncates": [[at.hex(), xid, sorted(places)] for at, (xid, places) in found.truncates.items()],
            "positions": [found.gap.hex(), found.keyless.hex(), found.other_key.hex()],
            "records": found.records,
            "is_flat": found.is_flat,
            "order": found.as_stored(),
        }
        written = self._state.with_suffix(".new")
        written.write_text(json.dumps(document))
        os.replace(written, self._state)

    def _stored(self) -> _Stored | None:
        """Return the state of a run that was interrupted, None if there is none that can be continued."""
        try:
            document = json.loads(self._state.read_text())
            if document["format"] != _FORMAT or document["table"] != fingerprint(self._table):
                return None
            stored = _read(document)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None
        if not stored.has_entries(self._state.parent):
            return None
        names = topics_with_records(self._admin, self._topic)
        if not set(stored.ids) <= set(names) or topic_ids(self._admin, list(stored.ids)) != stored.ids:
            return None
        bounds = bounds_of(self._admin, list(stored.ids))
        if any(
            place not in bounds or not bounds[place].start <= offset <= bounds[place].end
            for place, offset in stored.following.items()
        ):
            return None
        self._ids, self.topics = dict(stored.ids), list(stored.ids)
        return stored


def _read(document: dict[str, Any]) -> _Stored:
    gap, keyless, other_key = map(bytes.fromhex, document["positions"])
    truncates = {
        bytes.fromhex(at): (xid, {(topic, partition) for topic, partition in places})
        for at, xid, places in document["truncates"]
    }
    found = Found(
        truncates, gap, keyless, other_key, is_flat=document["is_flat"], records=document["records"]
    )
    found.take_stored(document["order"])
    return _Stored(
        int(document["bits"]),
        {name: int(size) for name, size in document["sizes"].items()},
        dict(document["topics"]),
        {(topic, partition): offset for topic, partition, offset in document["next"]},
        {(topic, partition): offset for topic, partition, offset in document["starts"]},
        found,
    )


def fingerprint(table: ComparedTable) -> str:
    """Return a digest of all that the entries of a table depend on: also cdcd, which computes their hashes."""
    types = sorted(table.types.items())
    return hashlib.sha256(repr((__version__, replace(table, types={}), types)).encode()).hexdigest()
