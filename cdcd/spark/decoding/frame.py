"""The columns of `decode`'s frame: from the schemas of one topic or of several.

In: expanded Avro records of rows and keys by topic, and the caller's choices.  Out: Arrow fields.
Invariant: a field has PostgreSQL's name of the column; its metadata has the Avro name, if that is another one, and
the properties `pg.*` that the schema has, as JSON. A column of several topics has one type, which holds the values of
all without a loss; it has only the properties that are the same in all.
Must not: do I/O, use Spark; add a property that no schema has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa

from cdcd.columnar.layout import ALSO_NUMBERS, ONLY_TIMES, TIMES
from cdcd.columnar.program import AVRO_NAME
from cdcd.errors import SparkReadError
from cdcd.spark.decoding.columns import AvroType, arrow_type, without_null

PROPERTIES = b"cdcd.properties"
"""The metadata of an Arrow field: the properties of its column, as JSON."""
NOT_NULL = "pg.not_null"
_TIME = "cdcd.time"
_SEPARATELY = "decode the tables separately, or leave the column out: columns=[...]"
_CASES = (
    'set spark.sql.caseSensitive to true in the session, and for format("cdcd") the option caseSensitive, too; or '
    "leave one of the columns out: columns=[...], or the option columns; some table formats refuse such names, so "
    "rename one of the columns before you write"
)
_WIDER: dict[frozenset[pa.DataType], pa.DataType] = {
    frozenset({pa.int32(), pa.int64()}): pa.int64(),
    frozenset({pa.int32(), pa.float64()}): pa.float64(),
    frozenset({pa.float32(), pa.float64()}): pa.float64(),
}


@dataclass(frozen=True, slots=True)
class TopicFields:
    """A topic's fields of the row, of the key (None: no key) and of `source`."""

    topic: str
    row: tuple[pa.Field, ...]
    key: tuple[pa.Field, ...] | None
    source: tuple[pa.Field, ...]


def column_name(one: AvroType) -> str:
    """Return PostgreSQL's name of a column, from its Avro field."""
    return str(one.get("pg.name", one["name"]))


def fields_of(record: AvroType) -> tuple[pa.Field, ...]:
    """Return the fields of an expanded Avro record."""
    return tuple(arrow_type(_without_time(record), _field))


def _field(one: AvroType, arrow: pa.DataType) -> pa.Field:
    name, metadata = column_name(one), _times(one["type"])
    if name != one["name"]:
        metadata[AVRO_NAME] = one["name"].encode()
    properties = {key: value for key, value in one.items() if key.startswith("pg.") and key != "pg.name"}
    if "pg.name" in one and not isinstance(one["type"], list):
        properties[NOT_NULL] = True
    return pa.field(name, arrow, metadata=metadata | _stored(properties))


def _stored(properties: Mapping[str, Any]) -> dict[bytes, bytes]:
    return {PROPERTIES: json.dumps(properties).encode()} if properties else {}


def properties_of(field: pa.Field) -> dict[str, Any]:
    """Return the properties of a field's column."""
    found: dict[str, Any] = json.loads((field.metadata or {}).get(PROPERTIES, b"{}"))
    return found


def _without_time(avro: Any) -> Any:
    """Return the type with times of day as marked numbers, because not every Spark version reads TIME."""
    if isinstance(avro, list):
        return [_without_time(one) for one in avro]
    if isinstance(avro, dict):
        return {
            _TIME if name == "logicalType" and part == "time-micros" else name: _without_time(part)
            for name, part in avro.items()
        }
    return avro


def _times(avro: AvroType) -> dict[bytes, bytes]:
    """Return the metadata of a field whose values, or their items, are times of day."""
    avro = without_null(avro)
    while isinstance(avro, dict) and avro["type"] != "record":
        if _TIME in avro:
            return {TIMES: ONLY_TIMES}
        avro = without_null(avro.get("items") or avro.get("values") or avro["type"])
    return {}


def source_fields(envelope: AvroType, names: Iterable[str]) -> tuple[pa.Field, ...]:
    """Return these fields of an expanded envelope's `source`. Raises SparkReadError for an unknown name."""
    record = next(one["type"] for one in envelope["fields"] if one["name"] == "source")
    return _chosen(fields_of(without_null(record)), names, "source")


def choose_columns(topics: Sequence[TopicFields], names: Iterable[str]) -> list[TopicFields]:
    """Return the topics with these columns of the row; each topic has those that it has.

    Raises SparkReadError for a name that no topic has.
    """
    names = list(names)
    _chosen([field for one in topics for field in one.row], names, "columns")
    return [
        TopicFields(one.topic, tuple(f for f in one.row if f.name in names), one.key, one.source)
        for one in topics
    ]


