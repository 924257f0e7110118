"""A record of a topic -> an entry for the fold: the key, the position, the hashes of the columns.

In: the records of a table's topics, in the order of each partition.  Out: entries as bytes, and what holds for the
whole table: truncates, gaps, records without a key.
Invariant: the bytes of entries are in the order of key and position. An entry has no value, only hashes.
Must not: do I/O, except by the given function that returns schemas.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import fastavro

from cdcd.extensions import extension
from cdcd.model import PgType
from cdcd.schema.attnums import RELID, row_record
from cdcd.schema.flat import FLAT_PROPERTY
from cdcd.schema.named_types import with_full_names
from cdcd.verify.columns import ComparedColumn, Source, has_attnums, key_sources, sources_of
from cdcd.verify.hashes import MISSING, UNCHANGED, Text, column_constant, key_bytes, key_id, row_hashes
from cdcd.verify.program import key_program, value_program, without_logical_types
from cdcd.verify.texts import TextOf

ROW, DELETED, COPIED, UNKNOWN, UPDATED = range(5)
"""The kinds of entries. COPIED: a row of a snapshot of cdcd; UNKNOWN: a row that was too large for Kafka (F65).

UPDATED: a row that was in the topic before; ROW: an insert, also the new row of a changed key.
"""

POSITION = struct.Struct(">IQBQ")
"""Timeline, commit LSN, 0 for rows of a snapshot and 1 for the stream, number in the transaction."""
_PLACE = struct.Struct(">BIBIQ")
"""Kind, xid (0: none), number of the topic, partition, offset."""
_LSN_AT = 4
KEY_BYTES = 16
POSITION_END = KEY_BYTES + POSITION.size
HEAD_BYTES = POSITION_END + _PLACE.size
_COPY_PHASE, _STREAM_PHASE = 0, 1
_HEADER_BYTES = 5
_SHARE = 1 << 16


ALL_KEYS = _SHARE
"""The share that has all keys."""


class Place(NamedTuple):
    """Where an entry's record is: the number of the topic, the partition, the offset."""

    topic: int
    partition: int
    offset: int


def kind_of(entry: bytes) -> int:
    """Return the kind of an entry."""
    return entry[POSITION_END]


def place_of(entry: bytes) -> Place:
    """Return the place of an entry's record."""
    return Place(*_PLACE.unpack_from(entry, POSITION_END)[2:])


def commit_of(entry: bytes) -> tuple[int, int | None]:
    """Return the commit LSN and the xid of an entry, None for a row of a copy."""
    lsn = int.from_bytes(entry[KEY_BYTES + _LSN_AT : KEY_BYTES + _LSN_AT + 8], "big")
    return lsn, int.from_bytes(entry[POSITION_END + 1 : POSITION_END + 5], "big") or None


def lsn_of(position: bytes) -> int:
    """Return the commit LSN of a position."""
    return int.from_bytes(position[_LSN_AT : _LSN_AT + 8], "big")


