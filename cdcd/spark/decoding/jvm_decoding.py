"""What `decode` returns, by expressions of Spark: the JVM decodes with `from_avro`, without a Python worker.

In: raw records, the wanted columns, the schemas of all versions when the query starts.
Out: a frame with the columns, types and values that `ChangeReader` returns.
Invariant: a record that cannot be decoded is an error with its topic, partition and offset, never a null row; so is
one whose schema did not exist at the start.
Must not: use what only PySpark's classic sessions have; read a record or a schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructType

from cdcd.columnar.fallback import HEADER_BYTES
from cdcd.columnar.faults import REASONS, Fault
from cdcd.errors import SparkReadError
from cdcd.redaction import clean
from cdcd.spark.decoding.change_columns import (
    NO_TIMELINE,
    PLACE,
    SPECIAL_HINT,
    SPECIAL_REASON,
    Choices,
    envelope_of,
)
from cdcd.spark.decoding.reader_schema import Reading, Writer, reading_of
from cdcd.spark.decoding.special import keys_of, renamed_keys

_NEW_HINT = (
    "the table was altered, or another program wrote the record: start the query again, which then reads the new "
    'schema; or choose engine="native", which reads it at once'
)
_BROKEN_HINT = (
    'find out who wrote the record, and report it if cdcd did; engine="native" says what is wrong with its bytes, '
    'and with on_error="quarantine" returns such records'
)
_TYPE_HINT = (
    "after a change of a column's type start the query again: its columns have the types of its start"
)
_OPTIONS = {"mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}
_SHOWN = re.compile("<(topic|partition|offset|schema id|column)>")


@dataclass(frozen=True, slots=True)
class _Part:
    """The value or the key of the records: the name of its column, and how it is decoded."""

    name: str
    reading: Reading

    @property
    def record(self) -> Column:
        """The bytes."""
        return F.col(self.name)

    @property
    def header(self) -> Column:
        """The first bytes, which have the id of the schema."""
        return F.col(f"{self.name}_header")

    @property
    def decoded(self) -> Column:
        """The decoded record with the id of its schema."""
        return F.col(f"{self.name}_decoded")


def decode(
    raw: DataFrame, choices: Choices, written: Mapping[str, Mapping[int, str]], schema: StructType
) -> DataFrame:
    """Return the changes in the columns of `schema`. `written`: the texts of the values' and keys' schemas by id."""
    parts = [_Part("value", reading_of(envelope_of(choices), written["value"]))]
    if choices.key is not None:
        parts.append(_Part("key", reading_of(pa.schema(list(choices.key)), written["key"])))
    headers = [F.substring(one.name, 1, HEADER_BYTES).alias(f"{one.name}_header") for one in parts]
    headed = raw.select(*PLACE, "key", "value", *headers)
    read = headed.select(*PLACE, "key", "value", *(_read(one).alias(f"{one.name}_decoded") for one in parts))
    # No filter of the caller is pushed through a generator, where it would decode each record once more.
    checked = F.explode(F.array(F.struct(*(_checked(one, choices) for one in parts)))).alias("change")
    changes = read.select(*PLACE, checked).where(_is_decoded(parts))
    columns = _columns(choices, parts)
    return changes.select(*(columns[one.name].cast(one.dataType).alias(one.name) for one in schema))


def _is_decoded(parts: Sequence[_Part]) -> Column:
    """Return true for all records, by their values, so that Spark decodes them whatever columns are wanted."""
    markers = (F.col(f"change.{one.name}.record.{one.reading.marker}") for one in parts)
    return reduce(and_, (F.coalesce(one, F.lit(True)) for one in markers))


# --- one record ----------------------------------------------------------------------------------------------


def _read(part: _Part) -> Column:
    """Return the id and the decoded record by the schema in its header; null without a record."""
    found = F.when(part.record.isNull(), F.lit(None))
    for one in part.reading.writers:
        header = b"\0" + one.schema_id.to_bytes(HEADER_BYTES - 1, "big")
        found = found.when(part.header == F.lit(header), _by_writer(part, one))
    is_framed = (F.length(part.record) >= HEADER_BYTES) & (F.substring(part.name, 1, 1) == F.lit(b"\0"))
    unknown = _raised("its schema did not exist when the query started", _NEW_HINT, part)
    unframed = _raised(_reason(part, REASONS[Fault.HEADER]), _BROKEN_HINT, part, has_id=False)
    return found.when(is_framed, unknown).otherwise(unframed)


def _by_writer(part: _Part, writer: Writer) -> Column:
    if writer.problem:
        return _raised(_reason(part, writer.problem), _TYPE_HINT, part)
    body = F.substring(part.name, HEADER_BYTES + 1, 2**31 - 1)
    options = _literal_map(_OPTIONS | {"avroSchema": part.reading.reader})
    record = F.call_function("from_avro", body, F.lit(writer.text), options)
    return F.struct(F.lit(writer.schema_id).cast("long").alias("id"), record.alias("record"))


def _checked(part: _Part, choices: Choices) -> Column:
    """Return the decoded record. It is an error if it could not be decoded, or has a value outside its type."""
    marker = F.col(f"{part.name}_decoded.record.{part.reading.marker}")
    reason = _reason(part, "its bytes are not a record of its schema")
    found = F.when(part.decoded.isNotNull() & marker.isNull(), _raised(reason, _BROKEN_HINT, part))
    if part.name == "value" and choices.special == "error" and choices.images:
        shown = {key: name for one in choices.images for key, name in keys_of(choices.row, one).items()}
        keys = F.map_keys("value_decoded.record.source.special")
        first = F.get(F.filter(keys, lambda key: key.isin(*shown)), F.lit(0))
        column = F.try_element_at(_literal_map({key: clean(name) for key, name in shown.items()}), first)
        error = _raised(f"{SPECIAL_REASON} <column>", SPECIAL_HINT, None, column)
        found = found.when(first.isNotNull(), error)
    return found.otherwise(part.decoded).alias(part.name)


def _reason(part: _Part, reason: str) -> str:
    return f"the {part.name} of a record cannot be decoded: {reason}"


def _raised(
    reason: str, hint: str, part: _Part | None, column: Column | None = None, *, has_id: bool = True
) -> Column:
    """Return an expression that raises a SparkReadError's text, with the place of the record."""
    context = {name: f"<{name}>" for name in PLACE}
    shown = {name: F.col(name).cast("string") for name in PLACE}
    if part is not None and has_id:
        context["schema_id"] = "<schema id>"
        shown["schema id"] = F.conv(F.hex(F.substring(part.name, 2, HEADER_BYTES - 1)), 16, 10)
    if column is not None:
        context["column"], shown["column"] = "<column>", column
    pieces = _SHOWN.split(str(SparkReadError(reason, hint=hint, **context)))
    return F.raise_error(
        F.concat(*(shown[piece] if place % 2 else F.lit(piece) for place, piece in enumerate(pieces)))
    )


