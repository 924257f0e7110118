"""Malformed bytes raise only the errors in `UNREADABLE`, and need memory proportional to their length.

tests/property/test_binary_format.py tries any bytes, tests/integration/test_binary_formats.py compares well-formed
bytes with PostgreSQL's own text.
"""

from __future__ import annotations

import struct
import tracemalloc

import pytest

from cdcd.model import Attribute, PgType
from cdcd.schema.binary_format.cut import TextOfBinary
from cdcd.schema.binary_format.table import BUILT_IN, OF_EXTENSIONS, text_of_binary
from cdcd.schema.codec import UNREADABLE

TYPES = {
    entry.oid: entry
    for entry in (
        PgType(1, "public", "held", "c", attributes=(Attribute("a", 25, -1), Attribute("b", 2, -1))),
        PgType(2, "public", "_text", "b", element_oid=25),
        PgType(3, "public", "spanning", "r", subtype_oid=25),
        PgType(4, "public", "spannings", "m", subtype_oid=3),
        PgType(5, "public", "_held", "b", element_oid=1),
        PgType(6, "public", "endless", "d", base_oid=6),
        PgType(7, "public", "unknown", "b"),
        PgType(8, "public", "_unknown", "b", element_oid=7),
        PgType(9, "public", "mood", "e"),
    )
}


def _function(oid: int) -> TextOfBinary:
    found = text_of_binary(oid, TYPES)
    assert found is not None
    return found


FUNCTIONS: dict[str, TextOfBinary] = {
    **{str(oid): function for oid, function in BUILT_IN.items()},
    **{"/".join(name): function for name, function in OF_EXTENSIONS.items()},
    **{TYPES[oid].name: _function(oid) for oid in (1, 2, 3, 4, 5, 9)},
}


def _value(raw: bytes) -> bytes:
    return struct.pack(">i", len(raw)) + raw


_ARRAY = struct.pack(">iiI", 2, 1, 25) + struct.pack(">iiii", 1, 1, 2, -3) + _value(b"a b") + b"\xff" * 4
_HELD = struct.pack(">iI", 2, 25) + _value(b'"x') + struct.pack(">I", 2) + _value(_ARRAY)
_SPAN = b"\x02" + _value(b"a,") + _value(b"")
SAMPLES = {
    "22": struct.pack(">iiIii", 1, 0, 21, 2, 0) + _value(b"\0\1") + _value(b"\0\2"),
    "602": b"\1" + struct.pack(">idd", 1, 1.5, 2),
    "604": struct.pack(">idd", 1, 1.5, 2),
    "650": b"\2\x08\1\4\x0a\0\0\0",
    "869": b"\3\x80\0\x10" + bytes(10) + b"\xff\xff\1\2\3\4",
    "1560": struct.pack(">i", 9) + b"\xaa\x80",
    "1700": struct.pack(">HhHHHH", 2, 0, 0x4000, 3, 17, 5000),
    "3614": struct.pack(">i", 1) + b"cat\0" + struct.pack(">HHH", 2, 3 | 3 << 14, 5),
    "3615": struct.pack(">i", 3) + b"\2\4\0\2" + b"\1\x0a\1b'\0" + b"\1\0\0a\0",
    "5038": struct.pack(">iQQQ", 1, 5, 9, 7),
    "cube/cube": struct.pack(">Idd", 0x8000_0002, 1, 2),
    "hstore/hstore": struct.pack(">i", 1) + _value(b"k") + b"\xff" * 4,
    "vector/sparsevec": struct.pack(">iiiif", 5, 1, 0, 2, 0.5),
    "held": _HELD,
    "_text": _ARRAY,
    "spanning": _SPAN,
    "spannings": struct.pack(">i", 1) + _value(_SPAN),
    "_held": struct.pack(">iiIii", 1, 0, 1, 1, 1) + _value(_HELD),
}
TEXTS = {
    "22": b"1 2",
    "602": b"((1.5,2))",
    "604": b"((1.5,2))",
    "650": b"10.0.0.0/8",
    "869": b"::ffff:1.2.3.4",
    "1560": b"101010101",
    "1700": b"-17.500",
    "3614": b"'cat':3A,5",
    "3615": b"'a' <2> 'b''':*AC",
    "5038": b"5:9:7",
    "cube/cube": b"(1, 2)",
    "hstore/hstore": b'"k"=>NULL',
    "vector/sparsevec": b"{3:0.5}/5",
    "held": b'("""x","[1:1][-3:-2]={{""a b"",NULL}}")',
    "_text": b'[1:1][-3:-2]={{"a b",NULL}}',
    "spanning": b'["a,","")',
    "spannings": b'{["a,","")}',
    "_held": b'{"(\\"\\"\\"x\\",\\"[1:1][-3:-2]={{\\"\\"a b\\"\\",NULL}}\\")"}',
}


def text_or_refusal(function: TextOfBinary, raw: bytes) -> bytes | None:
    try:
        return function(raw)
    except UNREADABLE:
        return None


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_and_nothing_that_is_cut_or_longer(name: str) -> None:
    function, raw = FUNCTIONS[name], SAMPLES[name]
    assert function(raw) == TEXTS[name]
    assert all(text_or_refusal(function, raw[:size]) is None for size in range(len(raw)))
    assert text_or_refusal(function, raw + b"\0") is None


@pytest.mark.parametrize(
    "head", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\1\0\0\0\0\0\0\0\x19\x7f\xff\xff\xff"]
)
def test_a_length_that_is_not_there_allocates_nothing(head: bytes) -> None:
    peak_bytes = {}
    for name, function in FUNCTIONS.items():
        tracemalloc.start()
        text_or_refusal(function, head + bytes(40))
        peak_bytes[name] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert {name: peak for name, peak in peak_bytes.items() if peak >= 1_000_000} == {}
    assert len(peak_bytes) > 50


def test_a_query_as_deep_as_it_is_long_needs_no_recursion() -> None:
    depth = 100_000
    query = FUNCTIONS["3615"]
    left = struct.pack(">i", 2 * depth + 1) + b"\2\2\1\0\0b\0" * depth + b"\1\0\0a\0"
    assert query(left) == b"'a'" + b" & 'b'" * depth
    nots = struct.pack(">i", depth + 1) + b"\2\1" * depth + b"\1\0\0a\0"
    assert query(nots) == b"!" * depth + b"'a'"


def test_what_is_made_of_the_unknown_is_unknown() -> None:
    assert text_of_binary(7, TYPES) is None
    assert text_of_binary(8, TYPES) is None
    assert text_of_binary(99, TYPES) is None
    assert text_of_binary(6, TYPES) is None  # an array of itself: nested more deeply than is read
