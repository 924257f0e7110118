"""The statistics of a file in a Delta log, by which readers leave out files: its smallest and largest values. Pure.

In: the rows of a file.  Out: an object for the field `stats` of the action that adds the file; its JSON.
Invariant: a bound is a value of the file, never a shortened one, so a reader may also answer `min` and `max` by it. A
column whose bounds some reader may order or write in another way has none: floats (NaN), decimals, bytes, long texts,
texts that UTF-16 orders otherwise, and years that Python has not.
Must not: do I/O.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["as_json", "has_one_order", "statistics_of"]

MOST_COLUMNS = 32
"""So many of the first columns have statistics, as Delta's own default is: each commit has those of its files."""
MOST_CHARACTERS = 64
"""A longer text is not a bound."""
_OTHERWISE_ORDERED = "\ue000"


def statistics_of(rows: pa.Table) -> dict[str, Any]:
    """Return the number of rows, and the bounds and the numbers of nulls of the first columns."""
    nulls: dict[str, int] = {}
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    for name in rows.column_names[:MOST_COLUMNS]:
        values = rows[name]
        if not has_order(values.type):
            continue
        nulls[name] = values.null_count
        with suppress(ValueError, OverflowError):  # a year that Python has not
            found = pc.min_max(values).as_py()
            low, high = _bound(found["min"]), _bound(found["max"])
            if low is not None and high is not None:
                lowest[name], highest[name] = low, high
    return {"numRecords": rows.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}


def as_json(statistics: Mapping[str, Any]) -> str:
    """Return statistics as a log has them. delta-rs decodes an escaped character of plane 2 as one of plane 1."""
    return json.dumps(statistics, ensure_ascii=False)


def has_order(arrow: pa.DataType) -> bool:
    """Return whether all readers have the same order of the values of a type."""
    is_time = pa.types.is_date(arrow) or pa.types.is_timestamp(arrow)
    return bool(is_time or pa.types.is_integer(arrow) or pa.types.is_string(arrow))


def has_one_order(text: str) -> bool:
    """Return whether a text is as large by UTF-16 as by UTF-8, the order of code points, compared with all others.

    In UTF-16 the characters from U+10000 on come before those from U+E000 on.
    """
    return max(text, default="") < _OTHERWISE_ORDERED


def _bound(value: Any) -> str | int | None:
    """Return a bound as it is in a log, None if it is too long, some reader has another order, or there is none."""
    if isinstance(value, str):
        return value if len(value) <= MOST_CHARACTERS and has_one_order(value) else None
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value
