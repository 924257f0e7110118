"""COPY's text format and binary format become Insert messages, in C and in Python; `pgoutput` decodes them."""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Collection

import pytest

from cdcd.errors import ProtocolError
from cdcd.model import RowBatch
from cdcd.pgoutput.decode import decode
from cdcd.pgoutput.messages import NULL, UNCHANGED, Insert, TupleColumn, TupleData, binary, text
from cdcd.snapshot.copy_rows import CopyRows, CopyRowsInPython

LSN = 0x1_0000_0010
FORMS = pytest.mark.parametrize(
    "rows_of", dict.fromkeys((CopyRows, CopyRowsInPython)), ids=lambda c: c.__name__
)
"""The implementation in use, and the fallback."""


def payload(rows_of: type[CopyRowsInPython], line: bytes, columns: int) -> bytes:
    rows = rows_of(7, columns, LSN)
    rows.feed(line + b"\n")
    taken = rows.take()
    assert taken is not None
    batch, last_at = taken
    length, lsn = struct.unpack_from(">IQ", batch.frames)
    assert (lsn, last_at, length) == (LSN, 0, len(batch.frames) - 12)
    return batch.frames[12:]


def values(rows_of: type[CopyRowsInPython], line: bytes, columns: int = 1) -> list[bytes | None]:
    message = decode(payload(rows_of, line, columns), in_stream=False, protocol_version=4)
    assert isinstance(message, Insert)
    assert message.relid == 7
    return [None if column == NULL else column.value for column in message.new.columns]


@FORMS
@pytest.mark.parametrize(
    ("line", "value"),
    [
        (rb"plain", b"plain"),
        (rb"", b""),
        (rb"\N", None),
        (rb"\\N", rb"\N"),
        (rb"\\\\N", rb"\\N"),
        (rb"\b", b"\b"),
        (rb"\f", b"\f"),
        (rb"\n", b"\n"),
        (rb"\r", b"\r"),
        (rb"\t", b"\t"),
        (rb"\v", b"\v"),
        (rb"\\", b"\\"),
        (rb"\\t", rb"\t"),
        (rb"\\\t", b"\\\t"),
        (rb"a\nb\tc\\d", b"a\nb\tc\\d"),
        (rb"\\.", rb"\."),
        (b"\x01\x7f", b"\x01\x7f"),
        ("grüße 🐘".encode(), "grüße 🐘".encode()),
    ],
)
def test_a_value_is_what_postgresql_wrote(
    rows_of: type[CopyRowsInPython], line: bytes, value: bytes | None
) -> None:
    assert values(rows_of, line) == [value]


@FORMS
def test_columns_stay_in_their_places(rows_of: type[CopyRowsInPython]) -> None:
    assert values(rows_of, rb"1" + b"\t" + rb"\N" + b"\t\t" + rb"a\tb", 4) == [b"1", None, b"", b"a\tb"]


@FORMS
def test_a_row_of_nothing_but_empty_and_null(rows_of: type[CopyRowsInPython]) -> None:
    assert values(rows_of, b"\t\\N\t", 3) == [b"", None, b""]


@FORMS
def test_a_table_without_columns_has_rows(rows_of: type[CopyRowsInPython]) -> None:
    assert values(rows_of, b"", 0) == []


@FORMS
@pytest.mark.parametrize(
    ("line", "columns"), [(b"1", 2), (b"1\t2", 1), (b"1\t2\t3", 2), (b"", 2), (b"1", 0), (b"\t", 0)]
)
def test_a_row_of_another_width_is_an_error_without_its_values(
    rows_of: type[CopyRowsInPython], line: bytes, columns: int
) -> None:
    with pytest.raises(ProtocolError) as caught:
        payload(rows_of, line, columns)
    assert "relid=7" in str(caught.value)


@FORMS
@pytest.mark.parametrize("line", [rb"\x", rb"\.", rb"a\1", rb"\N1", rb"1\N", b"abc\\", b"a\\\\\\"])
def test_an_escape_that_copy_does_not_write_is_an_error(rows_of: type[CopyRowsInPython], line: bytes) -> None:
    with pytest.raises(ProtocolError):
        payload(rows_of, line, 1)


@FORMS
def test_a_line_without_its_newline_is_an_error(rows_of: type[CopyRowsInPython]) -> None:
    rows = rows_of(7, 1, LSN)
    rows.feed(b"1")
    with pytest.raises(ProtocolError):
        rows.take()


