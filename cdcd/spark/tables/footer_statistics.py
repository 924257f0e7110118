"""Which columns of a Parquet file have statistics in its footer, by which readers leave out row groups. Pure.

In: the columns of a file.  Out: the paths of those with statistics, as Parquet names them.
Invariant: no floating-point number has statistics, at any level. The smallest and largest value leave out NaN, which
PostgreSQL and most engines order after all numbers, so a reader would lose the rows that have it.
Must not: do I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

__all__ = ["paths_with_statistics"]


def paths_with_statistics(schema: pa.Schema) -> list[str]:
    """Return the paths of the columns, and of the fields inside them, that readers can be given bounds of."""
    leaves = [leaf for one in schema for leaf in _leaves(one.name, one.type)]
    unbounded = {path for path, type_ in leaves if pa.types.is_floating(type_)}
    return [path for path, _ in leaves if path not in unbounded]


def _leaves(path: str, type_: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    inside = [*_inside(type_)]
    if not inside:
        yield path, type_
    for name, of_inside in inside:
        yield from _leaves(f"{path}.{name}", of_inside)


def _inside(type_: pa.DataType) -> Iterable[tuple[str, pa.DataType]]:
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return [("list.element", type_.value_type)]
    if pa.types.is_map(type_):
        return [("key_value.key", type_.key_type), ("key_value.value", type_.item_type)]
    return [(one.name, one.type) for one in type_] if pa.types.is_struct(type_) else []
