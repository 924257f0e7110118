"""The records of one table's topics, read into files of entries, and read on from there.

In: the sink's settings, the topics, a folder.  Out: entries by file, and what the records say about the table.
Invariant: the files have every record below `next`; a record that is in them twice, after a run that was interrupted,
is folded as once. So an interrupted run continues where its last state was stored.
Must not: decide what a snapshot has: the entries are the same for every snapshot.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from cdcd.sink.settings import SinkSettings
from cdcd.sink.topic_records import Bounds, bounds_of, read_records, topics_with_records
from cdcd.verify.outcome import CannotTell
from cdcd.verify.records import ComparedTable, Found, Place, Records
from cdcd.verify.spill import SpillFolder, file_bits, remove_files

_STORED_EVERY = 1_000_000
_FORMAT = 1
Partition = tuple[str, int]


class TopicLog:
    """The topics of one table. Errors: CannotTell, Sink errors, those of `schema_of`, OSError."""

    def __init__(
        self,
        settings: SinkSettings,
        table: ComparedTable,
        topic: str,
        folder: Path,
        schema_of: Callable[[int], Any],
    ) -> None:
        self._settings, self._table = settings, table
        self.topics = topics_with_records(settings, topic)
        self._state = folder / "topics.json"
        self._records = Records(table, schema_of)
        self.starts: dict[Partition, int] = {}
        self._next: dict[Partition, int] = {}
        bounds = bounds_of(settings, self.topics)
        bits = self._continue(bounds)
        if bits is None:  # files of another state have entries of other columns, perhaps of another size
            remove_files(folder, "topics")
            bits = file_bits(sum(one.end - one.start for one in bounds.values()))
            self.starts = {place: one.start for place, one in bounds.items()}
            self._next = dict(self.starts)
        self._bits = bits
        self._files = SpillFolder(folder, "topics", table.entry_bytes, bits)
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
        for batch in read_records(self._settings, bounds, silence_s):
            numbers = {topic: number for number, topic in enumerate(self.topics)}
            for topic, partition, offset, key, value in batch:
                entry = self._entry(Place(numbers[topic], partition, offset), key, value)
                if entry is not None:
                    self._files.append(entry)
                self._next[topic, partition] = offset + 1
            done = sum(self._next[place] - one.start for place, one in bounds.items())
            report(done, total)
            if done - stored_at >= _STORED_EVERY:
                stored_at = done
                self.store()
            yield
        self._next |= {place: one.end for place, one in bounds.items()}
        self._files.flush()

    def _entry(self, place: Place, key: bytes | None, value: bytes | None) -> bytes | None:
        try:
            return self._records.entry(place, key, value)
        except (ArithmeticError, EOFError, LookupError, TypeError, ValueError, struct.error) as error:
            topic, partition, offset = self.topic_of(place)
            what = f"record {topic} {partition}@{offset} cannot be decoded: {type(error).__name__}"
            raise CannotTell(f"{what}; another program may have written it") from None

    def _bounds(self) -> dict[Partition, Bounds]:
        """Return what is left to read. A topic or a partition may be new since."""
        now = bounds_of(self._settings, self.topics)
        left = {}
        for place, one in now.items():
            at = self._next.setdefault(place, one.start)
            self.starts.setdefault(place, one.start)
            if one.start > at:
                raise CannotTell("Kafka has removed records while they were read (retention)")
            if one.end < at:
                raise CannotTell("a topic was recreated while it was read")
            left[place] = Bounds(at, one.end)
        return left

    def topic_of(self, place: Place) -> tuple[str, int, int]:
        """Return topic, partition and offset of a place."""
        return self.topics[place.topic], place.partition, place.offset

    def key_at(self, place: Place) -> str:
        """Return the text of the key of the record at a place. Raises CannotTell if Kafka has removed it."""
        topic, partition, offset = self.topic_of(place)
        wanted = {(topic, partition): Bounds(offset, offset + 1)}
        for batch in read_records(self._settings, wanted, self._settings.operation_timeout_s):
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
            "topics": self.topics,
            "next": [[*place, offset] for place, offset in self._next.items()],
            "starts": [[*place, offset] for place, offset in self.starts.items()],
            "truncates": [[at.hex(), xid, sorted(places)] for at, (xid, places) in found.truncates.items()],
            "positions": [found.gap.hex(), found.keyless.hex(), found.other_key.hex()],
            "records": found.records,
        }
        written = self._state.with_suffix(".new")
        written.write_text(json.dumps(document))
        os.replace(written, self._state)

    def _continue(self, bounds: dict[Partition, Bounds]) -> int | None:
        """Take the state of a run that was interrupted; return its number of bits, None without such a state."""
        try:
            document = json.loads(self._state.read_text())
        except (OSError, ValueError):
            return None
        if document["format"] != _FORMAT or document["table"] != fingerprint(self._table):
            return None
        following = {(topic, partition): offset for topic, partition, offset in document["next"]}
        if document["topics"] != self.topics or any(
            place not in bounds or not bounds[place].start <= offset <= bounds[place].end
            for place, offset in following.items()
        ):
            return None
        self._next = following
        self.starts = {(topic, partition): offset for topic, partition, offset in document["starts"]}
        gap, keyless, other_key = map(bytes.fromhex, document["positions"])
        self._records.found = Found(
            {
                bytes.fromhex(at): (xid, {(topic, partition) for topic, partition in places})
                for at, xid, places in document["truncates"]
            },
            gap,
            keyless,
            other_key,
            records=document["records"],
        )
        return int(document["bits"])


def fingerprint(table: ComparedTable) -> str:
    """Return a digest of all that the entries of a table depend on."""
    types = sorted(table.types.items())
    return hashlib.sha256(repr((replace(table, types={}), types)).encode()).hexdigest()
