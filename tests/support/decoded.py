"""Rows of records under given schemas, as a query decodes them that knew some of the schemas at its start."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from cdcd.columnar.record_schema import RAW_SCHEMA
from cdcd.spark.clients.connection import GivenAccess
from cdcd.spark.decoding.decode import decoding_of
from cdcd.spark.decoding.schemas import value_subject
from tests.spark.events import column, envelope_schema, frame

TOPIC = "shop.public.t"
ID = column("id", "long", required=True)
_SOURCE = {
    "name": "shop",
    "version": "1",
    "connector": "postgresql",
    "ts_ms": 0,
    "db": "d",
    "schema": "public",
    "table": "t",
    "commit_lsn": 10,
    "tx_seq": 1,
    "unchanged": [],
}


def schema(*columns: dict[str, Any]) -> Any:
    """Return the schema of the values of a table with an id and these columns."""
    return envelope_schema(TOPIC, [ID, *columns])


def record(topic: str, number: int, schema: Any, **row: Any) -> dict[str, Any]:
    """Return the raw record of an insert."""
    envelope = {"before": None, "after": {"id": 1} | row, "source": _SOURCE, "op": "c"}
    place = {"topic": topic, "partition": 0, "offset": 0, "key": None}
    return place | {"value": frame(number, schema, envelope)}


def batch_of(*records: dict[str, Any]) -> pa.RecordBatch:
    """Return a batch of raw records."""
    return pa.RecordBatch.from_pylist(list(records), schema=RAW_SCHEMA)


def given(schemas: Mapping[int, Any], known: Mapping[str, Sequence[int]]) -> GivenAccess:
    """Return the access to schemas by id; each topic has the `known` versions."""
    texts = tuple((number, json.dumps(one)) for number, one in schemas.items())
    return GivenAccess(texts, tuple((value_subject(topic), tuple(ids)) for topic, ids in known.items()))


def rows(
    records: Sequence[dict[str, Any]],
    schemas: Mapping[int, Any],
    known: Mapping[str, Sequence[int]],
    **more: Any,
) -> list[dict[str, Any]]:
    """Return the rows that a query decodes which knew these versions of each topic at its start."""
    decoding = decoding_of(given(schemas, known), list(known), **more)
    return [row for batch in decoding.decode(iter([batch_of(*records)])) for row in batch.to_pylist()]
