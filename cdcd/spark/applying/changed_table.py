"""A Delta table that `apply_changes` writes, and the events that it has to remember for late changes.

In: batches of changes as Arrow tables.  Out: versions of the Delta table, each with whole batches.
Invariant: the table has the user's columns only. What late changes need is a second Delta table, in a folder of the
first that readers ignore. A commit of the first names the version of the second by an application transaction: so the
one commit makes both visible, and a version of the second that none names is undone by the next batch.
Must not: use Spark; let two writers build on each other's rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcd.errors import ChangesInvalid, ConfigError
from cdcd.spark.applying.event_order import is_orderable
from cdcd.spark.applying.keyed_table import KeyedTable
from cdcd.spark.applying.scd import END, OP, SEQUENCE, START, TRUNCATE, UNSENT, Outcome, Rule, apply
from cdcd.spark.applying.wide_types import shown, wide
from cdcd.spark.storage.uri import Storage

__all__ = ["RESERVED", "STATE", "ChangedTable", "TableRule"]

STATE = "_cdcd_state"
"""The folder of the events; Delta's readers and VACUUM ignore names that begin with an underscore."""
STATE_VERSION = "cdcd.state"
RESERVED = (SEQUENCE, OP, UNSENT, START, END)
_FORMAT = 1
_UNSENT_TYPE = pa.list_(pa.large_string())


@dataclass(frozen=True, slots=True)
class TableRule:
    """How the table follows from changes; None for a list of columns means all.

    `ignored_nulls`: the columns whose nulls mean that the value is unchanged; `is_partial`: whether changes lack
    values otherwise; `names`: the columns that they can lack, empty: any.
    """

    keys: tuple[str, ...]
    scd_type: int = 1
    tracked: tuple[str, ...] | None = None
    untracked: tuple[str, ...] = ()
    ignored_nulls: tuple[str, ...] | None = ()
    is_partial: bool = False
    names: tuple[str, ...] = ()

    @property
    def stores_values(self) -> bool:
        """Whether the events are stored with values: late changes need those of earlier and later ones."""
        return self.scd_type == 2 or self.is_partial or self.ignored_nulls != ()

    def of_columns(self, names: Sequence[str]) -> Rule:
        """Return the rule for a table with these columns."""
        values = tuple(name for name in names if name not in self.keys)
        chosen = values if self.tracked is None else self.tracked
        tracked = tuple(name for name in values if name in chosen and name not in self.untracked)
        return Rule(self.keys, values, self.scd_type, tracked)


