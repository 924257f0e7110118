"""Plan a batch: determine the columns of each table, and the TRUNCATE that empties it.

In: a summary of the batch (schema ids, the last record under each, records without a key) and the table's entry.
Out: a `TablePlan` per topic, with all input of a fold.
Invariant: a column continues only if every later schema has it (`same_columns`), the newest with a type that Avro's
promotions allow. Values of another type than the newest one are an error, if no TRUNCATE follows them, unless the
policies retain them in a column of their own.
Must not: do I/O except fetching schemas by id; use Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa

from cdcd.errors import MirrorInconsistent
from cdcd.schema.attnums import ATTNUM
from cdcd.spark.decoding.columns import AvroType, arrow_type, continues, has_same_bytes, without_null
from cdcd.spark.decoding.events import (
    BEGINNING,
    SNAPSHOT,
    Event,
    Sequence,
    check_gap,
    read_envelope,
    read_events,
    sequence_of,
)
from cdcd.spark.decoding.schemas import Schema, expand, parsed_physical, schema_id, value_record
from cdcd.spark.tables.retained_columns import (
    DEFAULT_POLICIES,
    ColumnPolicies,
    ColumnTypeChanged,
    Continued,
    without_dropped,
)
from cdcd.spark.tables.same_columns import (
    as_current,
    continued_columns,
    fields_of,
    of_newest_table,
)
from cdcd.spark.target.shape import KEY, MISSING, SPECIAL, Field, TableShape
from cdcd.spark.target.versions import BucketFile, TableEntry

SchemaSource = Callable[[int], Schema]


@dataclass(frozen=True, slots=True)
class Look:
    """The summary of one topic's records in a batch."""

    topic: str
    rows: int = 0
    keyed_rows: int = 0
    last_values: tuple[bytes, ...] = ()
    """The last value of each partition under each schema id."""
    keyless_values: tuple[bytes, ...] = ()
    """The TRUNCATE events and markers of gaps; of other changes the last one. Empty if the plan needs none."""
    size_bytes: int = 0
    """Of the records' keys and values."""


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The complete input of a task that folds one table, so that the task needs no registry and no commit log."""

    shape: TableShape
    schemas: dict[int, Schema]
    files: tuple[BucketFile, ...] = ()
    accepts_gaps: bool = False
    incomplete: dict[int, BucketFile] = field(default_factory=dict)
    deltas: tuple[BucketFile, ...] = ()
    parks: bool = False
    """Whether an error of the table's records is a result, with which the table is parked."""
    is_open: bool = False
    """Whether the complete rows go to a table of an open format, to which the driver commits them."""
    has_history: bool = False
    """Whether each change of the table becomes a line of its history."""
    former_until: Sequence = BEGINNING
    """Changes up to this position are of a former table of the same name."""
    truncates: tuple[Sequence, ...] = ()
    """The positions of the TRUNCATEs of a keyed table, whose records are in one bucket only."""
    again: tuple[Sequence, ...] = ()
    """Those of `truncates` that are of a copy which began before the copy before it was complete (`BEGUN_ANEW`)."""
    lost_after: Sequence | None = None
    """The last applied change, if changes after it are not known: the table was parked, or they are inconsistent, and
    a TRUNCATE makes them irrelevant."""
    known_us: int | None = None
    """The time of the last commit (Unix epoch) as of which the table is before the batch, None if unknown."""

    def events_in(self, records: pa.Table) -> list[Event]:
        """Return the events of records with key and value."""
        pairs = zip(records["key"].to_pylist(), records["value"].to_pylist(), strict=True)
        return list(read_events(pairs, self.schemas))


