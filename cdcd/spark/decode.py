"""Raw records of one topic as columns, without a jar: the change, and its position in the order of changes.

In: a DataFrame of `format("cdcd")` (or any with key and value), the registry, a topic.
Out: columns op, key, before, after, timeline, commit_lsn, tx_seq, snapshot, lsn, unchanged, special, ts_us,
schema_id, and the raw topic, partition, offset.  Works in batches and in streams.
Invariant: every record is decoded under its own schema, then converted to the registry's newest schema of the
topic, by name and by Avro's promotions; an older column that does not fit is an error.
Must not: drop a record: tombstones have a null op.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import from_arrow_schema

from cdcd.errors import SparkReadError
from cdcd.spark.columns import arrow_array, continues
from cdcd.spark.schemas import (
    HEADER_BYTES,
    Schema,
    expanded,
    newest_schema,
    parsed_physical,
    schema_by_id,
    schema_id,
    value_record,
)

_TEXTS = pa.list_(pa.string())
_RAW = [
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
]
_PLAIN = [
    pa.field("timeline", pa.int64()),
    pa.field("commit_lsn", pa.int64()),
    pa.field("tx_seq", pa.int64()),
    pa.field("snapshot", pa.bool_()),
    pa.field("lsn", pa.int64()),
    pa.field("unchanged", _TEXTS),
    pa.field("special", pa.map_(pa.string(), pa.string())),
    pa.field("ts_us", pa.timestamp("us", "UTC")),
    pa.field("schema_id", pa.int64()),
]


def decode(df: DataFrame, *, registry_url: str, topic: str) -> DataFrame:
    """Return the decoded changes of `topic`. `key` is null for a table without a key.

    Raises SparkReadError if the registry has no schema for the topic. Times of day are microseconds (long).
    """
    envelope = newest_schema(registry_url, f"{topic}-value")
    if envelope is None:
        raise SparkReadError("the registry has no value schema of the topic", topic=topic)
    key = newest_schema(registry_url, f"{topic}-key")
    row = _without_time(value_record(expanded(envelope)))
    key_row = None if key is None else _without_time(expanded(key))
    target = _output_schema(row, key_row)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = _Reader(registry_url, row, key_row)
        for batch in batches:
            yield reader.read(batch, target)

    chosen = df.where(F.col("topic") == topic).select("topic", "partition", "offset", "key", "value")
    return chosen.mapInArrow(run, from_arrow_schema(target))


def _without_time(avro: Any) -> Any:
    """Return the type with times of day as numbers, because not every Spark version reads TIME."""
    if isinstance(avro, list):
        return [_without_time(one) for one in avro]
    if isinstance(avro, dict):
        return {
            name: _without_time(part)
            for name, part in avro.items()
            if not (name == "logicalType" and part == "time-micros")
        }
    return avro


def _output_schema(row: Schema, key_row: Schema | None) -> pa.Schema:
    image = arrow_array([], row).type
    key_type = pa.struct([]) if key_row is None else arrow_array([], key_row).type
    keys = [] if key_row is None else [pa.field("key", key_type)]
    return pa.schema(
        [
            *_RAW,
            pa.field("op", pa.string()),
            *keys,
            pa.field("before", image),
            pa.field("after", image),
            *_PLAIN,
        ]
    )


class _Reader:
    """Decodes in one task; schemas by id are fetched once per process."""

    def __init__(self, registry_url: str, row: Schema, key_row: Schema | None) -> None:
        self._registry_url = registry_url
        self._row, self._key_row = row, key_row
        self._ready: dict[int, Schema] = {}

    def read(self, batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
        """Return the batch decoded, row for row."""
        keys = [self._decoded(one, self._key_row, envelope=False) for one in batch["key"].to_pylist()]
        values = batch["value"].to_pylist()
        envelopes = [self._decoded(one, self._row, envelope=True) for one in values]
        sources = [None if one is None else one["source"] for one in envelopes]
        columns: dict[str, pa.Array] = {name: batch[name] for name in ("topic", "partition", "offset")}
        for image in ("before", "after"):
            columns[image] = arrow_array([one and one[image] for one in envelopes], self._row)
        if self._key_row is not None:
            columns["key"] = arrow_array(keys, self._key_row)
        plain: dict[str, list[Any]] = {
            "op": [one and one["op"] for one in envelopes],
            "ts_us": [one and one["ts_us"] for one in envelopes],
            "snapshot": [one and one["snapshot"] not in (None, "false") for one in sources],
            "schema_id": [None if one is None else schema_id(one) for one in values],
        }
        for name in ("commit_lsn", "tx_seq", "lsn", "unchanged"):
            plain[name] = [one and one[name] for one in sources]
        plain["timeline"] = [one and one.get("timeline", 0) for one in sources]
        plain["special"] = [list((one["special"] or {}).items()) if one else None for one in sources]
        for name, column in plain.items():
            columns[name] = pa.array(column, target.field(name).type)
        return pa.RecordBatch.from_arrays([columns[name] for name in target.names], schema=target)

    def _decoded(
        self, framed: bytes | None, wanted: Schema | None, *, envelope: bool
    ) -> dict[str, Any] | None:
        if framed is None or wanted is None:
            return None
        number = schema_id(framed)
        if number not in self._ready:
            schema = schema_by_id(self._registry_url, number)
            written = _without_time(expanded(schema))
            _check_follows(value_record(written) if envelope else written, wanted, number)
            self._ready[number] = parsed_physical(schema)
        body = io.BytesIO(framed)
        body.seek(HEADER_BYTES)
        decoded: dict[str, Any] = fastavro.schemaless_reader(body, self._ready[number])
        return decoded


def _check_follows(written: Schema, wanted: Schema, number: int) -> None:
    if not (continues(written, wanted) or continues(wanted, written)):
        raise SparkReadError(
            "the types of a record's columns cannot be converted to the newest schema", schema_id=number
        )
