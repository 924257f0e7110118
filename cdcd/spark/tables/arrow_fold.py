"""Fold the changes of a keyed table in Arrow columns: no Python object for a row.

In: the keys and values of records of one topic in any order, their schemas, the table's shape.
Out: the last row of each key, as an Arrow table with `__special` and `__key`; and the records that need the fold of
`fold`, which builds each row from the one before: those of keys with a column that PostgreSQL did not send, TRUNCATE
events, markers, and records that are errors there.
Invariant: together with the fold of the other records, the result is that of `fold` for all records.
Must not: do I/O, log values, raise for a record: `fold` raises the errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdcd.columnar.decoder import RecordDecoder
from cdcd.columnar.keys import last_places
from cdcd.errors import SparkReadError
from cdcd.spark.decoding.columns import arrow_type
from cdcd.spark.decoding.events import BEGINNING, SNAPSHOT, STREAM, Sequence
from cdcd.spark.decoding.schemas import HEADER_BYTES, Schema, expand
from cdcd.spark.target.large_columns import filtered
from cdcd.spark.target.shape import AT_TYPE, SPECIAL_TYPE, Field, TableShape, arrow_schema

AT_SOURCE = [
    pa.field("timeline", pa.int64()),
    pa.field("commit_lsn", pa.int64()),
    pa.field("tx_seq", pa.int64()),
    pa.field("snapshot", pa.string()),
]
"""The fields of an envelope's `source` that give the sequence."""
_SOURCE = pa.struct(
    [
        *AT_SOURCE,
        pa.field("unchanged", pa.list_(pa.string())),
        pa.field("special", pa.map_(pa.string(), pa.string())),
    ]
)
_TIMES = [pa.field("ts_ms", pa.int64()), pa.field("ts_us", pa.int64())]
AT = ("timeline", "commit_lsn", "phase", "tx_seq")
"""The columns of a sequence, in the order in which they count."""
_AFTER = "after."


@dataclass(frozen=True, slots=True)
class Changes:
    """The decoded changes of rows, one line for each: `key`, `op`, `after`, `special`, `unchanged` and the sequence.

    With times also `commit_us`, the time of the commit (Unix epoch), null if unknown.
    `others`: the numbers of all other records.
    """

    rows: pa.Table
    others: pa.Array
    last: Sequence
    """The last sequence of the changes, `BEGINNING` without any."""

    @property
    def name_columns(self) -> bool:
        """Whether a change has names of columns, in `special` or in `unchanged`."""
        special, unchanged = self.rows["special"], self.rows["unchanged"]
        has_unchanged = pc.any(lacks_values(unchanged)).as_py()
        return special.null_count < len(special) or bool(has_unchanged)


@dataclass(frozen=True, slots=True)
class Latest:
    """`rows`: the last row of each key that exists; `keys`: all keys with a change, also those that were deleted.

    `rest`: the numbers of the records of keys whose rows need values of earlier rows.
    """

    rows: pa.Table
    keys: pa.Array
    rest: pa.Array


def changes_of(
    keys: pa.Array,
    values: pa.Array,
    schemas: Mapping[int, Schema],
    fields: tuple[Field, ...],
    *,
    with_times: bool = False,
) -> Changes | None:
    """Decode records. None if one of them cannot be decoded into these columns.

    A record without a value, a tombstone, is in neither part.
    """
    decoder = _decoder(schemas, fields, with_times=with_times)
    try:
        decoded = decoder.decode(values)
    except SparkReadError:
        return None
    if decoded.bad:
        return None
    envelope = decoded.rows
    source = envelope.field("source")
    op = envelope.field("op")
    rows = pa.table(
        {
            "number": row_numbers(len(values)),
            "key": pc.binary_replace_slice(keys, 0, HEADER_BYTES, b""),
            "op": op,
            "after": envelope.field("after"),
            "special": source.field("special"),
            "unchanged": source.field("unchanged"),
            **places_of(op, source),
        }
    )
    if with_times:
        rows = rows.append_column("commit_us", _commit_us(source))
    is_change = pc.and_(pc.is_valid(keys), _is_row_change(op, envelope.field("after")))
    others = pc.and_(envelope.is_valid(), pc.invert(is_change))
    changes = in_order(filtered(rows, is_change))
    return Changes(changes, rows["number"].filter(others).combine_chunks(), _last_of(changes))


def places_of(op: pa.Array, source: pa.StructArray) -> dict[str, pa.Array]:
    """Return the columns of the sequences of decoded changes, as `sequence_of` has them."""
    is_copied = pc.or_(
        pc.equal(op, "r"), pc.not_equal(pc.fill_null(source.field("snapshot"), "false"), "false")
    )
    return {
        "timeline": pc.fill_null(source.field("timeline"), 0),
        "commit_lsn": source.field("commit_lsn"),
        "phase": pc.if_else(is_copied, SNAPSHOT, STREAM),
        "tx_seq": source.field("tx_seq"),
    }


def _commit_us(source: pa.StructArray) -> pa.Array:
    exact, rounded = source.field("ts_us"), source.field("ts_ms")
    found = pc.coalesce(exact, pc.multiply(rounded, 1000))
    return pc.if_else(pc.equal(found, 0), pa.scalar(None, pa.int64()), found)


def _decoder(schemas: Mapping[int, Schema], fields: tuple[Field, ...], *, with_times: bool) -> RecordDecoder:
    row = pa.struct([(one.avro_name, arrow_type(one.avro)) for one in fields])
    source = pa.struct([*_SOURCE, *_TIMES]) if with_times else _SOURCE
    return decoder_of(pa.schema([("op", pa.string()), ("after", row), ("source", source)]), schemas)


