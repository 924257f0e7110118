"""What the C extension needs to read a schema's records: a tree of their parts, and where the columns' values are.

In: a schema, the columns with their sources.  Out: a program, None if the extension cannot read such records.
    node: (kind, slot, children); a slot has the bytes of the value at its path, nothing if it is null
    column: (slot, form, number, item's null branch, item's form, item's number, delimiter, function)
Invariant: a form has the same texts as its function in `cdcd.verify.texts`. A value whose type has no form is read by
its function from its bytes. The tree has no cycles, so that a record cannot make the extension's stack grow.
Must not: do I/O.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import fastavro

from cdcd.schema.types.time import clock_text
from cdcd.verify.columns import Source
from cdcd.verify.float_text import double_text, real_text
from cdcd.verify.texts import (
    ArrayText,
    DecimalText,
    TextOf,
    bit_text,
    boolean_text,
    date_text,
    encoded,
    hex_text,
    integer_text,
    named_records,
    timestamp_text,
    timestamptz_text,
    variable_scale_text,
)

# Kinds of nodes, as in `_entries/walk.pxi`.
_KINDS = {
    "null": 0, "boolean": 1, "int": 2, "long": 2, "float": 3, "double": 4, "bytes": 5, "string": 6,
}  # fmt: skip
_ARRAY, _MAP, _RECORD, _UNION = range(7, 11)
# Forms of values, as in `_entries/text.pxi`.
_MISSING, _FUNCTION = 0, 1
_FORMS: dict[Any, int] = {
    boolean_text: 2, bit_text: 3, integer_text: 4, encoded: 5, hex_text: 6, date_text: 7, clock_text: 8,
    timestamp_text: 9, timestamptz_text: 10, real_text: 11, double_text: 12, variable_scale_text: 13,
}  # fmt: skip
_DECIMAL, _ARRAY_FORM = 14, 15
_MOST_SCALE = 100
_MOST_NODES, _MOST_DEPTH = 20_000, 40
_NO_SLOT = -1

SOURCE_SLOTS = ("timeline", "commit_lsn", "tx_seq", "txId", "snapshot", "unchanged", "special")
"""The fields of the source block in the first slots; then `op`, `after`, and the columns."""
_FIRST_COLUMN = len(SOURCE_SLOTS) + 2
Node = tuple[int, int, tuple[int, ...]]
Column = tuple[int, int, int, int, int, int, int, Callable[[bytes], bytes] | None]


class Program(NamedTuple):
    """What the extension reads one schema's records with. `names`: of the columns' fields, b"" without one."""

    nodes: tuple[Node, ...]
    slots: int
    columns: tuple[Column, ...]
    names: tuple[bytes, ...]


class _Unreadable(Exception):
    """The extension does not read such a schema."""


def value_program(schema: Any, sources: Sequence[Source | None]) -> Program | None:
    """Return the program of an envelope's schema, whose names are full; `sources` of the table's columns."""
    slots: dict[tuple[str, ...], int] = {("source", name): number for number, name in enumerate(SOURCE_SLOTS)}
    slots |= {("op",): len(SOURCE_SLOTS), ("after",): len(SOURCE_SLOTS) + 1}
    return _program(schema, sources, slots, ("after",), _FIRST_COLUMN)


def key_program(schema: Any, sources: Sequence[Source]) -> Program | None:
    """Return the program of a key's schema, whose names are full."""
    return _program(schema, sources, {}, (), 0)


def _program(
    schema: Any,
    sources: Sequence[Source | None],
    slots: dict[tuple[str, ...], int],
    row: tuple[str, ...],
    first: int,
) -> Program | None:
    wanted = list(dict.fromkeys(one.field for one in sources if one is not None))
    slots |= {(*row, name): first + number for number, name in enumerate(wanted)}
    tree = _Tree(named_records(schema), slots)
    try:
        tree.add(schema, ())
        columns = tuple(
            _MISSING_COLUMN if one is None else tree.column(slots[*row, one.field], one.text)
            for one in sources
        )
    except (_Unreadable, LookupError, TypeError):
        return None
    names = tuple(b"" if one is None else one.field.encode() for one in sources)
    return Program(tuple(tree.nodes), len(slots), columns, names)


_MISSING_COLUMN: Column = (_NO_SLOT, _MISSING, 0, _NO_SLOT, 0, 0, 0, None)