def _chosen(fields: Sequence[pa.Field], names: Iterable[str], parameter: str) -> tuple[pa.Field, ...]:
    by_name = {field.name: field for field in fields}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise SparkReadError(
            f"{parameter} has a name that the newest schema does not have",
            hint=f"correct the name; the columns are {', '.join(by_name)}",
            name=unknown[0],
        )
    return tuple(by_name[name] for name in names)


# --- several topics ------------------------------------------------------------------------------------------


def unite_fields(fields: Sequence[tuple[str, Sequence[pa.Field]]], part: str) -> tuple[pa.Field, ...]:
    """Return the fields of several topics by name, in the order of their first occurrence.

    `fields`: each topic's. Raises SparkReadError if no type holds the values of all topics, with two of them.
    """
    found: dict[str, list[tuple[str, pa.Field]]] = {}
    for topic, each in fields:
        for field in each:
            found.setdefault(field.name, []).append((topic, field))
    whole = len(fields)
    return tuple(_united(f"{part}.{name}", held, len(held) == whole) for name, held in found.items())


def _united(path: str, held: Sequence[tuple[str, pa.Field]], is_everywhere: bool) -> pa.Field:
    first_topic, result = held[0]
    for topic, field in held[1:]:
        both = _merged(result, field)
        if both is None:
            raise SparkReadError(
                "two tables have a column of one name and of incompatible types",
                hint=_SEPARATELY,
                column=path,
                topic=first_topic,
                type=str(result.type),
                other_topic=topic,
                other_type=str(field.type),
            )
        result = both
    return result if is_everywhere else _without_not_null(result)


def _merged(one: pa.Field, other: pa.Field) -> pa.Field | None:
    type_ = _wider(one.type, other.type)
    if type_ is None:
        return None
    theirs = properties_of(other)
    same = {key: value for key, value in properties_of(one).items() if theirs.get(key) == value}
    others = {key: value for key, value in (one.metadata or {}).items() if key not in (PROPERTIES, TIMES)}
    return pa.field(one.name, type_, metadata=others | _times_of_both(one, other) | _stored(same))


def _times_of_both(one: pa.Field, other: pa.Field) -> dict[bytes, bytes]:
    held = {(field.metadata or {}).get(TIMES, b"") for field in (one, other)}
    if held == {b""}:
        return {}
    return {TIMES: held.pop() if len(held) == 1 else ALSO_NUMBERS}


def _without_not_null(field: pa.Field) -> pa.Field:
    properties = properties_of(field)
    if NOT_NULL not in properties:
        return field
    others = {key: value for key, value in field.metadata.items() if key != PROPERTIES}
    del properties[NOT_NULL]
    return field.with_metadata(others | _stored(properties))


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both without a loss, None if there is none."""
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return _wider_struct(one, other)
    if pa.types.is_list(one) and pa.types.is_list(other):
        item = _wider(one.value_type, other.value_type)
        return None if item is None else pa.list_(item)
    if pa.types.is_map(one) and pa.types.is_map(other):
        item = _wider(one.item_type, other.item_type)
        return None if item is None else pa.map_(pa.string(), item)
    if pa.types.is_decimal(one) and pa.types.is_decimal(other) and one.scale == other.scale:
        return pa.decimal128(max(one.precision, other.precision), one.scale)
    return one if one == other else _WIDER.get(frozenset({one, other}))


def _wider_struct(one: pa.StructType, other: pa.StructType) -> pa.DataType | None:
    fields = {field.name: field for field in one}
    for field in other:
        both = _merged(fields[field.name], field) if field.name in fields else _without_not_null(field)
        if both is None:
            return None
        fields[field.name] = both
    return pa.struct(list(fields.values()))


# --- names ---------------------------------------------------------------------------------------------------


def check_cases(fields: Iterable[pa.Field], path: str) -> None:
    """Raise SparkReadError if two names of one struct differ only in case: Spark does not distinguish them."""
    seen: dict[str, str] = {}
    for field in fields:
        other = seen.setdefault(field.name.lower(), field.name)
        if other != field.name:
            raise SparkReadError(
                "two columns have names that differ only in case, which Spark does not distinguish",
                hint=_CASES,
                columns=f"{path}.{other}, {path}.{field.name}",
            )
        _check_inside(field.type, f"{path}.{field.name}")


def _check_inside(type_: pa.DataType, path: str) -> None:
    if pa.types.is_struct(type_):
        check_cases(list(type_), path)
    elif pa.types.is_list(type_):
        _check_inside(type_.value_type, path)
    elif pa.types.is_map(type_):
        _check_inside(type_.item_type, path)


def renamed_columns(records: Iterable[AvroType]) -> dict[str, str]:
    """Return the columns of these records whose Avro name is not PostgreSQL's: Avro name -> PostgreSQL's name."""
    pairs = ((one["name"], column_name(one)) for record in records for one in record["fields"])
    return reduce(lambda names, pair: names if pair[0] == pair[1] else names | {pair[0]: pair[1]}, pairs, {})
