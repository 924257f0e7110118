"""Decode framed Avro records into columns: the Python fallback of `_arrow`, and its specification.

In: a binary Arrow column, programs by schema id (the Avro specification's binary encoding; the frame is Confluent's).
Out: Arrow arrays; a null record is a null row.
Invariant: after a fault the columns have none of the record's values. No value is read beyond its record.
Must not: fetch a schema.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from cdcd.columnar.faults import Fault
from cdcd.columnar.layout import Column, ColumnKind
from cdcd.columnar.program import NO_UNION, SKIP, Node, Op, Program

HEADER_BYTES = 5
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_INT32 = range(-(2**31), 2**31)
_VARINT_BYTES = 10


class _Broken(Exception):
    """A record has a fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


class _Store:
    """The values of one column; `lengths` has the number of items of each row of a list or map."""

    def __init__(self, column: Column) -> None:
        self.column = column
        self.rows = 0
        self.valid: list[bool] = []
        self.values: list[Any] = []
        self.lengths: list[int] = []

    def append(self, value: Any = None, *, is_valid: bool = True) -> None:
        self.valid.append(is_valid)
        if self.column.kind in (ColumnKind.LIST, ColumnKind.MAP):
            self.lengths.append(value or 0)
        else:
            self.values.append(value)


class _Input:
    """The bytes of one record."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise _Broken(Fault.TRUNCATED)
        piece = self.data[self.at : self.at + size]
        self.at += size
        return piece

    def long(self) -> int:
        """Return a zigzag varint of 64 bits."""
        number = 0
        for place in range(_VARINT_BYTES):
            (byte,) = self.take(1)
            number |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                if number >= 2**64:
                    raise _Broken(Fault.NUMBER)
                return (number >> 1) ^ -(number & 1)
        raise _Broken(Fault.NUMBER)

    def bytes(self) -> bytes:
        size = self.long()
        if size < 0 or size > self.left:
            raise _Broken(Fault.LENGTH)
        return self.take(size)


class ColumnsInPython:
    """The columns of records. See the extension's class `Columns`, which does the same."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = tuple(columns)
        self._programs: dict[int, Program] = {}
        self._clear()

    def _clear(self) -> None:
        self._stores = [_Store(column) for column in self._columns]
        self._ids: list[int | None] = []

    def add_program(self, schema_id: int, program: Program) -> None:
        """Decode records of this schema id by this program."""
        self._programs[schema_id] = program

    def decode(self, records: pa.Array, start: int) -> tuple[int, int, int]:
        """Append the records from `start` on. Return (row, fault, schema id) of the first one that is not appended.

        The row is the number of records after the last one. The fault is 0 if the schema id has no program.
        """
        for row in range(start, len(records)):
            record = records[row].as_py()
            if record is None:
                self._append_null(0)
                self._ids.append(None)
                continue
            if len(record) < HEADER_BYTES or record[0] != 0:
                return row, Fault.HEADER, -1
            schema_id = int.from_bytes(record[1:HEADER_BYTES], "big")
            program = self._programs.get(schema_id)
            if program is None:
                return row, 0, schema_id
            try:
                self._record(program, record)
            except _Broken as broken:
                self._truncate(0, len(self._ids))
                return row, broken.fault, schema_id
            self._ids.append(schema_id)
        return len(records), 0, -1

    def append_null(self) -> None:
        """Append a null row, for a record that cannot be decoded."""
        self._append_null(0)
        self._ids.append(None)

    def take(self) -> tuple[pa.Array, pa.Array]:
        """Return the rows, and their schema ids; begin with no rows again."""
        arrays = _array(self._stores, 0), pa.array(self._ids, pa.int64())
        self._clear()
        return arrays

    def _record(self, program: Program, record: bytes) -> None:
        data = _Input(record, HEADER_BYTES)
        self._value(program.nodes, program.nodes[-1], data)
        if data.left:
            raise _Broken(Fault.TRAILING)

    def _value(self, nodes: Sequence[Node], node: Node, data: _Input) -> None:
        if node.column == SKIP:
            _skip(nodes, node, data)
            return
        if _is_null(node, data):
            self._append_null(node.column)
            return
        store = self._stores[node.column]
        if node.op is Op.RECORD:
            for child in node.children:
                self._value(nodes, nodes[child], data)
            for column in node.missing:
                self._append_null(column)
            store.append()
        elif node.op in (Op.ARRAY, Op.MAP):
            store.append(self._items(nodes, node, data))
        else:
            store.append(_READ[node.op](data, store.column))

    def _items(self, nodes: Sequence[Node], node: Node, data: _Input) -> int:
        items = 0
        while count := _block(data):
            items += count
            for _ in range(count):
                if node.op is Op.MAP:
                    key = self._stores[node.column].column.children[0]
                    self._stores[key].append(_text(data.bytes()))
                self._value(nodes, nodes[node.children[0]], data)
        return items

    def _append_null(self, column: int) -> None:
        store = self._stores[column]
        store.append(is_valid=False)
        if store.column.kind is ColumnKind.STRUCT:
            for child in store.column.children:
                self._append_null(child)

    def _truncate(self, column: int, rows: int) -> None:
        store = self._stores[column]
        items = sum(store.lengths[:rows])
        for values in (store.valid, store.values, store.lengths):
            del values[rows:]
        for child in store.column.children:
            self._truncate(child, rows if store.column.kind is ColumnKind.STRUCT else items)


