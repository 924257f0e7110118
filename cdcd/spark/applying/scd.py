"""Changes of rows to the rows of a table, whatever the order of their arrival: SCD types 1 and 2.

In: the events of some keys that are stored, and new ones, as Arrow tables.
Out: the keys whose rows are replaced, their rows, and the events that have to be stored for them.
Invariant: the rows are those of all events of a key so far, applied in the order of their sequence. So neither the
order of arrival, nor the division into batches, nor a repeated batch makes a difference.
Must not: do I/O, use Spark, make a Python object for a row, put a value into an error.

An event has the columns of the key and of the row, and:

    __sequence   its place in the order of the changes of its key
    __op         u: the row has these values; d: it was deleted; t: all rows were deleted, and the key is null
    __unsent     the columns, by name, whose values the event does not have: they are those of the event before

Of a key, type 1 needs the last event only, and, if events lack values, the last one of each column. Type 2 needs all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcd.errors import ChangesInvalid
from cdcd.spark.applying.event_order import Flags, Numbers, dense_ranks, differs, has_null, leaves

__all__ = [
    "DELETE",
    "END",
    "OP",
    "SEQUENCE",
    "START",
    "TRUNCATE",
    "UNSENT",
    "UPSERT",
    "Outcome",
    "Rule",
    "apply",
]

SEQUENCE, OP, UNSENT = "__sequence", "__op", "__unsent"
START, END = "__start_at", "__end_at"
UPSERT, DELETE, TRUNCATE = "u", "d", "t"


@dataclass(frozen=True, slots=True)
class Rule:
    """How events become rows. `values`: the columns outside the key; `tracked`: those that make a new version."""

    keys: tuple[str, ...]
    values: tuple[str, ...]
    scd_type: int = 1
    tracked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """`keys`: whose stored rows and events are replaced by these. A null key is that of a TRUNCATE."""

    keys: pa.Table
    rows: pa.Table
    events: pa.Table


def apply(stored: pa.Table, changes: pa.Table, rule: Rule) -> Outcome:
    """Return what new events change. Both tables have the same columns.

    `stored`: the events of the keys in `changes`, and the last TRUNCATE; all events, if `changes` has a TRUNCATE.
    Raises ChangesInvalid for a null in a key or a sequence, and for two different new events of one key with one
    sequence. An equal event is a repetition, and so is one with the sequence of a stored one: it changes nothing.
    """
    check(changes, rule.keys)
    events = pa.concat_tables([stored, changes]).combine_chunks()
    history = _History.of(events, stored.num_rows, rule)
    made = history.rows_of_type_1() if rule.scd_type == 1 else history.rows_of_type_2()
    return history.outcome(*made)


def check(changes: pa.Table, keys: Sequence[str]) -> None:
    """Raise ChangesInvalid for new events with a null in the key or the sequence."""
    of_rows = changes.filter(pc.not_equal(changes[OP], TRUNCATE))
    if missing := [name for name in keys if has_null(of_rows[name])]:
        raise ChangesInvalid(
            "a change has no value in a column of the key",
            hint="leave such records out with `where`, or choose columns that are never NULL; a delete of "
            "cdcd has its key in the column `key`: see `row_changes`",
            columns=", ".join(missing),
        )
    if has_null(changes[SEQUENCE]):
        raise ChangesInvalid(
            "a change has no value in sequence_by, or in a field of it",
            hint="leave such records out with `where`, or choose columns that are never NULL",
        )


@dataclass(frozen=True)
class _History:
    """The events of rows, by key and sequence, without those before the last TRUNCATE.

    `number`: that of the key; `changed`: by number, whether the key's rows are replaced for a TRUNCATE.
    """

    rule: Rule
    all_events: pa.Table
    truncate: int | None
    example: Numbers
    changed: Flags
    events: pa.Table
    number: Numbers
    is_new: Flags

    @staticmethod
    def of(events: pa.Table, stored: int, rule: Rule) -> _History:
        rank = dense_ranks(leaves(events[SEQUENCE]))
        is_truncate = np.asarray(pc.equal(events[OP], TRUNCATE))
        last = _last_truncate(rank, is_truncate)
        places = np.flatnonzero(~is_truncate)
        number = dense_ranks(events[name].take(pa.array(places)) for name in rule.keys)
        example = np.unique(number, return_index=True)[1]
        in_order = np.lexsort((places, rank[places], number))
        own, of_key, at = places[in_order], number[in_order], rank[places[in_order]]
        is_new = own >= stored
        is_same = np.zeros(len(own), np.bool_)
        is_same[1:] = (of_key[1:] == of_key[:-1]) & (at[1:] == at[:-1])
        second = 1 + np.flatnonzero(is_same[1:] & is_new[1:] & is_new[:-1])
        _check_equal(events, own[second - 1], own[second], rule.keys)
        is_gone = np.zeros(len(own), np.bool_) if last is None else at <= rank[last]
        changed = np.zeros(len(example), np.bool_)
        changed[of_key[is_gone & ~is_new]] = True
        left = ~is_gone & ~(is_same & is_new)
        return _History(
            rule=rule,
            all_events=events,
            truncate=last if last is not None and last >= stored else None,
            example=places[example],
            changed=changed,
            events=events.take(pa.array(own[left])),
            number=of_key[left],
            is_new=is_new[left],
        )

    # --- places of events, by key and sequence ---------------------------------------------------------------

    @cached_property
    def is_first(self) -> Flags:
        """Whether an event is the first one of its key."""
        found = np.ones(len(self.number), np.bool_)
        found[1:] = self.number[1:] != self.number[:-1]
        return found

    @cached_property
    def is_delete(self) -> Flags:
        return np.asarray(pc.equal(self.events[OP], DELETE))

    @cached_property
    def begins(self) -> Numbers:
        """The place of the first event after the last delete before an event, or of the first event of its key."""
        found = self.is_first.copy()
        found[1:] |= self.is_delete[:-1]
        return np.maximum.accumulate(np.where(found, np.arange(len(found)), 0))

    @cached_property
    def sent_at(self) -> dict[str, Numbers]:
        """By column, the place of the event whose value the row has at each event; -1: null, as none has one."""
        unsent, row = self.events[UNSENT].combine_chunks(), np.arange(len(self.number))
        parents, names = pc.list_parent_indices(unsent), unsent.flatten()
        lacking = set(names.unique().to_pylist())
        found = {}
        for name in self.rule.values:
            is_sent = ~self.is_delete
            if name in lacking:
                is_sent[np.asarray(parents.filter(pc.equal(names, name)))] = False
            at = np.maximum.accumulate(np.where(is_sent, row, -1))
            found[name] = np.where(at >= self.begins, at, -1)
        return found

    def _values(self, at: Numbers | Flags) -> dict[str, pa.Array]:
        """Return the columns of the row as they are at these events."""
        keys = {name: self.events[name].take(_places(self._row(at))) for name in self.rule.keys}
        return keys | {
            name: self.events[name].take(_places(places[at])) for name, places in self.sent_at.items()
        }

    def _row(self, at: Numbers | Flags) -> Numbers:
        return np.arange(len(self.number))[at]

    # --- rows ------------------------------------------------------------------------------------------------

    def rows_of_type_1(self) -> tuple[pa.Table, Flags]:
        """Return the rows of the changed keys, and which events have to be stored."""
        is_last = np.ones(len(self.number), np.bool_)
        is_last[:-1] = self.is_first[1:]
        is_live = is_last & ~self.is_delete
        is_needed, is_incomplete = is_last.copy(), np.zeros(len(self.number), np.bool_)
        for at in self.sent_at.values():
            is_needed[at[is_live & (at >= 0)]] = True
            is_incomplete |= is_live & (at < 0)
        # A late event before the last delete must not supply a value that no later event has.
        before = self.begins[is_incomplete & ~self.is_first[self.begins]] - 1
        is_needed[before] = True
        self.changed[self.number[is_needed & self.is_new]] = True
        return pa.table(self._values(is_live & self.changed[self.number])), is_needed

    def rows_of_type_2(self) -> tuple[pa.Table, Flags]:
        """Return the versions of the changed keys, and which events have to be stored."""
        rows = len(self.number)
        is_start = self.begins == np.arange(rows)
        filled = {name: self.events[name].take(_places(self.sent_at[name])) for name in self.rule.tracked}
        for column in filled.values():
            is_start[1:] |= differs(column[1:], column[:-1])
        is_start &= ~self.is_delete
        ends = self.is_first | is_start | self.is_delete
        is_end = np.append(ends[1:], True)[:rows] & ~self.is_delete
        self.changed[self.number[self.is_new]] = True
        is_wanted = self.changed[self.number]
        starts, last = np.flatnonzero(is_start & is_wanted), np.flatnonzero(is_end & is_wanted)
        after = np.where(np.append(self.is_first, True)[last + 1], -1, last + 1)
        sequence = self.events[SEQUENCE]
        bounds = {START: sequence.take(_places(starts)), END: sequence.take(_places(after))}
        return pa.table(self._values(last) | bounds), np.ones(rows, np.bool_)

    def outcome(self, rows: pa.Table, is_needed: Flags) -> Outcome:
        """Return the result; rows and events of keys that no event has changed remain."""
        events = self.events.take(_places(self._row(is_needed & self.changed[self.number])))
        keys = self.all_events.take(_places(self.example[self.changed]))
        if self.truncate is not None:
            own = self.all_events.slice(self.truncate, 1)
            keys, events = pa.concat_tables([keys, own]), pa.concat_tables([events, own])
        return Outcome(keys.select(list(self.rule.keys)), rows, events)


def _check_equal(events: pa.Table, first: Numbers, second: Numbers, keys: Sequence[str]) -> None:
    """Raise ChangesInvalid if one of these pairs of events, of one key and one sequence, is not a repetition."""
    names = [name for name in events.column_names if name not in (*keys, SEQUENCE)] if len(first) else []
    if any(differs(*(events[name].take(pa.array(at)) for at in (first, second))).any() for name in names):
        raise ChangesInvalid(
            "two different changes of one key have the same sequence",
            hint="add columns to sequence_by, such as struct(timeline, commit_lsn, tx_seq), until it is unique",
            keys=", ".join(keys),
        )


def _last_truncate(rank: Numbers, is_truncate: Flags) -> int | None:
    """Return the place of the TRUNCATE with the highest sequence; of equal ones the first."""
    places = np.flatnonzero(is_truncate)
    return int(places[np.argmax(rank[places])]) if len(places) else None


def _places(places: Numbers) -> pa.Array:
    """Return places to take; -1 takes a null."""
    return pa.array(places, pa.int64(), mask=places < 0)
