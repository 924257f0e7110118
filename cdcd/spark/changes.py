"""Raw records of one topic to the columns of its changes: what `decode` runs in each task.

In: Arrow batches of topic, partition, offset, key and value; a function that returns the schema of an id.
Out: Arrow batches of the columns of `change_schema`, row for row; a record without a value has a null op.
Invariant: every record is decoded under its own schema into the wanted columns. A record that cannot be decoded is
an error with its topic, partition and offset.
Must not: use Spark; drop a record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from cdcd.columnar.decoder import Decoded, RecordDecoder
from cdcd.columnar.faults import BadRecord
from cdcd.errors import SparkReadError
from cdcd.spark.columns import AvroType, arrow_type

_TEXTS = pa.list_(pa.string())
_SPECIAL = pa.map_(pa.string(), pa.string())
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
    pa.field("unchanged", _TEXTS),
    pa.field("special", _SPECIAL),
]
_POSITION = [pa.field(one.name, pa.bool_()) if one.name == "snapshot" else one for one in _SOURCE]
_TIMES = [pa.field("ts_us", pa.timestamp("us", "UTC"))]  # a plain long in the envelope
_ID = [pa.field("schema_id", pa.int64())]
NO_TIMELINE = 0
"""The timeline of a record from a version of cdcd that does not write it."""


def change_schema(row: AvroType, key: AvroType | None) -> pa.Schema:
    """Return the columns of a topic's changes. `row`, `key`: expanded Avro records; None: the table has no key."""
    image = arrow_type(row)
    keys = [] if key is None else [pa.field("key", arrow_type(key))]
    images = [pa.field("before", image), pa.field("after", image)]
    return pa.schema([*_RAW, pa.field("op", pa.string()), *keys, *images, *_POSITION, *_TIMES, *_ID])


class ChangeReader:
    """Decodes the batches of one task into the columns of `change_schema`."""

    def __init__(self, target: pa.Schema, schema_of: Callable[[int], AvroType]) -> None:
        self._target = target
        names = set(target.names)
        images = [target.field(name) for name in ("op", "before", "after")]
        envelope = pa.schema([*images, pa.field("source", pa.struct(_SOURCE)), ("ts_us", pa.int64())])
        self._values = RecordDecoder(envelope, schema_of)
        self._keys = (
            RecordDecoder(pa.schema(list(target.field("key").type)), schema_of) if "key" in names else None
        )

    def read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch decoded. Raises SparkReadError for a record that cannot be decoded."""
        values = _checked(self._values.decode(batch["value"]), batch, "value")
        columns: dict[str, pa.Array] = {name: batch[name] for name in ("topic", "partition", "offset")}
        columns |= _fields(values.rows)
        columns |= _fields(columns.pop("source"))
        is_change = values.rows.is_valid()
        is_snapshot = pc.not_equal(pc.fill_null(columns["snapshot"], "false"), "false")
        columns["snapshot"] = pc.if_else(is_change, is_snapshot, None)
        columns["timeline"] = pc.if_else(is_change, pc.fill_null(columns["timeline"], NO_TIMELINE), None)
        columns["ts_us"] = columns["ts_us"].view(_TIMES[0].type)
        columns["schema_id"] = values.schema_ids
        if self._keys is not None:
            columns["key"] = _checked(self._keys.decode(batch["key"]), batch, "key").rows
        return pa.RecordBatch.from_arrays([columns[name] for name in self._target.names], schema=self._target)


def _fields(rows: pa.StructArray) -> dict[str, pa.Array]:
    """Return the fields by name; each is null where its row is."""
    return {rows.type.field(place).name: rows.field(place) for place in range(rows.type.num_fields)}


def _checked(decoded: Decoded, batch: pa.RecordBatch, part: str) -> Decoded:
    """Return the rows. Raises SparkReadError for the first record that could not be decoded."""
    bad: Sequence[BadRecord] = decoded.bad
    if bad:
        first = bad[0]
        place = {name: batch[name][first.row].as_py() for name in ("topic", "partition", "offset")}
        raise SparkReadError(
            f"the {part} of a record cannot be decoded: {first.reason}", **place, schema_id=first.schema_id
        )
    return decoded
