"""The texts of values outside their column's type, in Arrow: select, remove and rename the entries of `special`.

In: `special` of a batch (a map, null without entries) and `unchanged` (a list), with Avro names of columns.
Out: arrays of the same length.
Invariant: an entry that is not selected stays. A batch without entries costs nothing that depends on its rows.
Must not: create a Python object for an entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

_SUFFIXES = ("", ".omitted_bytes", ".not_logged")
_IMAGES = ("before", "after")


class Entries:
    """The entries of a batch: `rows` has the row of each entry."""

    def __init__(self, special: pa.MapArray) -> None:
        self._special = special
        self.keys, self.texts = special.keys, special.items
        self.rows = pc.list_parent_indices(pa.ListArray.from_arrays(special.offsets, self.keys))

    def __len__(self) -> int:
        return len(self.keys)

    def first(self, keys: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return the rows that have an entry of these keys, and the key of each entry."""
        is_one = pc.is_in(self.keys, value_set=keys)
        return self.rows.filter(is_one), self.keys.filter(is_one)

    def texts_of(self, key: str) -> pa.StringArray:
        """Return the text of this key in each row, null in a row without it."""
        is_one = pc.equal(self.keys, key)
        numbers = pa.array(range(len(self._special)), pa.int64())
        places = pc.index_in(numbers, value_set=self.rows.filter(is_one).cast(pa.int64()))
        return self.texts.filter(is_one).take(places)

    def without(self, keys: pa.Array) -> pa.MapArray:
        """Return the map without the entries of these keys; null in a row whose last entry is gone."""
        stays = pc.invert(pc.is_in(self.keys, value_set=keys))
        ends = pa.concat_arrays(
            [pa.array([0], pa.int32()), pc.cumulative_sum(stays.cast(pa.int32())).cast(pa.int32())]
        )
        offsets = ends.take(self._special.offsets)
        is_some = pc.greater(pc.subtract(offsets[1:], offsets[:-1]), 0)
        entries = pa.StructArray.from_arrays(
            [self.keys.filter(stays), self.texts.filter(stays)], fields=_entry_fields(self._special.type)
        )
        return pa.Array.from_buffers(
            self._special.type,
            len(self._special),
            [is_some.buffers()[1], offsets.buffers()[1]],
            children=[entries],
        )


def _entry_fields(type_: pa.DataType) -> list[pa.Field]:
    return [type_.key_field, type_.item_field]


class Renames:
    """Avro names to PostgreSQL's, in `unchanged` and in the keys of `special`."""

    def __init__(self, names: Mapping[str, str]) -> None:
        in_keys = {
            f"{image}.{old}{suffix}": f"{image}.{new}{suffix}"
            for old, new in names.items()
            for image in _IMAGES
            for suffix in _SUFFIXES
        }
        self._names, self._keys = _pair(names), _pair(in_keys)
        self.is_empty = not names

    def unchanged(self, lists: pa.ListArray) -> pa.ListArray:
        """Return the lists with PostgreSQL's names."""
        if self.is_empty or not len(lists.values):
            return lists
        return pa.Array.from_buffers(
            lists.type, len(lists), lists.buffers()[:2], children=[_replaced(lists.values, self._names)]
        )

    def special(self, special: pa.MapArray) -> pa.MapArray:
        """Return the map with PostgreSQL's names in its keys."""
        if self.is_empty or not len(special.keys):
            return special
        keys = _replaced(special.keys, self._keys)
        entries = pa.StructArray.from_arrays([keys, special.items], fields=_entry_fields(special.type))
        return pa.Array.from_buffers(special.type, len(special), special.buffers()[:2], children=[entries])


_Pair = tuple[pa.Array, pa.Array]


def _pair(names: Mapping[str, str]) -> _Pair:
    return text_array(names), text_array(names.values())


def text_array(texts: Iterable[str]) -> pa.StringArray:
    """Return the texts as an array."""
    return pa.array(list(texts), pa.string())


def _replaced(texts: pa.StringArray, pair: _Pair) -> pa.StringArray:
    olds, news = pair
    return pc.coalesce(news.take(pc.index_in(texts, value_set=olds)), texts)
