"""The texts of values outside their column's type, in Arrow: select, remove and rename the entries of `special`.

In: `special` of a batch (a map, null without entries) and `unchanged` (a list), with Avro names of columns.
Out: arrays of the same length.
Invariant: an entry that is not selected stays, also one of a truncate or of a gap.
Must not: create a Python object for an entry, unless the entry is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from cdcd.columnar.program import avro_name

_SUFFIXES = ("", ".omitted_bytes", ".not_logged")
_IMAGES = ("before", "after")


def keys_of(row: Sequence[pa.Field], image: str) -> dict[str, str]:
    """Return the key in `special` of each column of an image, in their order, with PostgreSQL's name."""
    return {f"{image}.{avro_name(one)}": f"{image}.{one.name}" for one in row}


def renamed_keys(names: Mapping[str, str]) -> dict[str, str]:
    """Return the keys in `special` that have these Avro names of columns -> those with PostgreSQL's names."""
    return {
        f"{image}.{old}{suffix}": f"{image}.{new}{suffix}"
        for old, new in names.items()
        for image in _IMAGES
        for suffix in _SUFFIXES
    }


class SpecialTexts:
    """The entries of wanted columns among those of `special`, by image: `after.<column>`, `before.<column>`."""

    def __init__(self, row: Sequence[pa.Field], images: Iterable[str]) -> None:
        self._row = row
        shown = {image: keys_of(row, image) for image in images}
        self._columns = {image: list(keys) for image, keys in shown.items()}
        self._shown = {key: name for keys in shown.values() for key, name in keys.items()}
        self._keys = _texts(self._shown)

    def first_columns(self, special: pa.MapArray) -> dict[int, str]:
        """Return the rows with such an entry, and PostgreSQL's name of one column with it."""
        entries = _Entries(special)
        is_one = pc.is_in(entries.keys, value_set=self._keys)
        rows, keys = entries.rows.filter(is_one).to_pylist(), entries.keys.filter(is_one).to_pylist()
        return {row: self._shown[key] for row, key in zip(reversed(rows), reversed(keys), strict=True)}

    def texts(self, special: pa.MapArray, image: str) -> pa.StructArray:
        """Return a text for each column: null where the value is none of these, a null struct in rows without any."""
        fields = [pa.field(one.name, pa.string()) for one in self._row]
        entries = _Entries(special)
        if not len(entries.keys):
            return pa.nulls(len(special), pa.struct(fields))
        present = set(pc.unique(entries.keys).to_pylist())
        keys = self._columns[image]
        columns = [
            entries.texts_of(key) if key in present else pa.nulls(len(special), pa.string()) for key in keys
        ]
        return pa.StructArray.from_arrays(columns, fields=fields, mask=entries.is_absent(_texts(keys)))

    def others(self, special: pa.MapArray) -> pa.MapArray:
        """Return the map without these entries; null in a row without others."""
        return _Entries(special).without(self._keys)


class _Entries:
    """The entries of a batch: `rows` has the row of each entry."""

    def __init__(self, special: pa.MapArray) -> None:
        self._special = special
        self.keys, self.texts = special.keys, special.items
        self.rows = pc.list_parent_indices(pa.ListArray.from_arrays(special.offsets, self.keys))

    def _places(self, rows: pa.Array) -> pa.Array:
        """Return for each row of the batch its place among `rows`, or null."""
        numbers = pa.array(range(len(self._special)), rows.type)
        return pc.index_in(numbers, value_set=rows)

    def is_absent(self, keys: pa.Array) -> pa.BooleanArray:
        """Return whether a row has none of these keys."""
        return self._places(self.rows.filter(pc.is_in(self.keys, value_set=keys))).is_null()

    def texts_of(self, key: str) -> pa.StringArray:
        """Return the text of this key in each row, null in a row without it."""
        is_one = pc.equal(self.keys, key)
        return self.texts.filter(is_one).take(self._places(self.rows.filter(is_one)))

    def without(self, keys: pa.Array) -> pa.MapArray:
        """Return the map without the entries of these keys; null in a row whose last entry is gone."""
        if not len(self.keys):
            return self._special
        stays = pc.invert(pc.is_in(self.keys, value_set=keys))
        counted = pc.cumulative_sum(stays.cast(pa.int32()))
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), counted]).take(self._special.offsets)
        is_null = pc.equal(offsets[1:], offsets[:-1])
        return _map(self._special.type, offsets, self.keys.filter(stays), self.texts.filter(stays), is_null)


def _map(
    type_: pa.MapType, offsets: pa.Array, keys: pa.Array, texts: pa.Array, is_null: pa.BooleanArray
) -> pa.MapArray:
    return pa.MapArray.from_arrays(offsets, keys, texts, type=type_, mask=is_null)


class Renames:
    """Avro names to PostgreSQL's, in `unchanged` and in the keys of `special`."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names, self._keys = _pair(names), _pair(renamed_keys(names))
        self.is_empty = not names

    def unchanged(self, lists: pa.ListArray) -> pa.ListArray:
        """Return the lists with PostgreSQL's names."""
        if self.is_empty or not len(lists.values):
            return lists
        names = _replaced(lists.values, self._names)
        return pa.ListArray.from_arrays(lists.offsets, names, type=lists.type, mask=lists.is_null())

    def special(self, special: pa.MapArray) -> pa.MapArray:
        """Return the map with PostgreSQL's names in its keys."""
        if self.is_empty or not len(special.keys):
            return special
        keys = _replaced(special.keys, self._keys)
        return _map(special.type, special.offsets, keys, special.items, special.is_null())


_Pair = tuple[pa.Array, pa.Array]


def _pair(names: Mapping[str, str]) -> _Pair:
    return _texts(names), _texts(names.values())


def _texts(texts: Iterable[str]) -> pa.StringArray:
    return pa.array(list(texts), pa.string())


def _replaced(texts: pa.StringArray, pair: _Pair) -> pa.StringArray:
    olds, news = pair
    return pc.coalesce(news.take(pc.index_in(texts, value_set=olds)), texts)
