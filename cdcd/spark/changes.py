"""Raw records of one topic or several to the columns of their changes: what `decode` runs in each task.

In: Arrow batches of topic, partition, offset, key and value; the wanted columns; a function that returns the schema
of an id.
Out: Arrow batches of the columns of `change_schema`, row for row; a record without a value has a null op.
Invariant: every record is decoded under its own schema into the wanted columns; what is not wanted is skipped. A
broken record is an error with its topic, partition and offset.
Must not: use Spark; drop a record; put a value into an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from cdcd.columnar.decoder import Decoded, RecordDecoder
from cdcd.errors import SparkReadError
from cdcd.spark.columns import AvroType
from cdcd.spark.special import Renames

SpecialPolicy = Literal["map", "string", "null", "error"]
ErrorPolicy = Literal["fail", "quarantine"]
_PLACE = ("topic", "partition", "offset")
_RAW = [
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
]
_SOURCE = [
    pa.field("timeline", pa.int64()),
    pa.field("commit_lsn", pa.int64()),
    pa.field("tx_seq", pa.int64()),
    pa.field("snapshot", pa.string()),
    pa.field("lsn", pa.int64()),
    pa.field("unchanged", pa.list_(pa.string())),
    pa.field("special", pa.map_(pa.string(), pa.string())),
]
_POSITION = [pa.field(one.name, pa.bool_()) if one.name == "snapshot" else one for one in _SOURCE]
_TIMES = [pa.field("ts_us", pa.timestamp("us", "UTC"))]  # a plain long in the envelope
_ID = [pa.field("schema_id", pa.int64())]
_QUARANTINE = [
    pa.field("error", pa.string()),
    pa.field("raw_key", pa.binary()),
    pa.field("raw_value", pa.binary()),
]
NO_TIMELINE = 0
"""The timeline of a record from a version of cdcd that does not write it."""
_BROKEN_HINT = (
    'read on past such records with decode(..., on_error="quarantine"), which returns them with the reason and their '
    "bytes; if cdcd wrote the record, report it"
)
_SPECIAL_HINT = 'choose special="map" or special="string", which return the text of such a value'


@dataclass(frozen=True, slots=True)
class Choices:
    """The wanted columns, and the policies.

    `key` None: no topic has a key. `names`: Avro name -> PostgreSQL's, of each column where they differ.
    """

    row: tuple[pa.Field, ...]
    key: tuple[pa.Field, ...] | None
    source: tuple[pa.Field, ...] = ()
    before: bool = False
    special: SpecialPolicy = "map"
    on_error: ErrorPolicy = "fail"
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def images(self) -> tuple[str, ...]:
        """The wanted images of a row."""
        return ("before", "after") if self.before else ("after",)


def change_schema(choices: Choices) -> pa.Schema:
    """Return the columns of the frame."""
    keys = [] if choices.key is None else [pa.field("key", pa.struct(list(choices.key)))]
    images = [pa.field(name, pa.struct(list(choices.row))) for name in choices.images]
    source = [pa.field("source", pa.struct(list(choices.source)))] if choices.source else []
    texts = pa.struct([pa.field(one.name, pa.string()) for one in choices.row])
    specials = [pa.field(f"special_{name}", texts) for name in choices.images]
    return pa.schema(
        [
            *_RAW,
            pa.field("op", pa.string()),
            *keys,
            *images,
            *_POSITION,
            *(specials if choices.special == "string" else []),
            *_TIMES,
            *source,
            *_ID,
            *(_QUARANTINE if choices.on_error == "quarantine" else []),
        ]
    )


class ChangeReader:
    """Decodes the batches of one task into the columns of `change_schema`."""

    def __init__(self, choices: Choices, schema_of: Callable[[int], AvroType]) -> None:
        self._choices = choices
        self._target = change_schema(choices)
        images = [self._target.field(name) for name in ("op", *choices.images)]
        also = [one for one in choices.source if one.name not in {each.name for each in _SOURCE}]
        envelope = pa.schema(
            [*images, pa.field("source", pa.struct([*_SOURCE, *also])), ("ts_us", pa.int64())]
        )
        self._values = RecordDecoder(envelope, schema_of)
        self._keys = None if choices.key is None else RecordDecoder(pa.schema(list(choices.key)), schema_of)
        self._renames = Renames(choices.names)

    def read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch decoded. Raises SparkReadError for a broken record, unless it goes to quarantine."""
        values = _checked(self._values.decode(batch["value"]), batch, "value")
        columns = {name: batch[name] for name in _PLACE} | self._changes(values.rows)
        columns["schema_id"] = values.schema_ids
        if self._keys is not None:
            columns["key"] = _checked(self._keys.decode(batch["key"]), batch, "key").rows
        return pa.RecordBatch.from_arrays([columns[name] for name in self._target.names], schema=self._target)

    def _changes(self, rows: pa.StructArray) -> dict[str, pa.Array]:
        columns = _fields(rows)
        source = columns.pop("source")
        held = _fields(source)
        columns |= {one.name: held[one.name] for one in _SOURCE}
        is_change = rows.is_valid()
        is_snapshot = pc.not_equal(pc.fill_null(held["snapshot"], "false"), "false")
        columns["snapshot"] = pc.if_else(is_change, is_snapshot, None)
        columns["timeline"] = pc.if_else(is_change, pc.fill_null(held["timeline"], NO_TIMELINE), None)
        columns["ts_us"] = columns["ts_us"].view(_TIMES[0].type)
        columns["unchanged"] = self._renames.unchanged(columns["unchanged"])
        columns["special"] = self._renames.special(columns["special"])
        if self._choices.source:
            chosen = [held[one.name] for one in self._choices.source]
            columns["source"] = pa.StructArray.from_arrays(
                chosen, fields=list(self._choices.source), mask=pc.invert(is_change)
            )
        return columns


def _fields(rows: pa.StructArray) -> dict[str, pa.Array]:
    """Return the fields by name; each is null where its row is."""
    return {rows.type.field(place).name: rows.field(place) for place in range(rows.type.num_fields)}


def _checked(decoded: Decoded, batch: pa.RecordBatch, part: str) -> Decoded:
    """Return the rows. Raises SparkReadError for the first record that could not be decoded."""
    if decoded.bad:
        first = decoded.bad[0]
        place = {name: batch[name][first.row].as_py() for name in _PLACE}
        raise SparkReadError(
            f"the {part} of a record cannot be decoded: {first.reason}",
            hint=_BROKEN_HINT,
            **place,
            schema_id=first.schema_id,
        )
    return decoded
