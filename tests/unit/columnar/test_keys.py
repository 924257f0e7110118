"""Keys of many rows: the C extension and the functions in Python, which are its specification."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.columnar import keys as module
from cdcd.columnar.keys import (
    crc32s,
    crc32s_in_python,
    hashes,
    last_places,
    last_places_in_python,
    merged_places,
    merged_places_in_python,
)
from cdcd.extensions import extension

FEW = st.lists(
    st.binary(max_size=3) | st.sampled_from([b"", b"\0", b"a" * 40, b"a" * 40 + b"\0", b"\xff" * 13])
)
OF_BOTH: list[Any] = [
    pytest.param(crc32s, last_places, merged_places, id="in use"),
    pytest.param(crc32s_in_python, last_places_in_python, merged_places_in_python, id="python"),
]
needs_extension = pytest.mark.skipif(extension("cdcd.columnar._keys") is None, reason="the fallback runs")
both = pytest.mark.parametrize(("crcs", "last", "merged"), OF_BOTH)
Function = Callable[[Any], Any]


def _array(keys: list[bytes]) -> pa.Array:
    """Return a slice of a longer array, so that the keys begin within its buffers."""
    return pa.array([b"before", *keys, b"after"], pa.binary()).slice(1, len(keys))


@both
@given(keys=FEW)
def test_the_crcs_are_those_of_zlib(
    crcs: Function, last: Function, merged: Function, keys: list[bytes]
) -> None:
    assert crcs(_array(keys)).tolist() == [zlib.crc32(key) for key in keys]


@both
@given(keys=FEW)
def test_the_last_of_equal_keys_remain_in_their_order(
    crcs: Function, last: Function, merged: Function, keys: list[bytes]
) -> None:
    assert last(_array(keys)).tolist() == [n for n, key in enumerate(keys) if key not in keys[n + 1 :]]


@both
@given(parts=st.lists(FEW, max_size=9))
def test_sorted_parts_become_one_with_the_key_of_the_last_part(
    crcs: Function, last: Function, merged: Function, parts: list[list[bytes]]
) -> None:
    ordered = [sorted(part) for part in parts]
    keys = [key for part in ordered for key in part]
    places = merged(list(map(_array, ordered))).tolist()
    assert [keys[place] for place in places] == sorted(set(keys))
    assert all(keys[place] not in keys[place + 1 :] for place in places)


@given(keys=FEW)
def test_equal_keys_have_equal_hashes_and_others_have_others(keys: list[bytes]) -> None:
    found = dict(zip(keys, hashes(_array(keys)).tolist(), strict=True))
    assert [found[key] for key in keys] == hashes(_array(keys)).tolist()
    assert len(set(found.values())) == len(found)


@needs_extension
def test_many_keys_are_what_they_are_in_python() -> None:
    """More than one slot of the table is in use for many of them."""
    keys = pa.array([str(number * number % 70_001).encode() for number in range(100_000)], pa.binary())
    assert np.array_equal(last_places(keys), last_places_in_python(keys))
    parts = [pa.array(sorted(keys[start::7].to_pylist()), pa.binary()) for start in range(7)]
    assert np.array_equal(merged_places(parts), merged_places_in_python(parts))


def test_keys_of_another_type_and_nulls_are_refused() -> None:
    with pytest.raises(TypeError, match="binary"):
        module._buffers(pa.array(["text"]))
    with pytest.raises(ValueError, match="null"):
        module._buffers(pa.array([b"a", None]))


@needs_extension
@pytest.mark.parametrize(
    ("offsets", "data"),
    [([0, 3], b"ab"), ([-1, 1], b"ab"), ([2, 1], b"ab"), ([0, 9, 2], b"ab"), ([], b"")],
    ids=["beyond the data", "before the data", "descending", "one beyond the data", "no offset"],
)
def test_offsets_outside_the_data_are_refused(offsets: list[int], data: bytes) -> None:
    compiled = extension("cdcd.columnar._keys")
    assert compiled is not None
    held = np.array(offsets, np.int32), np.frombuffer(data, np.uint8)
    into = np.zeros(max(0, len(offsets) - 1), np.int64)
    for run in (
        lambda: compiled.crc32s(*held, into.astype(np.uint32)),
        lambda: compiled.last_places(*held, 1, into),
        lambda: compiled.hashes(*held, 1, into),
        lambda: compiled.merged_places([held], into),
    ):
        with pytest.raises(ValueError, match="offsets"):
            run()
