"""Raw records of one topic or several to the columns of their changes: what `decode` runs in each task.

In: Arrow batches of topic, partition, offset, key and value; the wanted columns; a function that returns the schema
of an id.
Out: Arrow batches of the columns of `change_schema`, row for row; a record without a value has a null op.
Invariant: every record is decoded under its own schema into the wanted columns; other fields are skipped. A
broken record is an error with its topic, partition and offset; in quarantine, a row with the reason and the bytes.
Must not: use Spark; drop a record; put a value into an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cdcd.columnar.decoder import DecodedRows, RecordDecoder, problem_of
from cdcd.columnar.faults import Fault
from cdcd.errors import SparkReadError
from cdcd.spark.decoding.columns import AvroType
from cdcd.spark.decoding.schemas import value_record
from cdcd.spark.decoding.special import Renames, SpecialTexts

SpecialPolicy = Literal["map", "string", "null", "error"]
ErrorPolicy = Literal["fail", "quarantine"]
PLACE = ("topic", "partition", "offset")
"""The columns that identify a record in Kafka."""
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
_QUARANTINE_HINT = (
    'on_error="quarantine" (of format("cdcd") the option onError) returns such records, with reason and bytes'
)
_BROKEN_HINT = f"find out who wrote the record, and report it if cdcd did; {_QUARANTINE_HINT}"
_SCHEMA_HINT = (
    "after DROP COLUMN, and after a change of a column's type or name, start the query again: its columns are those "
    f"of its start; if the id is unknown, read from the registry that cdcd writes to; {_QUARANTINE_HINT}"
)
LOST = "columns of the query were dropped or renamed while it ran"
SPECIAL_REASON = "a value is outside the type of its column"
SPECIAL_HINT = 'choose special="map" or special="string", which return the text of such a value'


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
        """The wanted images of a row; none without columns."""
        if not self.row:
            return ()
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


def envelope_of(choices: Choices) -> pa.Schema:
    """Return the envelope's fields for the columns of the frame."""
    images = [pa.field(name, pa.struct(list(choices.row))) for name in choices.images]
    also = [one for one in choices.source if one.name not in {each.name for each in _SOURCE}]
    source = pa.struct([*_SOURCE, *also])
    return pa.schema([pa.field("op", pa.string()), *images, ("source", source), ("ts_us", pa.int64())])


class _Problem(NamedTuple):
    """Why a row is broken: `context` has names and numbers, never a value."""

    reason: str
    hint: str
    context: Mapping[str, object]


LostIn = Callable[[pa.Array, pa.Array], Mapping[tuple[str, int], tuple[str, ...]]]


