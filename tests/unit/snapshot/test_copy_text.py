"""COPY's text format becomes Insert messages; the tests decode them with the package `pgoutput`."""

from __future__ import annotations

import struct

import pytest

from cdcd.errors import ProtocolError
from cdcd.pgoutput.decode import decode
from cdcd.pgoutput.messages import NULL, Insert, TupleData, text
from cdcd.snapshot.copy_text import insert_payload, row_batch_of


def values(line: bytes, columns: int = 1) -> list[bytes | None]:
    message = decode(insert_payload(7, line, columns), in_stream=False, protocol_version=4)
    assert isinstance(message, Insert)
    assert message.relid == 7
    return [None if column == NULL else column.value for column in message.new.columns]


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
def test_a_value_is_what_postgresql_wrote(line: bytes, value: bytes | None) -> None:
    assert values(line) == [value]


def test_columns_stay_in_their_places() -> None:
    assert values(rb"1" + b"\t" + rb"\N" + b"\t\t" + rb"a\tb", 4) == [b"1", None, b"", b"a\tb"]


def test_a_row_of_nothing_but_empty_and_null() -> None:
    assert values(b"\t\\N\t", 3) == [b"", None, b""]


def test_a_table_without_columns_has_rows() -> None:
    assert values(b"", 0) == []


@pytest.mark.parametrize(("line", "columns"), [(b"1", 2), (b"1\t2", 1), (b"1\t2\t3", 2), (b"", 2)])
def test_a_row_of_another_width_is_an_error_without_its_values(line: bytes, columns: int) -> None:
    with pytest.raises(ProtocolError) as caught:
        insert_payload(7, line, columns)
    assert "relid=7" in str(caught.value)


@pytest.mark.parametrize("line", [rb"\x", rb"\.", rb"a\1", rb"\N1", rb"1\N", b"abc\\", b"a\\\\\\"])
def test_an_escape_that_copy_does_not_write_is_an_error(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        insert_payload(7, line, 1)


def test_a_run_is_one_frame_per_line_at_the_snapshots_lsn() -> None:
    run = row_batch_of(7, [b"1\tx", b"2\t\\N"], 2, 0x1_0000_0010)
    assert (run.count, run.xid) == (2, None)
    rest, seen = run.frames, []
    while rest:
        length, lsn = struct.unpack_from(">IQ", rest)
        seen.append((lsn, decode(rest[12 : 12 + length], in_stream=False, protocol_version=4)))
        rest = rest[12 + length :]
    assert seen == [
        (0x1_0000_0010, Insert(7, TupleData((text(b"1"), text(b"x"))))),
        (0x1_0000_0010, Insert(7, TupleData((text(b"2"), NULL)))),
    ]
