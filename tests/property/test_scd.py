"""SCD types 1 and 2: equal to a replay of all changes by sequence, in any order, in any batches, also repeated ones.

The model replays the changes of each key one after the other, in Python, and shares no code with the product.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from cdcd.spark.applying.scd import END, OP, SEQUENCE, START, TRUNCATE, UNSENT, Rule, apply

KEYS, VALUES = ("k", "m"), ("a", "b", "n")
POSITION = pa.struct([("timeline", pa.int64()), ("lsn", pa.int64())])
NESTED = pa.list_(pa.struct([("x", pa.float64())]))
SCHEMA = pa.schema(
    [
        ("k", pa.int32()), ("m", pa.string()), ("a", pa.int64()), ("b", pa.string()), ("n", NESTED),
        (SEQUENCE, POSITION), (OP, pa.string()), (UNSENT, pa.list_(pa.string())),
    ]
)  # fmt: skip
Key = tuple[int, str]
Row = dict[str, Any]


@dataclass(frozen=True)
class Event:
    """A change as the test makes it; `key` None: a TRUNCATE."""

    key: Key | None
    sequence: tuple[int, int]
    op: str
    row: tuple[Any, ...]
    unsent: tuple[str, ...]

    def record(self) -> Row:
        names = dict(zip(KEYS, self.key or (None, None), strict=True)) | dict(
            zip(VALUES, self.row, strict=True)
        )
        position = {"timeline": self.sequence[0], "lsn": self.sequence[1]}
        return names | {SEQUENCE: position, OP: self.op, UNSENT: list(self.unsent)}


# --- the model -------------------------------------------------------------------------------------------------


def replay(events: Sequence[Event], tracked: Sequence[str]) -> Iterator[tuple[Key, list[Row]]]:
    """Yield the versions of each key: rows with `start`, `end`; the last one without an end is the current row."""
    for key in {one.key for one in events if one.key is not None}:
        own = [one for one in events if one.key in (key, None)]
        versions: list[Row] = []
        current: Row | None = None
        for event in sorted(own, key=lambda one: (one.sequence, one.key is None)):
            if event.op != "u":
                if current is not None:
                    current["end"] = event.sequence
                current = None
                continue
            old = current or dict.fromkeys(VALUES)
            new = {
                name: old[name] if name in event.unsent else value
                for name, value in zip(VALUES, event.row, strict=True)
            }
            if current is not None and all(old[name] == new[name] for name in tracked):
                current.update(new)
                continue
            if current is not None:
                current["end"] = event.sequence
            current = {**new, "start": event.sequence, "end": None}
            versions.append(current)
        yield key, versions


def expected_of(events: Sequence[Event], scd_type: int, tracked: Sequence[str]) -> list[Row]:
    found: list[Row] = []
    for key, versions in replay(events, tracked):
        shown = versions if scd_type == 2 else [one for one in versions if one["end"] is None]
        for version in shown:
            row = dict(zip(KEYS, key, strict=True)) | {name: version[name] for name in VALUES}
            found.append(row | ({"start": version["start"], "end": version["end"]} if scd_type == 2 else {}))
    return sorted(found, key=repr)


# --- the product, with tables in memory --------------------------------------------------------------------------


class Stored:
    """The stored events and rows, replaced by key; `has_values`: whether events are stored with values."""

    def __init__(self, rule: Rule, *, has_values: bool) -> None:
        self.rule, self.has_values = rule, has_values
        self.events: list[Row] = []
        self.rows: list[Row] = []

    def apply(self, batch: Sequence[Event]) -> None:
        keys = {one.key or (None, None) for one in batch} | {(None, None)}
        is_whole = any(one.op == TRUNCATE for one in batch)
        found = [one for one in self.events if is_whole or (one["k"], one["m"]) in keys]
        changes = pa.Table.from_pylist([one.record() for one in batch], SCHEMA)
        done = apply(pa.Table.from_pylist(found, SCHEMA), changes, self.rule)
        replaced = {(one["k"], one["m"]) for one in done.keys.to_pylist()}
        events = done.events.to_pylist()
        if not self.has_values:
            events = [one | dict.fromkeys(VALUES) for one in events]
        self.events = [one for one in self.events if (one["k"], one["m"]) not in replaced] + events
        self.rows = [one for one in self.rows if (one["k"], one["m"]) not in replaced] + done.rows.to_pylist()

    def shown(self) -> list[Row]:
        return sorted((_shown(one) for one in self.rows), key=repr)


def _shown(row: Row) -> Row:
    found = {name: row[name] for name in (*KEYS, *VALUES)}
    if START in row:
        found["start"] = tuple(row[START].values())
        found["end"] = None if row[END] is None else tuple(row[END].values())
    return found


# --- cases -----------------------------------------------------------------------------------------------------


nested = st.none() | st.lists(
    st.none() | st.fixed_dictionaries({"x": st.sampled_from([None, 0.5, 1.0])}), max_size=2
)


@st.composite
def histories(draw: st.DrawFn, *, is_partial: bool, has_truncates: bool) -> list[Event]:
    keys = st.tuples(st.integers(1, 2), st.sampled_from("xy"))
    count = draw(st.integers(1, 12))
    positions = draw(
        st.lists(
            st.tuples(st.integers(1, 2), st.integers(0, 30)), min_size=count, max_size=count, unique=True
        )
    )
    events = []
    for position in positions:
        ops = ["u", "u", "u", "d", *(["t"] if has_truncates else [])]
        op = draw(st.sampled_from(ops))
        row = (draw(st.none() | st.integers(0, 1)), draw(st.sampled_from([None, "p", "q"])), draw(nested))
        unsent = draw(st.sets(st.sampled_from(VALUES))) if is_partial and op == "u" else ()
        # What an event did not send has no meaning: a wrong value there must never be seen.
        events.append(Event(None if op == "t" else draw(keys), position, op, row, tuple(sorted(unsent))))
    return events


def batches(draw: st.DrawFn, events: Sequence[Event]) -> list[list[Event]]:
    """Return the events in any order, in any batches, of which some are repeated."""
    shuffled = draw(st.permutations(events))
    cuts = sorted(draw(st.lists(st.integers(0, len(events)), max_size=5)))
    parts = [list(shuffled[a:b]) for a, b in itertools.pairwise([0, *cuts, len(events)])]
    for place in draw(st.lists(st.integers(0, len(parts) - 1), max_size=3)):
        parts.insert(draw(st.integers(place + 1, len(parts))), parts[place])
    return [[*part, *(draw(st.permutations(part))[:2] if draw(st.booleans()) else [])] for part in parts]


@st.composite
def cases(draw: st.DrawFn, scd_type: int) -> tuple[list[Event], list[list[Event]], bool, tuple[str, ...]]:
    is_partial = draw(st.booleans())
    events = draw(histories(is_partial=is_partial, has_truncates=scd_type == 1))
    tracked = tuple(draw(st.sets(st.sampled_from(VALUES)))) if scd_type == 2 else ()
    return events, batches(draw, events), is_partial, tracked


def judge(scd_type: int, case: tuple[list[Event], list[list[Event]], bool, tuple[str, ...]]) -> None:
    _, parts, is_partial, tracked = case
    stored = Stored(Rule(KEYS, VALUES, scd_type, tracked), has_values=is_partial or scd_type == 2)
    seen: list[Event] = []
    for part in parts:
        stored.apply(part)
        seen += [one for one in part if one not in seen]
        assert stored.shown() == expected_of(seen, scd_type, tracked)


@settings(deadline=None)
@given(cases(scd_type=1))
def test_type_1_is_the_replay_of_all_changes_so_far(
    case: tuple[list[Event], list[list[Event]], bool, tuple[str, ...]],
) -> None:
    judge(1, case)


@settings(deadline=None)
@given(cases(scd_type=2))
def test_type_2_is_the_replay_of_all_changes_so_far(
    case: tuple[list[Event], list[list[Event]], bool, tuple[str, ...]],
) -> None:
    judge(2, case)


@settings(deadline=None)
@given(histories(is_partial=False, has_truncates=True))
def test_type_1_stores_one_event_of_a_key_and_one_truncate(events: list[Event]) -> None:
    stored = Stored(Rule(KEYS, VALUES), has_values=False)
    for event in events:
        stored.apply([event])
    table = pa.Table.from_pylist(stored.events, SCHEMA)
    counts = table.group_by(list(KEYS)).aggregate([(SEQUENCE, "count")])
    assert not len(counts) or pc.max(counts[f"{SEQUENCE}_count"]).as_py() == 1
