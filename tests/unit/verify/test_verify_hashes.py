"""The hashes of keys and values: the extension is the fallback's, and a value's hash depends on its place."""

from __future__ import annotations

import random
import struct

import pytest

from cdcd.extensions import extension
from cdcd.verify.hashes import (
    MISSING,
    UNCHANGED,
    as_bigint,
    column_constant,
    hash64,
    key_bytes,
    row_hashes_in_python,
)


def test_the_extension_returns_what_the_fallback_returns() -> None:
    compiled = extension("cdcd.verify._hashes")
    if compiled is None:  # the fallback alone
        return
    draw = random.Random(7)
    for size in range(60):
        data, seed = draw.randbytes(size), draw.getrandbits(64)
        assert compiled.hash64(data, seed) == hash64(data, seed)
        constants = [draw.getrandbits(64) for _ in range(5)]
        texts = [None, MISSING, UNCHANGED, data, b""]
        assert compiled.row_hashes(seed, constants, texts) == row_hashes_in_python(seed, constants, texts)


def test_a_value_has_another_hash_in_another_row_and_in_another_column() -> None:
    first, second = column_constant(1), column_constant(2)
    hashes = struct.unpack(">2Q", row_hashes_in_python(5, [first, second], [b"x", b"x"]))
    other_row = struct.unpack(">2Q", row_hashes_in_python(6, [first, second], [b"x", b"x"]))
    assert len({*hashes, *other_row}) == 4


def test_null_is_zero_and_the_empty_text_is_not() -> None:
    assert struct.unpack(">2Q", row_hashes_in_python(5, [1, 2], [None, b""]))[0] == 0
    assert struct.unpack(">2Q", row_hashes_in_python(5, [1, 2], [None, b""]))[1] != 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([b"a", b"bc"], [b"ab", b"c"]),
        ([b"a", None], [b"a", b""]),
        ([None, b"a"], [b"a", None]),
        ([b"1:a", b""], [b"", b"1:a"]),
    ],
)
def test_two_keys_have_two_texts(one: list[bytes | None], other: list[bytes | None]) -> None:
    assert key_bytes(one) != key_bytes(other)


def test_the_key_of_one_column_is_its_text() -> None:
    assert key_bytes([b"4711"]) == b"4711"


@pytest.mark.parametrize("number", [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_a_bigint_has_the_same_bits(number: int) -> None:
    assert struct.pack(">q", as_bigint(number)) == struct.pack(">Q", number)
