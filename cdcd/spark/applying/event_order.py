"""Order and equality of Arrow values of any type, as integers and booleans of numpy.

In: Arrow columns.  Out: a number for each row: equal rows have equal numbers, and a greater row has a greater one.
Invariant: a struct is ordered by its fields from the first to the last, as in Spark and PostgreSQL. NaN equals NaN.
Must not: make a Python object for a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["dense_ranks", "differs", "has_null", "is_orderable", "leaves"]

Column: TypeAlias = pa.Array | pa.ChunkedArray
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_UNORDERED = (pa.types.is_list, pa.types.is_large_list, pa.types.is_map, pa.types.is_null)


def is_orderable(type_: pa.DataType) -> bool:
    """Return whether values of a type have an order: no lists, no maps, and no struct with such a field."""
    if pa.types.is_struct(type_):
        return type_.num_fields > 0 and all(is_orderable(field.type) for field in type_)
    return not any(test(type_) for test in _UNORDERED)


def leaves(column: Column) -> Iterator[pa.Array]:
    """Yield a column, or the fields of a struct, also of those inside it; null where the struct is null."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not pa.types.is_struct(whole.type):
        yield whole
        return
    for field in whole.flatten():
        yield from leaves(field)


def has_null(column: Column) -> bool:
    """Return whether a value is null, or a field of it."""
    return any(leaf.null_count for leaf in leaves(column))


def dense_ranks(columns: Iterable[Column]) -> Numbers:
    """Return the place of each row among the distinct rows of these columns, from 0 on; null is the greatest."""
    ranks: Numbers | None = None
    for column in columns:
        for leaf in leaves(column):
            own = _ranks(leaf)
            ranks = own if ranks is None else _dense(ranks * (own.max(initial=0) + 1) + own)
    if ranks is None:
        raise ValueError("there is no column")
    return ranks


def _ranks(leaf: pa.Array) -> Numbers:
    if pa.types.is_floating(leaf.type):
        leaf = pc.add(leaf, pa.scalar(0.0, leaf.type))  # -0.0 equals 0.0
        leaf = pc.if_else(pc.is_nan(leaf), pa.scalar(float("nan"), leaf.type), leaf)  # NaN has many bits
    encoded = leaf.dictionary_encode(null_encoding="encode")
    places = np.empty(len(encoded.dictionary), np.int64)
    places[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(places))
    found: Numbers = places[encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)]
    return found


def _dense(numbers: Numbers) -> Numbers:
    return np.unique(numbers, return_inverse=True)[1].reshape(-1).astype(np.int64)


def differs(one: Column, other: Column) -> Flags:
    """Return whether the values of two columns of one type differ, row by row; null equals null."""
    first, second = _whole(one), _whole(other)
    if pa.types.is_null(first.type):
        return np.zeros(len(first), np.bool_)
    is_first, is_second = _flags(first.is_valid()), _flags(second.is_valid())
    found: Flags = is_first != is_second
    both = np.flatnonzero(is_first & is_second)
    found[both] = _valid_differ(first.take(pa.array(both)), second.take(pa.array(both)))
    return found


def _valid_differ(first: pa.Array, second: pa.Array) -> Flags:
    type_ = first.type
    if pa.types.is_struct(type_):
        return _any(
            len(first), [differs(a, b) for a, b in zip(first.flatten(), second.flatten(), strict=True)]
        )
    if pa.types.is_map(type_):
        as_list = pa.list_(pa.struct([pa.field("key", type_.key_type), pa.field("value", type_.item_type)]))
        return _lists_differ(*(_list_of_map(one, as_list) for one in (first, second)))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return _lists_differ(first, second)
    found = _flags(pc.not_equal(first, second))
    if pa.types.is_floating(type_):
        found &= ~(_flags(pc.is_nan(first)) & _flags(pc.is_nan(second)))
    return found


def _list_of_map(one: pa.MapArray, type_: pa.DataType) -> pa.Array:
    entries = pa.StructArray.from_arrays([one.keys, one.items], fields=list(type_.value_type))
    return pa.ListArray.from_arrays(one.offsets, entries)


def _lists_differ(first: Any, second: Any) -> Flags:
    lengths = [pc.list_value_length(one).to_numpy(zero_copy_only=False) for one in (first, second)]
    found: Flags = lengths[0] != lengths[1]
    same = pa.array(np.flatnonzero(~found))
    ours, theirs = first.take(same), second.take(same)
    different = differs(ours.flatten(), theirs.flatten())
    parents = pc.list_parent_indices(ours).to_numpy(zero_copy_only=False)
    found[same.to_numpy()[parents[different]]] = True
    return found


def _any(rows: int, found: Sequence[Flags]) -> Flags:
    joined: Flags = np.logical_or.reduce([np.zeros(rows, np.bool_), *found])
    return joined


def _whole(column: Column) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _flags(values: pa.Array) -> Flags:
    return np.asarray(values.to_numpy(zero_copy_only=False), np.bool_)
