"""Rows in another order, and sets of keys, also where a column has more than 2 GiB of texts or bytes.

In: rows, whose columns have chunks of at most 2 GiB each, as all arrays of these types.  Out: rows of the same types.
Invariant: no array is made that has more than one can hold; Arrow's own `take` makes one of a whole column.
Must not: cast; Arrow 25 ends the process at the cast of a map that `take` or `filter` has made.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["filtered", "in_few_chunks", "is_among", "is_large", "lacks_room", "taken", "taken_values"]

MOST_BYTES = 1 << 30
"""The most bytes of a column that Arrow's `take` is given, and of a chunk of the result."""
_NO_ROOM = ("offset overflow", "chunked array outputs")


def taken(rows: pa.Table, places: pa.Array) -> pa.Table:
    """Return the rows at these places; a large column is in several chunks."""
    if rows.nbytes <= MOST_BYTES:
        return rows.take(places)
    columns = [taken_values(column, places) for column in rows.columns]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def filtered(rows: pa.Table, is_wanted: Any) -> pa.Table:
    """Return the rows for which this is true. Mostly these are all rows, which are not copied then."""
    return rows if pc.all(is_wanted, skip_nulls=False).as_py() else rows.filter(is_wanted)


def taken_values(column: pa.ChunkedArray, places: pa.Array) -> pa.ChunkedArray:
    """Return the values at these places; many bytes are in several chunks."""
    if column.nbytes <= MOST_BYTES:
        return column.take(places)
    count = max(1, len(places) * MOST_BYTES // column.nbytes)
    wanted = np.asarray(places).astype(np.int64)  # `sort_indices` gives unsigned numbers
    pieces = [
        piece
        for start in range(0, len(wanted), count)
        for piece in _pieces(column, wanted[start : start + count])
    ]
    return pa.chunked_array(pieces, column.type)


def _pieces(column: pa.ChunkedArray, places: Any) -> Iterator[pa.Array]:
    """Yield the values at these places. They may have very different sizes."""
    ends = np.cumsum([len(chunk) for chunk in column.chunks])
    numbers = np.searchsorted(ends, places, side="right")
    parts = [
        chunk.take(pa.array(places[numbers == number] - (ends[number] - len(chunk))))
        for number, chunk in enumerate(column.chunks)
        if (numbers == number).any()
    ]
    half = len(places) // 2
    if sum(part.nbytes for part in parts) > MOST_BYTES and half:
        del parts
        yield from _pieces(column, places[:half])
        yield from _pieces(column, places[half:])
        return
    by_chunk = np.argsort(numbers, kind="stable")
    yield pa.concat_arrays(parts).take(pa.array(np.argsort(by_chunk)))


def in_few_chunks(rows: pa.Table) -> pa.Table:
    """Return the rows in few chunks, none of which is empty, or has more than about `MOST_BYTES`.

    Arrow's own `combine_chunks` makes one array of a nested column, whatever it has.
    """
    pieces: list[list[pa.RecordBatch]] = [[]]
    room = MOST_BYTES
    for batch in rows.to_batches():
        if pieces[-1] and batch.nbytes > room:
            pieces.append([])
            room = MOST_BYTES
        if batch.num_rows:
            pieces[-1].append(batch)
            room -= batch.nbytes
    return pa.concat_tables(pa.Table.from_batches(piece, rows.schema).combine_chunks() for piece in pieces)


def is_large(column: pa.ChunkedArray) -> bool:
    """Return whether a column may have more than one array can hold."""
    return bool(column.nbytes > MOST_BYTES)


def is_among(values: Any, wanted: pa.ChunkedArray) -> Any:
    """Return for each value whether it is among others, of which there may be more than one array can hold."""
    sets = in_few_chunks(pa.table({"value": wanted}))["value"].chunks or [pa.array([], wanted.type)]
    return reduce(pc.or_, (pc.is_in(values, value_set=one) for one in sets))


def lacks_room(error: pa.ArrowException) -> bool:
    """Return whether an error of Arrow is no error of the values: a column has more than one array can hold."""
    return isinstance(error, pa.ArrowCapacityError) or any(text in str(error) for text in _NO_ROOM)