def windows_of(share: int) -> int:
    """Return how many samples of this share have all keys together."""
    return -(-_SHARE // share)


def share_of(percent: float) -> int:
    """Return the number below which the first 16 bits of a key's second hash are, for a part of the keys."""
    return max(1, min(_SHARE, round(percent * _SHARE / 100)))


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """The table as the snapshot has it. `key`: numbers in `columns`; `codec`: Python's name of its encoding.

    The sample has the keys of `share` numbers from `first` on, of 65536 (`is_sampled`).
    """

    relid: int
    schema: str
    name: str
    columns: tuple[ComparedColumn, ...]
    key: tuple[int, ...]
    types: Mapping[int, PgType]
    codec: str = "utf-8"
    share: int = _SHARE
    first: int = 0

    def is_sampled(self, key: bytes) -> bool:
        """Return whether the sample has a key, by the first 16 bits of its second hash."""
        return (int.from_bytes(key[8:10], "big") - self.first) % _SHARE < self.share

    @property
    def title(self) -> str:
        """The name for people."""
        return f"{self.schema}.{self.name}"

    @property
    def constants(self) -> tuple[int, ...]:
        """The constants of the columns' hashes."""
        return tuple(column_constant(column.attnum) for column in self.columns)

    @property
    def entry_bytes(self) -> int:
        """The size of an entry."""
        return HEAD_BYTES + 8 * len(self.columns)


_extension: Any = extension("cdcd.verify._entries")
_POSITIONS = ("former", "unnumbered", "disordered", "copied")


@dataclass(slots=True)
class Found:
    """What the records say about the whole table. A position is the bytes of `POSITION`, b"" for none.

    `truncates`: by position, the xid and the places of their records; `gap`: the last marker of missing changes;
    `keyless`: the last record without a key; `other_key`: the last one with another key; `former`: the last one of a
    former table of the name; `unnumbered`: the last one whose schema has no attnums; `disordered`: the last one in a
    partition behind a record of the same or a later position; `copied`: the last row of a copy. `firsts` and `lasts`:
    by topic and partition, the first position, and the last one of the stream.
    """

    truncates: dict[bytes, tuple[int | None, set[tuple[int, int]]]] = field(default_factory=dict)
    gap: bytes = b""
    keyless: bytes = b""
    other_key: bytes = b""
    former: bytes = b""
    unnumbered: bytes = b""
    disordered: bytes = b""
    copied: bytes = b""
    is_flat: bool = False
    records: int = 0
    firsts: dict[tuple[int, int], bytes] = field(default_factory=dict)
    lasts: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def take(self, place: Place, position: bytes, *, is_ordered: bool) -> None:
        """Take the position of the next record of a partition. `is_ordered`: it is one of the stream."""
        at = (place.topic, place.partition)
        self.firsts[at] = min(self.firsts.get(at, position), position)
        if not is_ordered:
            return
        if position <= self.lasts.get(at, b""):
            self.disordered = max(self.disordered, position)
        else:
            self.lasts[at] = position

    def as_stored(self) -> dict[str, Any]:
        """Return as JSON objects what `take` has found, and the other positions."""
        by_place = {
            name: [[*at, one.hex()] for at, one in places.items()]
            for name, places in (("firsts", self.firsts), ("lasts", self.lasts))
        }
        return by_place | {name: getattr(self, name).hex() for name in _POSITIONS}

    def take_stored(self, stored: Mapping[str, Any]) -> None:
        """Take what `as_stored` has returned."""
        for name in ("firsts", "lasts"):
            setattr(self, name, {(topic, number): bytes.fromhex(at) for topic, number, at in stored[name]})
        for name in _POSITIONS:
            setattr(self, name, bytes.fromhex(stored[name]))


def _schema_id(framed: bytes) -> int:
    """Return the id of a record's schema. Raises ValueError for a record that cdcd did not write."""
    if len(framed) < _HEADER_BYTES or framed[0] != 0:
        raise ValueError("no schema id")
    return int.from_bytes(framed[1:_HEADER_BYTES], "big")


class _Schema(NamedTuple):
    parsed: Any
    sources: list[Source | None]
    relid: int | None
    is_numbered: bool
    has_same_key: bool


class Records:
    """Reads the records of one table's topics. `schema_of` returns the schema of an id as JSON objects."""

    def __init__(self, table: ComparedTable, schema_of: Callable[[int], Any]) -> None:
        self._table, self._schema_of = table, schema_of
        self._constants = table.constants
        self._key_columns = [table.columns[number] for number in table.key]
        self._values: dict[int, _Schema] = {}
        self._keys: dict[int, tuple[Any, list[Source] | None]] = {}
        self._nothing = struct.pack(f">{len(table.columns)}Q", *[MISSING] * len(table.columns))
        self.found = Found()
        self._reader: Any = None
        if _extension is not None:
            self._reader = _extension.Reader(self._constants, table.share, table.first)

    def read(self, batch: list[Any], at: int, numbers: dict[str, int]) -> tuple[int, bytes]:
        """Read records of topic, partition, offset, key, value from `at` on, as far as the C extension does.

        `numbers`: of the topics. Returns the index of the first record that `entry` has to read, and the entries of
        those before it.
        """
        if self._reader is None:
            return at, b""
        found: tuple[int, bytes] = self._reader.read(batch, at, numbers, self.found)
        return found

    def entry(self, place: Place, key: bytes | None, value: bytes | None) -> bytes | None:
        """Return the entry of a record, None for a record that changes no row. Raises what `schema_of` raises."""
        if value is None:
            return None  # a tombstone: its delete is the record before it
        self.found.records += 1
        schema = self._value_schema(value)
        if schema is None:
            return None
        change = _decoded(schema.parsed, value)
        source, op = change["source"], change["op"]
        is_copy = op == "r" or source["snapshot"] not in (None, "false")
        phase = _COPY_PHASE if is_copy else _STREAM_PHASE
        position = POSITION.pack(source["timeline"], source["commit_lsn"], phase, source["tx_seq"])
        xid = source["txId"]
        if schema.relid is not None and schema.relid != self._table.relid:
            self.found.former = max(self.found.former, position)  # a former table of this name
            return None
        self.found.take(place, position, is_ordered=not is_copy and xid is not None)
        if is_copy:
            self.found.copied = max(self.found.copied, position)
        special = source["special"] or {}
        if op == "t" or (op == "g" and "gap.dead_letters" not in special):
            self._take_barrier(op, position, xid, place, special)
            return None
        text = self._compared_key(schema, key, position)
        if text is None:
            return None
        found = key_id(text)
        if not self._table.is_sampled(found):
            return None
        kind = _KINDS.get(op, ROW)
        hashes = self._nothing
        if kind in (ROW, COPIED, UPDATED):
            hashes = self._hashes(schema.sources, change["after"], source["unchanged"], special, found)
        return found + position + _PLACE.pack(kind, xid or 0, *place) + hashes

    def _compared_key(self, schema: _Schema, key: bytes | None, position: bytes) -> bytes | None:
        """Return the text of a record's key, None (which is noted) if it cannot be compared."""
        if key is None:
            self.found.keyless = max(self.found.keyless, position)
            return None
        if not schema.is_numbered:
            self.found.unnumbered = max(self.found.unnumbered, position)
        text = self._key(key) if schema.has_same_key else None
        if text is None:
            self.found.other_key = max(self.found.other_key, position)
        return text

    def _take_barrier(
        self, op: str, position: bytes, xid: int | None, place: Place, special: Mapping[str, str]
    ) -> None:
        if op == "t":
            _, places = self.found.truncates.setdefault(position, (xid, set()))
            places.add((place.topic, place.partition))
        elif "gap.to_lsn" in special:  # without it a truncate and all rows follow
            self.found.gap = max(self.found.gap, position)

    def key_text(self, key: bytes) -> str:
        """Return the text of a record's key, of several columns each with its size."""
        return (self._key(key) or b"").decode(self._table.codec)

    def _key(self, key: bytes) -> bytes | None:
        number = _schema_id(key)
        if number not in self._keys:
            schema = with_full_names(self._schema_of(number))
            sources = key_sources(schema, self._key_columns, self._table.types, self._encoded)
            self._keys[number] = (_parsed(schema), sources)
            program = None if sources is None else key_program(schema, sources)
            if self._reader is not None and program is not None:
                self._reader.add_key(number, program)
        parsed, sources = self._keys[number]
        if sources is None:
            return None
        row = _decoded(parsed, key)
        return key_bytes([None if row[one.field] is None else one.text(row[one.field]) for one in sources])

    def _value_schema(self, value: bytes) -> _Schema | None:
        number = _schema_id(value)
        if number not in self._values:
            schema = with_full_names(self._schema_of(number))
            if FLAT_PROPERTY in schema:
                self.found.is_flat = True
                return None
            record = row_record(schema)
            if record is None:
                return None
            sources = sources_of(record, schema, self._table.columns, self._table.types, self._encoded)
            has_same_key = all(sources[column] is not None for column in self._table.key)
            self._values[number] = made = _Schema(
                _parsed(schema), sources, record.get(RELID), has_attnums(record), has_same_key
            )
            if self._reader is not None and self._is_plain(made):
                program = value_program(schema, sources)
                if program is not None:
                    self._reader.add_value(number, program)
        return self._values[number]

    def _is_plain(self, schema: _Schema) -> bool:
        """Return whether the records of a schema note nothing by themselves (`former`, `unnumbered`, `other_key`)."""
        return schema.is_numbered and schema.has_same_key and schema.relid in (None, self._table.relid)

    def _hashes(
        self,
        sources: Sequence[Source | None],
        row: Mapping[str, Any],
        unchanged: Sequence[str],
        special: Mapping[str, str],
        key: bytes,
    ) -> bytes:
        texts: list[Text] = [
            MISSING if one is None else None if row[one.field] is None else one.text(row[one.field])
            for one in sources
        ]
        if unchanged or special:
            for number, one in enumerate(sources):
                if one is None:
                    continue
                if one.field in unchanged:
                    texts[number] = UNCHANGED
                elif f"after.{one.field}" in special:
                    texts[number] = special[f"after.{one.field}"].encode(self._table.codec)
                elif f"after.{one.field}.omitted_bytes" in special:
                    texts[number] = MISSING
        found: bytes = row_hashes(int.from_bytes(key[:8], "big"), self._constants, texts)
        return found

    def _encoded(self, text: TextOf) -> TextOf:
        codec = self._table.codec
        return text if codec == "utf-8" else lambda value: text(value).decode().encode(codec)


_KINDS = {"d": DELETED, "g": UNKNOWN, "r": COPIED, "u": UPDATED}


def _decoded(parsed: Any, data: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(memoryview(data)[_HEADER_BYTES:]), parsed, None)


def _parsed(schema: Any) -> Any:
    return fastavro.parse_schema(without_logical_types(schema))
