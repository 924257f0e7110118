"""Compile a writer schema and the wanted columns into a program: one node for each Avro value of a record.

In: an Avro schema without references to named types, and the columns of `layout`.  Out: a `Program`.
Invariant: the nodes are in the order of the bytes. A value that is not wanted has a node that skips it. A field that
the writer does not have is null. A value whose type does not fit its column is an error here, never in a record.
Fields have the same name in Avro and Arrow, or the Arrow field's metadata has the Avro name.
Must not: read records.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cdcd.columnar.layout import ONLY_TIMES, Column, ColumnKind, child_fields
from cdcd.errors import SparkReadError

AvroType = Any
AVRO_NAME = b"avro.name"
"""The metadata of an Arrow field: the name of its Avro field, if it has another one."""
SKIP = -1
NO_UNION = -1
MAX_DEPTH = 200
"""Values are nested at most so deep: the C extension decodes recursively."""


class Op(enum.IntEnum):
    """The form of an Avro value. The numbers are those of the C extension."""

    NULL = 0
    BOOLEAN = 1
    INT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    BYTES = 6
    STRING = 7
    DECIMAL = 8
    ARRAY = 9
    MAP = 10
    RECORD = 11
    UNION = 12


@dataclass(frozen=True, slots=True)
class Node:
    """A value. `null_branch`: 0 or 1 if it is a union of null and this type, and null is this branch.

    `children`: the items; a map's values; a record's fields; or the branches of any other union. `missing`: the
    columns of a record that the writer does not have.
    """

    op: Op
    column: int = SKIP
    null_branch: int = NO_UNION
    children: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """The nodes of a writer schema; the last one is the record."""

    nodes: tuple[Node, ...]


def compile_program(writer: AvroType, columns: Sequence[Column]) -> Program:
    """Return the program that decodes records of this schema into these columns.

    Raises SparkReadError if a wanted value cannot be converted to its column, or the schema is not a record.
    """
    compiler = _Compiler(columns)
    try:
        if _kind(writer) != "record":
            raise SparkReadError("the schema of a record is not a record", type=_kind(writer))
        compiler.add(writer, 0, "", 0)
    except (KeyError, TypeError, AttributeError) as error:
        raise SparkReadError("a schema is not Avro", reason=type(error).__name__) from error
    return Program(tuple(compiler.nodes))


_OPS = {
    "null": Op.NULL,
    "boolean": Op.BOOLEAN,
    "int": Op.INT,
    "long": Op.LONG,
    "float": Op.FLOAT,
    "double": Op.DOUBLE,
    "bytes": Op.BYTES,
    "string": Op.STRING,
    "array": Op.ARRAY,
    "map": Op.MAP,
    "record": Op.RECORD,
}
# Avro's promotions, and each type itself.
_STORED_AS: dict[Op, frozenset[ColumnKind]] = {
    Op.BOOLEAN: frozenset({ColumnKind.BIT}),
    Op.INT: frozenset({ColumnKind.INT32, ColumnKind.INT64, ColumnKind.FLOAT, ColumnKind.DOUBLE}),
    Op.LONG: frozenset({ColumnKind.INT64, ColumnKind.FLOAT, ColumnKind.DOUBLE}),
    Op.FLOAT: frozenset({ColumnKind.FLOAT, ColumnKind.DOUBLE}),
    Op.DOUBLE: frozenset({ColumnKind.DOUBLE}),
    Op.BYTES: frozenset({ColumnKind.BYTES}),
    Op.STRING: frozenset({ColumnKind.BYTES}),
    Op.DECIMAL: frozenset({ColumnKind.DECIMAL}),
    Op.ARRAY: frozenset({ColumnKind.LIST}),
    Op.MAP: frozenset({ColumnKind.MAP}),
    Op.RECORD: frozenset({ColumnKind.STRUCT}),
}
# The Arrow types of Avro's logical types. A plain number is not a value of them, nor the other way round: it may be
# of another unit. Only a time of day has a second type, an int64 column that its metadata says to hold times.
_TIME = pa.time64("us")
_LOGICAL: dict[tuple[Op, str], pa.DataType] = {
    (Op.INT, "date"): pa.date32(),
    (Op.LONG, "time-micros"): _TIME,
    (Op.LONG, "timestamp-micros"): pa.timestamp("us", "UTC"),
    (Op.LONG, "local-timestamp-micros"): pa.timestamp("us"),
}
_PLAIN_TYPE = {
    Op.INT: frozenset({pa.int32(), pa.int64(), pa.float32(), pa.float64()}),
    Op.LONG: frozenset({pa.int64(), pa.float32(), pa.float64()}),
    Op.BYTES: frozenset({pa.binary()}),
    Op.STRING: frozenset({pa.string()}),
}


def _kind(avro: AvroType) -> str:
    if isinstance(avro, list):
        return "union"
    kind = avro["type"] if isinstance(avro, dict) else avro
    return _kind(kind) if isinstance(kind, dict | list) else str(kind)


def _described(avro: AvroType) -> dict[str, Any]:
    """Return the object that describes a type: `{"type": {"type": "int"}}` is a form of `"int"`."""
    while isinstance(avro, dict) and isinstance(avro["type"], dict):
        avro = avro["type"]
    return avro if isinstance(avro, dict) else {}


def _op(avro: AvroType, path: str) -> Op:
    kind = _kind(avro)
    if kind == "bytes" and _described(avro).get("logicalType") == "decimal":
        return Op.DECIMAL
    if kind not in _OPS:
        raise SparkReadError("an Avro type has no column type", column=path, type=kind)
    return _OPS[kind]


def _has_no_bytes(avro: AvroType) -> bool:
    kind = _kind(avro)
    if kind == "record":
        return all(_has_no_bytes(field["type"]) for field in _described(avro)["fields"])
    return kind == "null"


class _Compiler:
    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self.nodes: list[Node] = []

    def add(self, avro: AvroType, column: int, path: str, depth: int) -> int:
        """Add the nodes of a type, its parts first; return the number of its node."""
        if depth > MAX_DEPTH:
            raise SparkReadError("a schema is nested too deep", column=path, limit=MAX_DEPTH)
        if isinstance(avro, list):
            return self._union(avro, column, path, depth)
        op = _op(avro, path)
        if column != SKIP:
            self._check(op, avro, self._columns[column], path)
        described = _described(avro)
        parts = self._columns[column].children if column != SKIP else ()
        if op is Op.RECORD:
            return self._record(described["fields"], column, path, depth)
        if op in (Op.ARRAY, Op.MAP):
            items = described["items" if op is Op.ARRAY else "values"]
            if op is Op.ARRAY and _has_no_bytes(items):  # any number of them would fit into a record
                raise SparkReadError("the items of an array have no bytes", column=path)
            item = self.add(items, parts[-1] if parts else SKIP, path, depth + 1)
            return self._append(Node(op, column, children=(item,)))
        return self._append(Node(op, column))

    def _append(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _record(self, fields: Sequence[AvroType], column: int, path: str, depth: int) -> int:
        wanted = self._fields_of(column)
        children = []
        for field in fields:
            name = field["name"]
            below = f"{path}.{name}" if path else name
            children.append(self.add(field["type"], wanted.pop(name, SKIP), below, depth + 1))
        return self._append(Node(Op.RECORD, column, children=tuple(children), missing=tuple(wanted.values())))

    def _fields_of(self, column: int) -> dict[str, int]:
        """Return the columns of a record by the Avro names of their fields."""
        if column == SKIP:
            return {}
        shape = self._columns[column]
        names = [avro_name(field) for field in child_fields(shape.type)]
        if len(set(names)) < len(names):
            raise SparkReadError("two columns want the same field", fields=len(names) - len(set(names)))
        return dict(zip(names, shape.children, strict=True))

    def _union(self, branches: Sequence[AvroType], column: int, path: str, depth: int) -> int:
        others = [branch for branch in branches if _kind(branch) != "null"]
        if len(branches) == 2 and len(others) == 1:
            number = self.add(others[0], column, path, depth + 1)
            node = self.nodes[number]
            null_branch = 1 - list(branches).index(others[0])
            self.nodes[number] = Node(node.op, node.column, null_branch, node.children, node.missing)
            return number
        if column != SKIP:
            raise SparkReadError("a union of several types has no column type", column=path)
        children = tuple(self.add(branch, SKIP, path, depth + 1) for branch in branches)
        return self._append(Node(Op.UNION, SKIP, children=children))

    @staticmethod
    def _check(op: Op, avro: AvroType, column: Column, path: str) -> None:
        """Raise SparkReadError if values of the type cannot be converted to the column without a loss."""
        fits = column.kind in _STORED_AS.get(op, frozenset())
        if op is Op.DECIMAL and fits:
            described = _described(avro)
            same_scale = described.get("scale", 0) == column.type.scale
            fits = same_scale and described["precision"] <= column.type.precision
        elif op in _PLAIN_TYPE and fits:
            logical = _LOGICAL.get((op, _described(avro).get("logicalType", "")))
            if logical is None:
                fits = column.type in _PLAIN_TYPE[op] and column.times != ONLY_TIMES
            else:
                is_number_of_time = logical == _TIME and column.type == pa.int64() and bool(column.times)
                fits = column.type == logical or is_number_of_time
        elif op is Op.MAP and fits:
            fits = pa.types.is_string(column.type.key_type)
        if not fits:
            raise SparkReadError(
                "the values of a schema cannot be converted to their column", column=path, type=_kind(avro)
            )


def avro_name(field: pa.Field) -> str:
    """Return the name of the Avro field that a column is decoded from."""
    named: bytes = (field.metadata or {}).get(AVRO_NAME, field.name.encode())
    return named.decode()