# --- the columns ---------------------------------------------------------------------------------------------


def _columns(choices: Choices, parts: Sequence[_Part]) -> dict[str, Column]:
    """Return the columns by name. The type of each has PostgreSQL's names of its fields, in the same order."""
    is_change = F.col("change.value").isNotNull()
    columns = {name: F.col(name) for name in PLACE}
    columns |= {name: F.col(f"change.value.record.{name}") for name in ("op", *choices.images)}
    columns |= {name: _source(name) for name in ("commit_lsn", "tx_seq", "lsn")}
    columns["timeline"] = F.when(is_change, F.coalesce(_source("timeline"), F.lit(NO_TIMELINE)))
    columns["snapshot"] = F.when(is_change, F.coalesce(_source("snapshot"), F.lit("false")) != "false")
    columns["ts_us"] = F.timestamp_micros("change.value.record.ts_us")
    columns["unchanged"] = _renamed_items(_source("unchanged"), choices.names)
    columns |= _special_columns(choices)
    if choices.source:
        source = F.struct(*(_source(one.name).alias(one.name) for one in choices.source))
        columns["source"] = F.when(is_change, source)
    columns["schema_id"] = F.col("change.value.id")
    for one in parts[1:]:
        columns["key"] = F.col("change.key.record").dropFields(one.reading.marker)
    return columns


def _source(name: str) -> Column:
    return F.col(f"change.value.record.source.{name}")


def _special_columns(choices: Choices) -> dict[str, Column]:
    special, columns = _source("special"), {}
    keys = {image: list(keys_of(choices.row, image)) for image in choices.images}
    every = [key for of_image in keys.values() for key in of_image]
    if choices.special == "string":
        names = [one.name for one in choices.row]
        for image, of_image in keys.items():
            texts = [
                F.try_element_at(special, F.lit(key)).alias(name)
                for key, name in zip(of_image, names, strict=True)
            ]
            columns[f"special_{image}"] = F.when(_has_one(special, of_image), F.struct(*texts))
    if choices.special in ("string", "null") and every:
        others = F.map_filter(special, lambda key, _: ~key.isin(*every))
        special = F.when(F.size(others) > 0, others)
    return columns | {"special": _renamed_keys(special, renamed_keys(choices.names))}


def _has_one(special: Column, keys: Sequence[str]) -> Column:
    return F.exists(F.map_keys(special), lambda key: key.isin(*keys))


def _renamed_items(items: Column, names: Mapping[str, str]) -> Column:
    if not names:
        return items
    known = _literal_map(names)
    return F.transform(items, lambda one: F.coalesce(F.try_element_at(known, one), one))


def _renamed_keys(special: Column, names: Mapping[str, str]) -> Column:
    if not names:
        return special
    known = _literal_map(names)
    return F.transform_keys(special, lambda key, _: F.coalesce(F.try_element_at(known, key), key))


def _literal_map(texts: Mapping[str, str]) -> Column:
    return F.create_map(*(F.lit(text) for pair in texts.items() for text in pair))