class ChangedTable:
    """The Delta table at a URI, and its events."""

    def __init__(self, target: Storage, rule: TableRule) -> None:
        self._target, self._rule = target, rule
        self._rows = KeyedTable(target, "", rule.keys)
        self._events = KeyedTable(target, STATE, rule.keys)

    def apply(self, changes: pa.Table, transaction: tuple[str, int] | None = None) -> bool:
        """Apply changes; return whether the table has a new version.

        `changes`: the columns of the table, SEQUENCE, OP and perhaps UNSENT. `transaction`: the name of a query and
        the number of its batch, from 0 on; the first one always makes a version. Raises ChangesInvalid, ConfigError
        for a table of another rule, or without the earlier batches of the query, StorageConflict if another writer
        was first, StorageError.
        """
        changes = _plain(changes)
        exists = self._rows.open()
        is_first = transaction is not None and not self._has_batches_before(*transaction, exists=exists)
        has_values = self._opened_state() if exists else self._rule.stores_values
        schema = self._schema(changes, exists=exists)
        rule = self._rule.of_columns(schema.names)
        events = _aligned(changes, schema, self._event_fields(changes))
        self._check_names(events[UNSENT])
        events = self._with_unsent(events)
        stored = self._stored(events) if exists else events.schema.empty_table()
        outcome = apply(stored, events, rule)
        if exists and not is_first and not outcome.keys.num_rows:
            return False
        self._commit(outcome, schema, transaction, exists=exists, has_values=has_values)
        return True

    def _has_batches_before(self, name: str, number: int, *, exists: bool) -> bool:
        """Return whether the table has batches of a query. Raises ConfigError if it lacks those before this one.

        The number does not say whether the table has this batch: with a restored checkpoint it is of other changes.
        """
        if exists and self._rows.transaction(name) is not None:
            return True
        if number > 0:
            raise ConfigError(
                "the target does not have the earlier batches of this query: the target was deleted or recreated",
                hint="restore the table, or start with an empty target and a new checkpoint, and all changes",
                target=self._target.uri,
            )
        return False

    def _opened_state(self) -> bool:
        """Open the events of the table's version; return whether they have values. Raises ConfigError."""
        version = self._rows.transaction(STATE_VERSION)
        if version is None:
            raise ConfigError(
                "the target is a Delta table that apply_changes did not create",
                hint="choose an empty target, or the table that an earlier call with these keys created",
                target=self._target.uri,
            )
        if not self._events.open(version):
            raise ConfigError(
                f"the target lacks the folder {STATE}, which has the sequences of its rows",
                hint="restore the folder together with the table, or start with an empty target and all changes",
                target=self._target.uri,
            )
        known = json.loads(self._events.description)
        given = {"format": _FORMAT, "keys": list(self._rule.keys), "scd_type": self._rule.scd_type}
        if different := [name for name, value in given.items() if known.get(name) != value]:
            raise ConfigError(
                f"the target was created with other parameters: {', '.join(different)}",
                hint="use the parameters of the first call, or an empty target",
            )
        if self._rule.stores_values and not known["values"]:
            raise ConfigError(
                "the target was created without ignore_null_updates and unchanged_column, and lacks the values that "
                "late changes need with these parameters",
                hint="use the parameters of the first call, or an empty target",
            )
        return bool(known["values"])

    # --- columns -----------------------------------------------------------------------------------------------

    def _schema(self, changes: pa.Table, *, exists: bool) -> pa.Schema:
        """Return the table's columns without those of the versions: its own, then new ones of the changes."""
        given = [field for field in changes.schema if field.name not in RESERVED]
        if not is_orderable(changes.schema.field(SEQUENCE).type):
            raise ChangesInvalid(
                "sequence_by has a type without an order", type=shown(changes.schema.field(SEQUENCE).type)
            )
        for field in given:
            if field.name in self._rule.keys and not is_orderable(field.type):
                raise ChangesInvalid(
                    "a key has a type without an order", column=field.name, type=shown(field.type)
                )
            if field.name in self._rule.keys and not _is_valid(changes[field.name]):
                raise ChangesInvalid(
                    "a key has a text that is not UTF-8",
                    hint="correct the column in the frame of changes, or cast it to BINARY",
                    column=field.name,
                )
        if not exists:
            found = pa.schema(given)
        else:
            self._check_type(self._events.schema.field(SEQUENCE), changes.schema.field(SEQUENCE))
            held = {field.name: field for field in self._rows.schema if field.name not in RESERVED}
            for field in given:
                self._check_type(held.setdefault(field.name, field), field)
            found = pa.schema(list(held.values()))
        lowered = [name.lower() for name in found.names]
        if same := sorted({name for name in found.names if lowered.count(name.lower()) > 1}):
            raise ChangesInvalid(
                "names of columns differ only in case, which a Delta table cannot have",
                columns=", ".join(same),
            )
        return found

    def _check_type(self, held: pa.Field, given: pa.Field) -> None:
        if not held.type.equals(given.type):
            raise ChangesInvalid(
                "a column has another type than in the target",
                hint="cast the column in the frame of changes, or start with an empty target",
                column="sequence_by" if given.name == SEQUENCE else given.name,
                type=shown(given.type),
                of_target=shown(held.type),
            )

    def _check_names(self, unsent: pa.ChunkedArray) -> None:
        """Raise ChangesInvalid for the name of a column that the frame does not have."""
        given, known = (
            pc.unique(pc.list_flatten(unsent)).drop_null(),
            pa.array(self._rule.names, pa.large_string()),
        )
        if len(known) and pc.any(pc.invert(pc.is_in(given, known))).as_py():
            raise ChangesInvalid(
                "unchanged_column has a name that is not a column of the frame",
                hint="write the names as in the frame, and remove the names of other columns",
                columns=", ".join(self._rule.names),
            )

    def _event_fields(self, changes: pa.Table) -> list[pa.Field]:
        return [
            pa.field(SEQUENCE, changes.schema.field(SEQUENCE).type),
            pa.field(OP, pa.large_string()),
            pa.field(UNSENT, _UNSENT_TYPE),
        ]

    def _with_unsent(self, events: pa.Table) -> pa.Table:
        """Return events with the columns whose null means that the value is unchanged in UNSENT, each once."""
        ignored = self._rule.ignored_nulls
        values = [name for name in events.column_names if name not in (*self._rule.keys, *RESERVED)]
        names = [name for name in values if ignored is None or name in ignored]
        given = events[UNSENT].combine_chunks()
        places, unsent = np.flatnonzero(given.is_valid().to_numpy(zero_copy_only=False)), given.drop_null()
        is_name = unsent.flatten().is_valid()
        rows = [places[pc.list_parent_indices(unsent).filter(is_name).to_numpy()]]
        texts: list[pa.Array] = [unsent.flatten().filter(is_name)]
        for name in names:
            nulls = np.flatnonzero(events[name].is_null().to_numpy())
            rows.append(nulls)
            texts.append(pa.repeat(pa.scalar(name, pa.large_string()), len(nulls)))
        text = pa.concat_arrays(texts).dictionary_encode()
        names_count = max(len(text.dictionary), 1)
        pairs = np.unique(np.concatenate(rows) * names_count + text.indices.to_numpy())
        parents, numbers = np.divmod(pairs, names_count)
        ends = np.cumsum(np.bincount(parents, minlength=events.num_rows))
        offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
        lists = pa.ListArray.from_arrays(offsets, text.dictionary.take(pa.array(numbers)))
        return events.set_column(events.schema.get_field_index(UNSENT), UNSENT, lists)

    # --- rows --------------------------------------------------------------------------------------------------

    def _stored(self, events: pa.Table) -> pa.Table:
        """Return the stored events of these keys and the last TRUNCATE; all, if there is a new TRUNCATE."""
        keys = events.select(list(self._rule.keys))
        is_whole = pc.any(pc.equal(events[OP], TRUNCATE)).as_py()
        null_key = pa.table([pa.nulls(1, field.type) for field in keys.schema], schema=keys.schema)
        found = self._events.rows_of(None if is_whole else pa.concat_tables([keys, null_key]))
        # An event that was stored before a column was added does not have its value: the column is unchanged.
        return self._with_unsent(_aligned(found, events.schema, []))

    def _commit(
        self,
        outcome: Outcome,
        schema: pa.Schema,
        transaction: tuple[str, int] | None,
        *,
        exists: bool,
        has_values: bool,
    ) -> None:
        """Write the events, then the rows, whose commit makes both visible."""
        sequence = outcome.events.schema.field(SEQUENCE).type
        bounds = [pa.field(START, sequence), pa.field(END, sequence)] if self._rule.scd_type == 2 else []
        rows = _aligned(outcome.rows, schema, bounds)
        dropped = [] if has_values else [name for name in schema.names if name not in self._rule.keys]
        events = outcome.events.drop_columns(dropped)
        if exists:
            version = self._rows.transaction(STATE_VERSION)
            assert version is not None
            self._events.restore(version)
            self._events.add_columns(events.schema)
            self._events.replace(outcome.keys, _aligned(events, self._events.schema, []), {})
        else:
            known = {
                "format": _FORMAT,
                "keys": list(self._rule.keys),
                "scd_type": self._rule.scd_type,
                "values": has_values,
            }
            self._events.create(events, {}, json.dumps(known), replace=True)
        assert self._events.version is not None
        named = {STATE_VERSION: self._events.version} | dict([transaction] if transaction else [])
        if exists:
            self._rows.add_columns(rows.schema)
            self._rows.replace(outcome.keys, _aligned(rows, self._rows.schema, []), named)
            self._events.remove_old_files()
        else:
            self._rows.create(rows, named, "written by cdcd.spark.apply_changes")