@FORMS
def test_a_batch_is_one_frame_per_line_at_the_snapshots_lsn(rows_of: type[CopyRowsInPython]) -> None:
    rows = rows_of(7, 2, LSN)
    assert rows.take() is None
    rows.feed(b"1\tx\n")
    rows.feed(b"2\t\\N\n")
    assert rows.size_bytes == 9
    taken = rows.take()
    assert taken is not None
    batch, last_at = taken
    assert (batch.count, batch.xid, rows.size_bytes, rows.take()) == (2, None, 0, None)
    rest, seen, at = batch.frames, [], []
    while rest:
        length, lsn = struct.unpack_from(">IQ", rest)
        at.append(len(batch.frames) - len(rest))
        seen.append((lsn, decode(rest[12 : 12 + length], in_stream=False, protocol_version=4)))
        rest = rest[12 + length :]
    assert last_at == at[-1]
    assert seen == [
        (LSN, Insert(7, TupleData((text(b"1"), text(b"x"))))),
        (LSN, Insert(7, TupleData((text(b"2"), NULL)))),
    ]


class Libpq:
    """The two functions of libpq that a copy calls, which give it these lines."""

    def __init__(self, lines: list[bytes], end: int) -> None:
        self._lines, self._end = iter(lines), end
        self.given: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self.get = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int
        )(self._get)
        self.free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._free)

    def _get(self, _connection: int, where: ctypes._Pointer[ctypes.c_void_p], is_async: int) -> int:
        assert not is_async
        line = next(self._lines, None)
        if line is None:
            return self._end
        buffer = ctypes.create_string_buffer(line, len(line))
        self.given[ctypes.addressof(buffer)] = buffer
        where[0] = ctypes.c_void_p(ctypes.addressof(buffer))
        return len(line)

    def _free(self, address: int) -> None:
        del self.given[address]


def read_all(
    rows_of: type[CopyRowsInPython],
    lines: list[bytes],
    columns: int,
    max_bytes: int,
    end: int,
    is_binary: bool = False,
    omitted: Collection[int] = (),
) -> list[RowBatch | int | str]:
    libpq, rows = Libpq(lines, end), rows_of(7, columns, LSN, is_binary, omitted)
    seen: list[RowBatch | int | str] = []
    try:
        while True:
            ended = rows.read(libpq.get, libpq.free, 1, max_bytes)
            if (taken := rows.take()) is not None:
                seen.append(taken[0])
            if ended:
                return [*seen, ended]
    except ProtocolError as error:
        return [str(error)]
    finally:
        assert not libpq.given, "a buffer of libpq is not freed"


def with_omitted(chance: random.Random, columns: int) -> tuple[int, frozenset[int]]:
    """Return the width of a table of which a copy has some columns, and the positions of the others."""
    width = columns + chance.choice((0, 0, 1, 3))
    return width, frozenset(chance.sample(range(width), width - columns))


@FORMS
@pytest.mark.parametrize(
    ("line", "values"), [(b"1\tx\n", (text(b"1"), text(b"x"))), (b"\\N\t\n", (NULL, text(b"")))]
)
def test_a_column_that_the_copy_omits_is_an_unchanged_value(
    rows_of: type[CopyRowsInPython], line: bytes, values: tuple[TupleColumn, TupleColumn]
) -> None:
    rows = rows_of(7, 5, LSN, False, (0, 2, 4))
    rows.feed(line)
    taken = rows.take()
    assert taken is not None
    expected = (UNCHANGED, values[0], UNCHANGED, values[1], UNCHANGED)
    assert decode(taken[0].frames[12:], in_stream=False, protocol_version=4) == Insert(7, TupleData(expected))


@FORMS
def test_a_copy_that_omits_every_column_has_rows(rows_of: type[CopyRowsInPython]) -> None:
    for is_binary, messages in ((False, [b"\n"]), (True, [HEADER + binary_row(), TRAILER])):
        batch, _ = read_all(rows_of, messages, 1, 1 << 20, -1, is_binary, (0,))
        assert isinstance(batch, RowBatch)
        message = decode(batch.frames[12:], in_stream=False, protocol_version=4)
        assert message == Insert(7, TupleData((UNCHANGED,)))


@FORMS
@pytest.mark.parametrize("line", [b"1\n", b"1\t2\t3\n", b"1\t2\t3\t4\n"])
def test_a_row_with_another_number_of_copied_columns_is_an_error(
    rows_of: type[CopyRowsInPython], line: bytes
) -> None:
    (error,) = read_all(rows_of, [line], 3, 1 << 20, -1, omitted=(1,))
    assert "number of columns" in str(error)