def plan_table(
    look: Look,
    entry: TableEntry,
    schema_by_id: SchemaSource,
    *,
    accepts_gaps: bool = False,
    needs_all: bool = False,
    policies: ColumnPolicies = DEFAULT_POLICIES,
) -> tuple[TablePlan, TableEntry]:
    """Return the plan, and the table's entry with its current columns. Raises GapInTopic for a gap not accepted.

    `needs_all`: in a keyed table the changes before a TRUNCATE become lines of the history, too.
    """
    schemas = {
        number: schema_by_id(number) for number in sorted({schema_id(one) for one in look.last_values})
    }
    last = last_changes(look.last_values, schemas)
    order = sorted((one for one in last if last[one] > entry.applied), key=lambda number: last[number])
    entry, order, left = of_newest_table(without_dropped(entry, policies), order, schemas, last)
    keyed = look.keyed_rows > 0 or bool(entry.keyed)
    if entry.keyed is False and look.keyed_rows:
        raise MirrorInconsistent(
            "a table without a key now has one, or a record that cdcd did not write: mirror it again",
            topic=look.topic,
        )
    columns = continued_columns(entry, order, schemas, policies, is_keyed=keyed)
    held, written = entry, schemas
    entry = with_fields(entry, order, schemas, columns)
    schemas, renames = as_current(schemas, columns)
    without_key = list(read_events(((None, value) for value in look.keyless_values), schemas))
    truncates = [] if keyed and needs_all else [one.sequence for one in without_key if one.op == "t"]
    later = [number for number in order if last[number] > max(truncates, default=BEGINNING)]
    _refuse_other_types(look.topic, later, written, columns)
    keyless = without_key if keyed else []
    emptied = _emptied_at(look.topic, keyless, entry.applied, left, accepts_gaps)
    if keyed:
        has_rows = bool(held.files or held.deltas or held.incomplete) and emptied <= held.applied
        remaining = [one for one in order if last[one] > emptied]
        _check_keys(look.topic, columns, written, remaining, has_rows=has_rows)
    comes_back = policies.dropped == "keep"
    began = _began_after(last, schemas, entry.fields, comes_back=comes_back)
    lacks = {number: _lacking(columns, number, comes_back=comes_back) for number in order}
    shape = TableShape(look.topic, keyed, entry.fields, entry.applied, emptied, began, renames, lacks)
    incomplete = {one.bucket: one for one in entry.incomplete}
    plan = TablePlan(shape, schemas, entry.files, accepts_gaps, incomplete, entry.deltas, former_until=left)
    if keyed:
        plan = _with_ends(plan, keyless, max(entry.applied, left), is_copying=entry.copying)
        is_copied = needs_all and any(one.phase == SNAPSHOT for one in plan.truncates)
        entry = replace(entry, copying=entry.copying or is_copied)
    return plan, replace(entry, keyed=entry.keyed if not look.keyed_rows else True)


def last_changes(values: tuple[bytes, ...], schemas: Mapping[int, Schema]) -> dict[int, Sequence]:
    """Return the position of the last change under each schema id."""
    last: dict[int, Sequence] = {}
    ready = {number: parsed_physical(schema) for number, schema in schemas.items()}
    for value in values:
        number, envelope = read_envelope(value, ready)
        sequence = sequence_of(envelope["op"], envelope["source"])
        last[number] = max(sequence, last.get(number, BEGINNING))
    return last


def with_fields(
    entry: TableEntry, order: list[int], schemas: Mapping[int, Schema], columns: list[Continued]
) -> TableEntry:
    """Return the entry with the columns of the newest schema; new and re-added columns get new numbers.

    `order`: the schema ids of the batch by the last change under each, without those that change nothing;
    `columns`: those of the newest, and the retained ones.
    """
    if not order or (order[-1] == entry.schema_id and len(order) == 1):
        return entry
    newest, first = order[-1], entry.next_number
    new = sorted((one for one in columns if one.old is None), key=lambda one: (one.since, one.attnum))
    numbers = {id(one): number for number, one in enumerate(new, first)}
    fields = [_field_of(one, numbers.get(id(one), 0), entry, order) for one in columns]
    _check_names(entry.topic, fields)
    record = value_record(expand(schemas[newest]))
    return replace(
        entry,
        schema_id=newest,
        value_schema=record,
        fields=tuple(fields),
        next_number=first + len(new),
    )


def _field_of(column: Continued, number: int, entry: TableEntry, order: list[int]) -> Field:
    """Return the field of a column. `number`: that of a new one. Raises ColumnTypeChanged."""
    # A schema that lacks the column is perhaps from before, also if its last change is later.
    is_later = bool(entry.fields) or len(column.names) < len(order)
    old = column.old or Field(number, "", "", column.avro, is_later)
    if not continues(old.avro, column.avro):
        raise _other_type(entry.topic, column.avro_name)
    return replace(
        old,
        name=column.name,
        avro_name=column.avro_name,
        avro=column.avro,
        attnum=column.attnum,
        is_carried=column.is_carried,
        retained=column.retained,
    )


def _lacking(columns: Iterable[Continued], number: int, *, comes_back: bool) -> tuple[str, ...]:
    """Return the Avro names of columns that records with a schema id do not have, and rows before them may have."""
    return tuple(one.avro_name for one in columns if (one.retained or comes_back) and number not in one.names)


def _check_keys(
    topic: str,
    columns: Iterable[Continued],
    schemas: Mapping[int, Schema],
    order: list[int],
    *,
    has_rows: bool,
) -> None:
    """Raise MirrorInconsistent if the same key has other bytes under a later schema: rows would be there twice.

    `order`: the schemas whose rows remain; `has_rows`: the table's own remain, too. A value's schema shows which
    columns are in the key, because only these cannot be null; if it has none of these, each one may be in the key.
    """
    fields = {number: fields_of(schemas[number]) for number in order}
    types = {}
    for column in (one for one in columns if not one.retained):
        old = [] if column.old is None or not has_rows else [column.old.avro]
        new = [fields[one][column.names[one]]["type"] for one in order if one in column.names]
        types[column.avro_name] = [*old, *new]
    required = {name: one for name, one in types.items() if one and not isinstance(one[-1], list)}
    for name, found in (required or types).items():
        if not all(has_same_bytes(old, new) for old, new in pairwise(map(without_null, found))):
            raise MirrorInconsistent(
                "the type of a column of the key has changed, so that the same key has other bytes",
                topic=topic,
                column=name,
            )