class ChangeReader:
    """Decodes the batches of one task into the columns of `change_schema`.

    `lost_in`: returns the lost columns by topic and id of the records with these topics and ids; default: none.
    """

    def __init__(
        self,
        choices: Choices,
        schema_of: Callable[[int], AvroType],
        lost_in: LostIn = lambda topics, schema_ids: {},
    ) -> None:
        self._choices = choices
        self._lost_in = lost_in
        self._target = change_schema(choices)
        self._values = _decoder(envelope_of(choices), lambda number: _envelope(schema_of(number)))
        self._keys = None if choices.key is None else _decoder(pa.schema(list(choices.key)), schema_of)
        self._renames = Renames(choices.names)
        self._specials = SpecialTexts(choices.row, choices.images)

    def read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch decoded. Raises SparkReadError for a broken record, unless it goes to quarantine."""
        values = self._values.decode(batch["value"])
        keys = None if self._keys is None else self._keys.decode(batch["key"])
        problems = _bad("value", values) | ({} if keys is None else _bad("key", keys))
        problems |= self._lost(batch, values)
        if self._choices.special == "error":
            found = self._specials.first_columns(values.rows.field("source").field("special"))
            problems = {row: _special_problem(name) for row, name in found.items()} | problems
        if problems and self._choices.on_error == "fail":
            raise _failure(problems, batch)
        columns = {name: batch[name] for name in PLACE} | self._changes(_without(values.rows, problems))
        columns |= _quarantined(problems, batch)
        columns["schema_id"] = _schema_ids(values)
        if keys is not None:
            columns["key"] = keys.rows
        return pa.RecordBatch.from_arrays([columns[name] for name in self._target.names], schema=self._target)

    def _lost(self, batch: pa.RecordBatch, values: DecodedRows) -> dict[int, _Problem]:
        found = self._lost_in(batch["topic"], values.schema_ids)
        if not found:
            return {}
        pairs = zip(batch["topic"].to_pylist(), values.schema_ids.to_pylist(), strict=True)
        return {row: _lost_problem(pair[1], found[pair]) for row, pair in enumerate(pairs) if pair in found}

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
        columns |= self._special_columns(held["special"])
        if self._choices.source:
            chosen = [held[one.name] for one in self._choices.source]
            columns["source"] = pa.StructArray.from_arrays(
                chosen, fields=list(self._choices.source), mask=pc.invert(is_change)
            )
        return columns

    def _special_columns(self, special: pa.MapArray) -> dict[str, pa.Array]:
        texts = {}
        if self._choices.special == "string":
            texts = {f"special_{name}": self._specials.texts(special, name) for name in self._choices.images}
        if self._choices.special in ("string", "null"):
            special = self._specials.others(special)
        return {"special": self._renames.special(special)} | texts


def _decoder(wanted: pa.Schema, schema_of: Callable[[int], AvroType]) -> RecordDecoder:
    return RecordDecoder(wanted, schema_of, schema_faults=(SparkReadError,))


def _envelope(schema: AvroType) -> AvroType:
    """Return an envelope. Raises SparkReadError for another record, whose row would have the nulls of a tombstone."""
    value_record(schema)
    return schema


def _fields(rows: pa.StructArray) -> dict[str, pa.Array]:
    """Return the fields by name; each is null in a row that is null."""
    return {rows.type.field(place).name: rows.field(place) for place in range(rows.type.num_fields)}


# --- broken records ------------------------------------------------------------------------------------------


def _bad(part: str, decoded: DecodedRows) -> dict[int, _Problem]:
    """Return by row the reason why this part of a record, key or value, cannot be decoded."""
    return {
        one.row: _Problem(
            f"the {part} of a record cannot be decoded: {one.reason}",
            _SCHEMA_HINT if one.fault is Fault.SCHEMA else _BROKEN_HINT,
            {"schema_id": one.schema_id},
        )
        for one in decoded.bad
    }


def _special_problem(column: str) -> _Problem:
    return _Problem(f"{SPECIAL_REASON} {column}", SPECIAL_HINT, {"column": column})


def _lost_problem(schema_id: int, columns: Sequence[str]) -> _Problem:
    lost = problem_of(SparkReadError(LOST, columns=", ".join(columns), schema_id=schema_id))
    reason = f"the value of a record cannot be decoded: {lost}"
    return _Problem(reason, _SCHEMA_HINT, {"schema_id": schema_id})


def _failure(problems: Mapping[int, _Problem], batch: pa.RecordBatch) -> SparkReadError:
    first = min(problems)
    problem = problems[first]
    place = {name: batch[name][first].as_py() for name in PLACE}
    return SparkReadError(problem.reason, hint=problem.hint, **place, **problem.context)


def _without(rows: pa.StructArray, problems: Mapping[int, _Problem]) -> pa.StructArray:
    """Return the rows with null in place of broken ones."""
    if not problems:
        return rows
    return rows.take(pa.array([None if row in problems else row for row in range(len(rows))], pa.int64()))


def _quarantined(problems: Mapping[int, _Problem], batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the reasons and the bytes of the broken records; null in all other rows."""
    rows = range(batch.num_rows)
    reasons = [problems[row].reason if row in problems else None for row in rows] if problems else None
    places = pa.array([row if row in problems else None for row in rows], pa.int64()) if problems else None
    none = pa.nulls(batch.num_rows, pa.binary())
    return {
        "error": pa.array(reasons, pa.string()) if reasons else pa.nulls(batch.num_rows, pa.string()),
        "raw_key": none if places is None else batch["key"].take(places).cast(pa.binary()),
        "raw_value": none if places is None else batch["value"].take(places).cast(pa.binary()),
    }


def _schema_ids(values: DecodedRows) -> pa.Int64Array:
    if not values.bad:
        return values.schema_ids
    of_bad = {one.row: one.schema_id for one in values.bad}
    return pc.coalesce(
        values.schema_ids, pa.array([of_bad.get(row) for row in range(len(values.rows))], pa.int64())
    )
