"""The schemas for Spark's `from_avro`: a reader schema of the wanted columns, and the schemas of the writers.

In: the wanted Arrow fields, as `columnar` has them; the schemas of the records by id.
Out: an Avro schema as JSON text; for each writer schema, why its records cannot be decoded into the columns.
Invariant: Avro's resolution of a writer schema without a problem gives what `columnar.program` gives: a field that
the writer does not have is null, one that is not wanted is skipped, numbers are widened. `columnar.program` decides
what is a problem, because Avro also converts texts to bytes and decimals to decimals of another scale.
Must not: use Spark, read records.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cdcd.columnar.decoder import problem_of
from cdcd.columnar.layout import columns_of
from cdcd.columnar.program import avro_name, compile_program
from cdcd.errors import SparkReadError
from cdcd.spark.decoding.columns import AvroType
from cdcd.spark.decoding.schemas import expanded

_MARKER = "is_decoded"
_PLAIN: dict[pa.DataType, AvroType] = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.timestamp("us", "UTC"): {"type": "long", "logicalType": "timestamp-micros"},
    pa.timestamp("us"): {"type": "long", "logicalType": "local-timestamp-micros"},
}


@dataclass(frozen=True, slots=True)
class Writer:
    """A schema that records were written under. `problem`: why they cannot be decoded, empty if they can."""

    schema_id: int
    text: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """The schemas for decoding. `marker`: a field of the reader schema that is true in each decoded record.

    It has a default, and no writer has it, so it is null only where `from_avro` could not decode.
    """

    writers: tuple[Writer, ...]
    reader: str
    marker: str


def reading_of(wanted: pa.Schema, texts: Mapping[int, str]) -> Reading:
    """Return how records of these schemas become the wanted fields."""
    record = pa.struct(list(wanted))
    columns = columns_of(record)
    taken = {avro_name(one) for one in wanted}
    writers = []
    for number, text in texts.items():
        problem = ""
        try:
            schema = expanded(text)
            compile_program(schema, columns)
        except SparkReadError as error:
            problem = problem_of(error)
        else:
            taken |= {one["name"] for one in schema["fields"]}
        writers.append(Writer(number, text, problem))
    marker = _unused({name.lower() for name in taken})
    reader = _record(record, itertools.count())
    reader["fields"].append({"name": marker, "type": "boolean", "default": True})
    return Reading(tuple(writers), json.dumps(reader), marker)


def _unused(taken: set[str]) -> str:
    """Return a name that no field has: Spark may not distinguish cases."""
    return next(name for n in itertools.count() if (name := _MARKER + "_" * n) not in taken)


def _record(struct: pa.StructType, numbers: Iterator[int]) -> dict[str, Any]:
    """Return a record with a name of its own: Avro matches records of unions by their fields, too."""
    name = f"Wanted{next(numbers)}"
    fields = [
        {"name": avro_name(one), "type": ["null", _type(one.type, numbers)], "default": None}
        for one in struct
    ]
    return {"type": "record", "name": name, "namespace": "cdcd.spark", "fields": fields}


def _type(arrow: pa.DataType, numbers: Iterator[int]) -> AvroType:
    if pa.types.is_struct(arrow):
        return _record(arrow, numbers)
    if pa.types.is_list(arrow):
        return {"type": "array", "items": ["null", _type(arrow.value_type, numbers)]}
    if pa.types.is_map(arrow):
        return {"type": "map", "values": ["null", _type(arrow.item_type, numbers)]}
    if pa.types.is_decimal(arrow):
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": arrow.precision,
            "scale": arrow.scale,
        }
    return _PLAIN[arrow]