@pytest.mark.parametrize("seed", range(40))
def test_the_extension_reads_as_its_fallback(seed: int) -> None:
    chance = random.Random(seed)
    columns, is_odd = chance.randrange(5), chance.random() < 0.3
    letters = [b"a", b"\xff", b"", *(b"\\" + one for one in (b"n", b"t", b"\\", b"N"))]
    pieces = [*letters, b"\t", b"\n", b"\\x", b"\\"] if is_odd else letters[:-1]

    def value() -> bytes:
        return b"\\N" if chance.random() < 0.2 else b"".join(chance.choices(pieces, k=chance.randrange(60)))

    lines = [b"\t".join(value() for _ in range(columns)) + b"\n" for _ in range(chance.randrange(200))]
    width, omitted = with_omitted(chance, columns)
    arguments = lines, width, chance.choice((1, 100, 1 << 20)), chance.choice((-1, -2)), False, omitted
    assert read_all(CopyRows, *arguments) == read_all(CopyRowsInPython, *arguments)


HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
TRAILER = b"\xff\xff"


def binary_row(*values: bytes | None) -> bytes:
    """A row in COPY's binary format."""
    parts = [b"\xff\xff\xff\xff" if v is None else len(v).to_bytes(4, "big") + v for v in values]
    return len(values).to_bytes(2, "big") + b"".join(parts)


@FORMS
def test_a_binary_copy_becomes_binary_values(rows_of: type[CopyRowsInPython]) -> None:
    messages = [HEADER + binary_row(b"\x00\x01", None), binary_row(b"", b"\xff" * 70_000), TRAILER]
    batch, ended = read_all(rows_of, messages, 2, 1 << 20, -1, is_binary=True)
    assert isinstance(batch, RowBatch)
    rest, seen = batch.frames, []
    while rest:
        length, _ = struct.unpack_from(">IQ", rest)
        seen.append(decode(rest[12 : 12 + length], in_stream=False, protocol_version=4))
        rest = rest[12 + length :]
    assert seen == [
        Insert(7, TupleData((binary(b"\x00\x01"), NULL))),
        Insert(7, TupleData((binary(b""), binary(b"\xff" * 70_000)))),
    ]
    assert ended == -1


@FORMS
@pytest.mark.parametrize("columns", [0, 3])
def test_a_binary_copy_without_rows(rows_of: type[CopyRowsInPython], columns: int) -> None:
    assert read_all(rows_of, [HEADER + TRAILER], columns, 1, -1, is_binary=True) == [-1]
    assert read_all(rows_of, [], columns, 100, -2, is_binary=True) == [-2]


@FORMS
@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([binary_row(b"1")], "header"),
        ([HEADER[:-1]], "header"),
        ([HEADER[:11] + b"\x00\x01\x00\x00" + HEADER[15:] + binary_row(b"1")], "header"),
        ([HEADER], "columns"),
        ([HEADER + binary_row(b"1"), HEADER + binary_row(b"1")], "columns"),
        ([HEADER + binary_row(b"1", b"2")], "columns"),
        ([HEADER + binary_row(b"1"), b"\x00"], "columns"),
        ([HEADER + binary_row(b"12")[:-1]], "length"),
        ([HEADER + binary_row(b"12")[:4]], "length"),
        ([HEADER + b"\x00\x01\xff\xff\xff\xfe"], "length"),
        ([HEADER + b"\x00\x01\x7f\xff\xff\xff12"], "length"),
        ([HEADER + binary_row(b"12") + b"3"], "longer"),
        ([HEADER + binary_row(b"12") + TRAILER], "longer"),
    ],
)
def test_a_malformed_binary_copy_is_an_error_without_its_values(
    rows_of: type[CopyRowsInPython], messages: list[bytes], message: str
) -> None:
    (error,) = read_all(rows_of, messages, 1, 1 << 20, -1, is_binary=True)
    assert message in str(error)
    assert "relid=7" in str(error)


@pytest.mark.parametrize("seed", range(40))
def test_the_extension_reads_binary_as_its_fallback(seed: int) -> None:
    chance = random.Random(seed)
    columns, is_odd = chance.randrange(5), chance.random() < 0.5

    def row() -> bytes:
        found = binary_row(
            *(
                None if chance.random() < 0.2 else chance.randbytes(chance.randrange(60))
                for _ in range(columns)
            )
        )
        if is_odd and chance.random() < 0.05:
            at = chance.randrange(len(found))
            found = found[:at] + chance.choice((b"", b"\x00", b"\xff", b"\x7f\xff")) + found[at + 1 :]
        return found

    messages = [row() for _ in range(chance.randrange(1, 200))]
    messages = [HEADER + messages[0], *messages[1:], TRAILER]
    width, omitted = with_omitted(chance, columns)
    arguments = messages, width, chance.choice((1, 100, 1 << 20)), chance.choice((-1, -2)), True, omitted
    assert read_all(CopyRows, *arguments) == read_all(CopyRowsInPython, *arguments)
