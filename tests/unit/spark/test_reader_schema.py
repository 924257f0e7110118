"""The reader schema for `from_avro`: its resolution by fastavro returns what `ChangeReader` returns.

Spark's own resolution is Avro's in Java; `tests/spark/engines_compared.py` compares it on real records.
"""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa

from cdcd.spark.decoding.change_columns import envelope_of
from cdcd.spark.decoding.reader_schema import reading_of
from cdcd.spark.decoding.schemas import HEADER_BYTES
from tests.spark.events import column
from tests.unit.spark.test_changes import DATE, ID, Topic, choices, read

PLACE = {"type": "record", "name": "Place", "fields": [column("street", "string"), column("number", "int")]}


def _resolved(value: bytes, topic: Topic, reader: str) -> dict[str, Any]:
    body = io.BytesIO(value[HEADER_BYTES:])
    writer = fastavro.parse_schema(topic.schema)
    wanted = fastavro.parse_schema(_with_aliases(json.loads(reader)))
    found: Any = fastavro.schemaless_reader(body, writer, wanted)
    return dict(found)


def _with_aliases(avro: Any) -> Any:
    """Return the schema with the writers' names: fastavro compares the names of records, Avro's Java their fields."""
    if isinstance(avro, dict):
        named = {"aliases": ["Envelope", "Value", "Source", "Place"]} if avro.get("type") == "record" else {}
        parts = {key: part if key == "default" else _with_aliases(part) for key, part in avro.items()}
        return parts | named
    return [_with_aliases(one) for one in avro] if isinstance(avro, list) else avro


def test_older_records_are_resolved_to_the_columns() -> None:
    """Widened numbers, fields that one of both does not have, nested records, an array and a map."""
    old = Topic([ID, column("n", "int"), column("gone", "string"), column("place", PLACE)])
    place = {**PLACE, "fields": [*PLACE["fields"], column("since", DATE)]}
    items = [
        column("tags", {"type": "map", "values": ["null", "string"]}),
        column("list", {"type": "array", "items": ["null", "long"]}),
        column("price", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}),
    ]
    new = Topic([ID, column("n", "double"), column("place", place), *items], number=2)
    value = old.value("c", after={"id": 1, "n": 5, "gone": "x", "place": {"street": "a", "number": 3}})
    wanted = choices(new)
    reading = reading_of(envelope_of(wanted), {1: json.dumps(old.schema), 2: json.dumps(new.schema)})
    assert [one.problem for one in reading.writers] == ["", ""]
    found = _resolved(value, old, reading.reader)
    (native,) = read([value], new, old, row=wanted.row)
    assert found[reading.marker] is True
    assert found["after"] == native["after"]
    assert found["after"]["place"] == {"street": "a", "number": 3, "since": None}
    names = {one["name"] for one in json.loads(reading.reader)["fields"]}
    assert names == {"op", "after", "source", "ts_us", reading.marker}


def test_columns_that_are_not_wanted_are_not_in_the_schema() -> None:
    topic = Topic([ID, column("note", "string")])
    wanted = choices(topic, row=choices(topic).row[:1], before=True)
    reading = reading_of(envelope_of(wanted), {1: json.dumps(topic.schema)})
    assert '"note"' not in reading.reader
    found = _resolved(topic.value("u", before={"id": 1}, after={"id": 2, "note": "x"}), topic, reading.reader)
    assert (found["before"], found["after"]) == ({"id": 1}, {"id": 2})


def test_a_schema_that_avro_would_convert_otherwise_is_a_problem() -> None:
    """Avro reads texts as bytes, and the digits of a decimal under any scale."""
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 12}
    new = Topic([ID, column("n", "bytes"), column("price", {**decimal, "scale": 2})])
    olds = [
        Topic([ID, column("n", "string")]),
        Topic([ID, column("price", {**decimal, "scale": 3})]),
        Topic([ID, column("price", {**decimal, "precision": 10, "scale": 2})]),
    ]
    texts = dict(enumerate(json.dumps(one.schema) for one in olds))
    reading = reading_of(envelope_of(choices(new)), texts)
    assert [one.problem.partition(" (")[2] for one in reading.writers] == [
        "column after.n, type string)",
        "column after.price, type bytes)",
        "",
    ]


def test_the_marker_has_a_name_that_no_writer_has() -> None:
    fields = [pa.field("IS_decoded", pa.int64())]
    record = {"type": "record", "name": "Key", "fields": [{"name": "is_decoded_", "type": "long"}]}
    reading = reading_of(pa.schema(fields), {1: json.dumps(record)})
    assert reading.marker == "is_decoded__"