@dataclass(slots=True)
class _Tree:
    """The nodes of a schema. `types`: by slot, the Avro type of its value."""

    named: Mapping[str, Any]
    slots: Mapping[tuple[str, ...], int]
    nodes: list[Node] = field(default_factory=list)
    types: dict[int, Any] = field(default_factory=dict)

    def add(self, avro: Any, path: tuple[str, ...] | None, depth: int = 0) -> int:
        """Add the nodes of a type; return the number of its own. `path` None: within an array or a map."""
        if depth > _MOST_DEPTH or len(self.nodes) > _MOST_NODES:
            raise _Unreadable
        number = len(self.nodes)
        self.nodes.append((0, _NO_SLOT, ()))
        if isinstance(avro, list):
            if len([one for one in avro if one != "null"]) != 1:
                raise _Unreadable  # a path would have values of two types
            self.nodes[number] = (_UNION, _NO_SLOT, tuple(self.add(one, path, depth + 1) for one in avro))
            return number
        if isinstance(avro, str) and avro in self.named:
            avro = self.named[avro]
        slot = _NO_SLOT if path is None or avro == "null" else self.slots.get(path, _NO_SLOT)
        if slot != _NO_SLOT:
            self.types[slot] = avro
        kind, parts = self._parts(avro, path)
        self.nodes[number] = (kind, slot, tuple(self.add(part, at, depth + 1) for part, at in parts))
        return number

    def _parts(
        self, avro: Any, path: tuple[str, ...] | None
    ) -> tuple[int, list[tuple[Any, tuple[str, ...] | None]]]:
        kind = avro if isinstance(avro, str) else avro["type"]
        if kind == "record":
            fields = avro["fields"]
            return _RECORD, [(one["type"], None if path is None else (*path, one["name"])) for one in fields]
        if kind == "array":
            return _ARRAY, [(avro["items"], None)]
        if kind == "map":
            return _MAP, [(avro["values"], None)]
        if isinstance(kind, str) and kind in _KINDS:
            return _KINDS[kind], []
        raise _Unreadable

    def column(self, slot: int, text: TextOf) -> Column:
        """Return how a column's text is made of the bytes of its value."""
        avro = self.types[slot]
        if isinstance(text, ArrayText) and len(text.delimiter) == 1:
            items = avro["items"]
            null = items.index("null") if isinstance(items, list) and "null" in items else _NO_SLOT
            form, number = _form(text.element)
            if form != _FUNCTION and (not isinstance(items, list) or len(items) == 2):
                return (slot, _ARRAY_FORM, 0, null, form, number, text.delimiter[0], None)
        form, number = _form(text)
        function = self._read(avro, text) if form == _FUNCTION else None
        return (slot, form, number, _NO_SLOT, 0, 0, 0, function)

    def _read(self, avro: Any, text: TextOf) -> Callable[[bytes], bytes]:
        parsed = fastavro.parse_schema(without_logical_types(self._whole(avro, set())))
        return lambda data: text(fastavro.schemaless_reader(io.BytesIO(data), parsed, None))

    def _whole(self, avro: Any, defined: set[str]) -> Any:
        """Return a type with each record complete where it occurs first."""
        if isinstance(avro, list):
            return [self._whole(one, defined) for one in avro]
        if isinstance(avro, str):
            return (
                self._whole(self.named[avro], defined) if avro in self.named and avro not in defined else avro
            )
        if avro["type"] == "record":
            if avro["name"] in defined:
                return avro["name"]
            defined.add(avro["name"])
            return {
                **avro,
                "fields": [one | {"type": self._whole(one["type"], defined)} for one in avro["fields"]],
            }
        return {name: self._whole(part, defined) if name in _PARTS else part for name, part in avro.items()}


_PARTS = frozenset({"items", "values"})


def _form(text: TextOf) -> tuple[int, int]:
    if isinstance(text, DecimalText) and 0 <= text.scale <= _MOST_SCALE:
        return _DECIMAL, text.scale
    try:
        return _FORMS.get(text, _FUNCTION), 0
    except TypeError:  # a function that cannot be a key
        return _FUNCTION, 0


def without_logical_types(one: Any) -> Any:
    """Return a schema whose values are fastavro's plain ones: Python's dates and decimals have smaller ranges."""
    if isinstance(one, list):
        return [without_logical_types(part) for part in one]
    if isinstance(one, dict):
        return {name: without_logical_types(part) for name, part in one.items() if name != "logicalType"}
    return one