def _is_valid(column: pa.ChunkedArray) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _aligned(rows: pa.Table, schema: pa.Schema, further: Sequence[pa.Field]) -> pa.Table:
    """Return rows with these columns; those that they do not have are null."""
    wanted = pa.schema([*schema, *further])
    columns = [
        rows[one.name].cast(one.type) if one.name in rows.column_names else pa.nulls(rows.num_rows, one.type)
        for one in wanted
    ]
    return pa.Table.from_arrays(columns, schema=wanted)


def _plain(rows: pa.Table) -> pa.Table:
    """Return rows with the types as Delta has them: nullable, times in UTC. Raises ChangesInvalid for other types.

    The texts have offsets of 64 bits: a batch may have more than 2 GiB of them.
    """
    fields = [pa.field(one.name, _plain_type(one.name, one.type)) for one in rows.schema]
    return rows.cast(wide(pa.schema(fields)))


def _plain_type(column: str, type_: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(one.name, _plain_type(column, one.type)) for one in type_])
    if pa.types.is_map(type_):
        return pa.map_(_plain_type(column, type_.key_type), _plain_type(column, type_.item_type))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return pa.list_(_plain_type(column, type_.value_type))
    if pa.types.is_timestamp(type_):
        return pa.timestamp("us", "UTC" if type_.tz else None)
    if pa.types.is_large_string(type_):
        return pa.string()
    if pa.types.is_large_binary(type_):
        return pa.binary()
    if type_ in _SIMPLE or pa.types.is_decimal128(type_):
        return type_
    raise ChangesInvalid(
        "a column has a type that a Delta table cannot have",
        hint="cast the column in the frame of changes, or leave it out with except_column_list",
        column=column,
        type=type_,
    )


_SIMPLE = (
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
    pa.date32(),
)  # fmt: skip