def decoder_of(wanted: pa.Schema, schemas: Mapping[int, Schema]) -> RecordDecoder:
    """Return a decoder of records that have one of these schemas; another one raises SparkReadError."""

    def schema_of(number: int) -> Any:
        if number not in schemas:
            raise SparkReadError("a record has a schema id that the plan lacks", schema_id=number)
        return expand(schemas[number])

    return RecordDecoder(wanted, schema_of)


def _is_row_change(op: pa.Array, after: pa.StructArray) -> pa.Array:
    """Return for each record whether it changes or deletes a row."""
    is_row = pc.and_(pc.is_in(op, pa.array(["c", "u", "r"])), after.is_valid())
    return pc.fill_null(pc.or_(is_row, pc.equal(op, "d")), False)


def row_numbers(count: int) -> pa.Array:
    """Return the numbers from 0 on."""
    return pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count)), 1)


def in_order(rows: pa.Table) -> pa.Table:
    """Return the rows by sequence."""
    varying = [name for name in AT if not pc.equal(pc.min(rows[name]), pc.max(rows[name])).as_py()]
    if not varying:
        return rows
    return rows.take(
        pc.sort_indices(rows.select(varying), sort_keys=[(name, "ascending") for name in varying])
    )


def _last_of(rows: pa.Table) -> Sequence:
    if not rows.num_rows:
        return BEGINNING
    return Sequence(*(rows[name][-1].as_py() for name in AT))


def is_after(rows: pa.Table, bound: Sequence) -> pa.ChunkedArray:
    """Return whether the sequence of each row is greater than `bound`."""
    result: Any = pa.scalar(False)
    for name, value in reversed(list(zip(AT, bound, strict=True))):
        column = rows[name]
        result = pc.or_(pc.greater(column, value), pc.and_(pc.equal(column, value), result))
    return result


def latest(changes: Changes, shape: TableShape) -> Latest | None:
    """Return the last row of each key, of the changes after the watermark and the last TRUNCATE.

    None if PostgreSQL did not send a column of a row whose key changed: the value is in the row of the old key.
    """
    rows = filtered(changes.rows, is_after(changes.rows, max(shape.watermark, shape.emptied_at)))
    rest = pa.array([], pa.int64())
    lacks = lacks_values(rows["unchanged"])
    if pc.any(lacks).as_py():
        if pc.any(pc.equal(rows.filter(lacks)["op"], "c")).as_py():
            return None
        is_rest = pc.is_in(rows["key"], value_set=pc.unique(rows.filter(lacks)["key"]))
        rest = rows.filter(is_rest)["number"].combine_chunks()
        rows = rows.filter(pc.invert(is_rest))
    rows = _last_of_each_key(rows)
    keys = rows["key"].combine_chunks()
    return Latest(shaped(filtered(rows, pc.not_equal(rows["op"], "d")), shape), keys, rest)


def lacks_values(unchanged: Any) -> Any:
    """Return for each change whether PostgreSQL did not send some of its columns."""
    return pc.fill_null(pc.greater(pc.list_value_length(unchanged), 0), False)


def at_of(rows: pa.Table) -> pa.StructArray:
    """Return the sequences of changes."""
    return pa.StructArray.from_arrays(
        [rows[name].combine_chunks().cast(pa.int64()) for name in AT], fields=list(AT_TYPE)
    )


def _last_of_each_key(rows: pa.Table) -> pa.Table:
    """Return the last row of each key; the rows are in order."""
    last = last_places(rows["key"].combine_chunks())
    return rows if len(last) == rows.num_rows else rows.take(pa.array(last))


def shaped(rows: pa.Table, shape: TableShape) -> pa.Table:
    """Return changes that have a row as rows with the columns of the target."""
    after, numbers = rows["after"].combine_chunks(), row_numbers(rows.num_rows)
    foreign = {
        name: pc.invert(is_after(rows, sequence)).combine_chunks()
        for name, sequence in shape.began_after.items()
    }
    columns = []
    for place, one in enumerate(shape.fields):
        column = after.field(place)
        if one.avro_name in foreign:  # the values of another column of this name
            column = column.take(pc.if_else(foreign[one.avro_name], None, numbers))
        columns.append(column)
    specials = _specials(rows["special"].combine_chunks(), shape, foreign)
    return pa.Table.from_arrays([*columns, specials, rows["key"]], schema=arrow_schema(shape.fields))


def _specials(special: pa.MapArray, shape: TableShape, foreign: Mapping[str, pa.BooleanArray]) -> pa.Array:
    """Return for each row the texts of values outside their columns' types; few rows have any."""
    if special.null_count == len(special):
        return pa.nulls(len(special), SPECIAL_TYPE)
    named: dict[str, Field] = {}
    for one in shape.fields:
        for name in (one.avro_name, one.name):
            named.setdefault(name, one)
    texts: list[list[tuple[str, str]] | None] = [None] * len(special)
    for place in pc.indices_nonzero(special.is_valid()).to_pylist():
        held = {}
        for name, text in special[place].as_py():
            column = named.get(name.removeprefix(_AFTER)) if name.startswith(_AFTER) else None
            if column is None or (column.avro_name in foreign and foreign[column.avro_name][place].as_py()):
                continue
            held[column.name] = text
        texts[place] = list(held.items()) or None
    return pa.array(texts, SPECIAL_TYPE)
