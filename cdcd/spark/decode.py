"""Raw records of one topic as columns, without a jar: the change, and its position in the order of changes.

In: a DataFrame of `format("cdcd")` (or any with key and value), a connection or a registry's URL, a topic.
Out: columns op, key, before, after, timeline, commit_lsn, tx_seq, snapshot, lsn, unchanged, special, ts_us,
schema_id, and the raw topic, partition, offset.  Works in batches and in streams.
Invariant: every record is decoded under its own schema, then converted to the registry's newest schema of the
topic, by name and by Avro's promotions; an older column that does not fit is an error.
Must not: drop a record: tombstones have a null op.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import from_arrow_schema

from cdcd.errors import ConfigError, SparkReadError
from cdcd.spark.changes import ChangeReader, change_schema
from cdcd.spark.connection import Connection, RegistryAccess, SchemaAccess
from cdcd.spark.schemas import SchemaSet, access_of, expanded, topic_versions, value_record, value_subject


def decode(
    df: DataFrame, *, topic: str, connection: Connection | None = None, registry_url: str | None = None
) -> DataFrame:
    """Return the decoded changes of `topic`. `key` is null for a table without a key.

    `registry_url` is enough for a registry without authentication. Raises SparkReadError if there is no schema for
    the topic. Times of day are microseconds (long).
    """
    access = _access(connection, registry_url)
    versions = topic_versions(access, topic)
    if not versions.values:
        raise SparkReadError(
            "there is no value schema of the topic",
            hint="correct the topic's name; the daemon's registry.subjects has to be topic_name",
            subject=value_subject(topic),
        )
    envelope = json.loads(versions.values[-1].text)
    key = json.loads(versions.keys[-1].text) if versions.keys else None
    schemas = SchemaSet(access, {one.schema_id: one.text for one in (*versions.values, *versions.keys)})
    row = _without_time(value_record(expanded(envelope)))
    key_row = None if key is None else _without_time(expanded(key))
    target = change_schema(row, key_row)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = ChangeReader(target, lambda number: expanded(schemas[number]))
        for batch in batches:
            yield reader.read(batch)

    chosen = df.where(F.col("topic") == topic).select("topic", "partition", "offset", "key", "value")
    return chosen.mapInArrow(run, from_arrow_schema(target))


def _access(connection: Connection | None, registry_url: str | None) -> SchemaAccess:
    if registry_url is not None and connection is None:
        return RegistryAccess(registry_url)
    if connection is None or registry_url is not None:
        raise ConfigError("decode needs a connection or a registry_url", hint="give one of both")
    return access_of(connection)


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