def _is_null(node: Node, data: _Input) -> bool:
    if node.null_branch == NO_UNION:
        return False
    branch = data.long()
    if branch not in (0, 1):
        raise _Broken(Fault.BRANCH)
    return branch == node.null_branch


def _block(data: _Input) -> int:
    """Return the number of items of the next block, 0 after the last one."""
    count = data.long()
    if count < 0:
        count = -count
        data.long()  # the block's size in bytes
    if count > data.left:
        raise _Broken(Fault.COUNT)
    return count


def _skip(nodes: Sequence[Node], node: Node, data: _Input) -> None:
    """Go to the end of a value. Only its structure is checked."""
    if _is_null(node, data):
        return
    if node.op is Op.RECORD:
        for child in node.children:
            _skip(nodes, nodes[child], data)
    elif node.op is Op.UNION:
        branch = data.long()
        if not 0 <= branch < len(node.children):
            raise _Broken(Fault.BRANCH)
        _skip(nodes, nodes[node.children[branch]], data)
    elif node.op in (Op.ARRAY, Op.MAP):
        while count := _block(data):
            for _ in range(count):
                if node.op is Op.MAP:
                    data.bytes()
                _skip(nodes, nodes[node.children[0]], data)
    elif node.op in (Op.INT, Op.LONG):
        data.long()
    elif node.op in _FIXED_BYTES:
        data.take(_FIXED_BYTES[node.op])
    else:
        data.bytes()


_FIXED_BYTES = {Op.NULL: 0, Op.BOOLEAN: 1, Op.FLOAT: 4, Op.DOUBLE: 8}


def _boolean(data: _Input, column: Column) -> bool:
    (byte,) = data.take(1)
    if byte > 1:
        raise _Broken(Fault.BOOLEAN)
    return bool(byte)


def _int(data: _Input, column: Column) -> int | bytes:
    number = data.long()
    if number not in _INT32:
        raise _Broken(Fault.NUMBER)
    return _as_stored(number, column)


def _long(data: _Input, column: Column) -> int | bytes:
    return _as_stored(data.long(), column)


def _as_stored(number: int, column: Column) -> int | bytes:
    packer = {ColumnKind.FLOAT: _FLOAT, ColumnKind.DOUBLE: _DOUBLE}.get(column.kind)
    return packer.pack(float(number)) if packer else number


def _float(data: _Input, column: Column) -> bytes:
    value = data.take(4)
    return value if column.kind is ColumnKind.FLOAT else _DOUBLE.pack(*_FLOAT.unpack(value))


def _double(data: _Input, column: Column) -> bytes:
    return data.take(8)


def _bytes(data: _Input, column: Column) -> bytes:
    return data.bytes()


def _text(value: bytes) -> bytes:
    try:
        value.decode()
    except UnicodeDecodeError:
        raise _Broken(Fault.TEXT) from None
    return value


def _string(data: _Input, column: Column) -> bytes:
    return _text(data.bytes())


def _decimal(data: _Input, column: Column) -> bytes:
    """Return the 16 bytes of an Arrow decimal; Avro's are big-endian, and as few as the value needs, or more."""
    number = int.from_bytes(data.bytes(), "big", signed=True)
    if abs(number) >= 10**column.precision:
        raise _Broken(Fault.DECIMAL)
    return number.to_bytes(16, "little", signed=True)


_READ: dict[Op, Callable[[_Input, Column], Any]] = {
    Op.BOOLEAN: _boolean,
    Op.INT: _int,
    Op.LONG: _long,
    Op.FLOAT: _float,
    Op.DOUBLE: _double,
    Op.BYTES: _bytes,
    Op.STRING: _string,
    Op.DECIMAL: _decimal,
}
_NUMBERS = {ColumnKind.BIT: pa.bool_(), ColumnKind.INT32: pa.int32(), ColumnKind.INT64: pa.int64()}
_WIDTHS = {ColumnKind.FLOAT: 4, ColumnKind.DOUBLE: 8, ColumnKind.DECIMAL: 16}


def _array(stores: Sequence[_Store], number: int) -> pa.Array:
    store = stores[number]
    column, rows = store.column, len(store.valid)
    children = [_array(stores, child) for child in column.children]
    if column.kind in _NUMBERS:
        return pa.array(store.values, _NUMBERS[column.kind]).view(column.type)
    if column.kind is ColumnKind.BYTES:
        return pa.array(store.values, pa.binary()).view(column.type)
    buffers = [None if all(store.valid) else pa.array(store.valid, pa.bool_()).buffers()[1]]
    if column.kind in _WIDTHS:
        absent = bytes(_WIDTHS[column.kind])
        buffers.append(pa.py_buffer(b"".join(value or absent for value in store.values)))
    elif column.kind in (ColumnKind.LIST, ColumnKind.MAP):
        ends = [0]
        for length in store.lengths:
            ends.append(ends[-1] + length)
        buffers.append(pa.array(ends, pa.int32()).buffers()[1])
    if column.kind is ColumnKind.MAP:
        children = [
            pa.StructArray.from_arrays(children, fields=[column.type.key_field, column.type.item_field])
        ]
    return pa.Array.from_buffers(column.type, rows, buffers, store.valid.count(False), children=children)