def _refuse_other_types(
    topic: str, order: list[int], schemas: Mapping[int, Schema], columns: list[Continued]
) -> None:
    """Raise MirrorInconsistent if a column has values that are none of its newest type: they would become null.

    `order`: the schemas of which the mirror needs the values, the newest one last.
    """
    written = {number: fields_of(schemas[number]) for number in order}
    for column in columns:
        types = [written[number][column.names[number]]["type"] for number in order if number in column.names]
        if not all(_is_same(one, types[-1]) for one in types):
            raise _other_type(topic, column.avro_name)


def _other_type(topic: str, column: str) -> ColumnTypeChanged:
    return ColumnTypeChanged(
        "a column's type has changed: mirror the table again", topic=topic, column=column
    )


def _check_names(topic: str, fields: list[Field]) -> None:
    names = [one.name for one in fields] + [KEY, SPECIAL, MISSING]
    if len(set(names)) < len(names):
        raise MirrorInconsistent("two columns have the same name, or one has a reserved name", topic=topic)


def _began_after(
    last: Mapping[int, Sequence],
    schemas: Mapping[int, Schema],
    fields: tuple[Field, ...],
    *,
    comes_back: bool,
) -> dict[str, Sequence]:
    """Return for each column that is new in this batch the last change under a schema without it.

    Earlier values under the same name, even under the current schema, belong to another column.
    `comes_back`: a column that a schema lacks is the same one afterwards, by its attnum.
    """
    began: dict[str, Sequence] = {}
    all_written = {number: fields_of(schemas[number]) for number in last}
    for one in fields:
        arrow_type(one.avro)  # raises for a column without an Arrow type here, not in a task
        if one.retained:  # no other column has its Avro name
            continue
        for number, sequence in last.items():
            written = all_written[number].get(one.avro_name)
            if written is None and comes_back and _is_left_out(one, number, all_written):
                continue
            if written is None or not _is_same(written["type"], one.avro):
                began[one.avro_name] = max(sequence, began.get(one.avro_name, BEGINNING))
    return began


def _is_left_out(one: Field, number: int, all_written: Mapping[int, Mapping[str, Any]]) -> bool:
    """Return whether a schema lacks a column that all others of its name are, by their attnums."""
    found = [written[one.avro_name] for written in all_written.values() if one.avro_name in written]
    attnums = {column.get(ATTNUM) for column in all_written[number].values()}
    return None not in attnums and all(column.get(ATTNUM) == one.attnum not in attnums for column in found)


def _is_same(old: AvroType, new: AvroType) -> bool:
    # In both directions: an older event may follow a promotion, so its int is read under a schema with long.
    return continues(old, new) or continues(new, old)


def _with_ends(plan: TablePlan, keyless: list[Event], bound: Sequence, *, is_copying: bool) -> TablePlan:
    """Return the plan with its TRUNCATEs, and with a loss if a change before one of them has no key.

    `is_copying`: the last copy before the batch was not complete. In no version of the mirror is a copy complete that
    another one follows in the same batch.
    """
    new = [event for event in keyless if event.sequence > bound]
    truncates = tuple(sorted({event.sequence for event in new if event.op == "t"}))
    is_lost = any(event.op not in ("g", "t") for event in new)
    copies = [one for one in truncates if one.phase == SNAPSHOT]
    again = tuple(copies if is_copying else copies[1:])
    return replace(plan, truncates=truncates, again=again, lost_after=bound if is_lost else None)


def _emptied_at(
    topic: str, found: list[Event], applied: Sequence, left: Sequence, accepts_gaps: bool
) -> Sequence:
    """Return the position up to which no row is left. `left`: the last change of a former table."""
    emptied = max((event.sequence for event in found if event.op == "t"), default=left)
    emptied = max(emptied, left)
    gaps = [event for event in found if event.op == "g"]
    for event in found:
        if event.op not in ("g", "t") and event.sequence > emptied:  # a TRUNCATE drops what is before it
            raise MirrorInconsistent(
                "a keyed table has a change without a key, or a record that cdcd did not write",
                topic=topic,
                timeline=event.sequence.timeline,
                commit_lsn=event.sequence.commit_lsn,
            )
    for gap in gaps:  # a gap before a snapshot needs no check, because the snapshot restores all rows
        check_gap(gap, topic, is_accepted=accepts_gaps or gap.sequence <= max(applied, emptied))
    return emptied
