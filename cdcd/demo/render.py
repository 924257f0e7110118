"""Render values of a mirror's Arrow columns as text that PostgreSQL reads back into the column's type.

In: an Arrow column and the PostgreSQL type that it mirrors.  Out: for each row the text, None for NULL.
Invariant: exact in both directions; dates and timestamps are converted from their integers, because Python's datetime
has no years before 1 and after 9999.
Must not: guess; an Arrow type that is not listed here raises NotComparable.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

import pyarrow as pa

_UNIX_EPOCH = date(1970, 1, 1).toordinal()
_CYCLE_DAYS = 146_097  # 400 years of the Gregorian calendar
_DAY_US = 86_400_000_000
_UNIT_US = {"s": 1_000_000, "ms": 1_000, "us": 1}


class NotComparable(Exception):
    """A mirror's column has an Arrow type that this module cannot render for the PostgreSQL type."""


def column_texts(column: Any, pg_type: str) -> list[str | None]:
    """Return the texts of a `pyarrow.Array`; `pg_type` is its typname, for an array the element's."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return _array_texts(column, pg_type)
    numbers, text = _plain(column, pg_type)
    return [None if value is None else text(value) for value in numbers]


def _plain(column: Any, pg_type: str) -> tuple[list[Any], Callable[[Any], str]]:
    kind = column.type
    if pa.types.is_boolean(kind):
        return column.to_pylist(), lambda value: "t" if value else "f"
    if pa.types.is_integer(kind):
        return column.to_pylist(), _INTEGERS.get(pg_type, str)
    if pa.types.is_floating(kind):
        return column.to_pylist(), repr  # the shortest text that is parsed as the same number
    if pa.types.is_decimal(kind):
        return column.to_pylist(), lambda value: format(value, "f")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column.to_pylist(), str
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return column.to_pylist(), lambda value: "\\x" + value.hex()
    if pa.types.is_date32(kind):
        return column.cast(pa.int32()).to_pylist(), date_text
    if pa.types.is_timestamp(kind):
        return _microseconds(column, _UNIT_US), _INTEGERS["timestamptz" if kind.tz else "timestamp"]
    if pa.types.is_time(kind):
        return _microseconds(column, _UNIT_US), time_text
    raise NotComparable(f"no text of type {pg_type} from Arrow's {kind}")


def _microseconds(column: Any, units: dict[str, int]) -> list[int | None]:
    unit = column.type.unit
    whole = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64()).to_pylist()
    if unit == "ns":
        return [None if value is None else _whole_us(value) for value in whole]
    return [None if value is None else value * units[unit] for value in whole]


def _whole_us(value_ns: int) -> int:
    if value_ns % 1000:
        raise NotComparable("a time with nanoseconds, which PostgreSQL does not have")
    return value_ns // 1000


def date_text(days: int) -> str:
    """Return a date from days since 1970-01-01, in PostgreSQL's format: `0044-03-15 BC` before year 1."""
    cycles, ordinal = divmod(days + _UNIX_EPOCH - 1, _CYCLE_DAYS)
    day = date.fromordinal(ordinal + 1)
    year = day.year + 400 * cycles
    if year > 0:
        return f"{year:04d}-{day:%m-%d}"
    return f"{1 - year:04d}-{day:%m-%d} BC"


def time_text(microseconds: int) -> str:
    """Return a time of day from microseconds since midnight."""
    seconds, fraction = divmod(microseconds, 1_000_000)
    minutes, second = divmod(seconds, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}.{fraction:06d}"


def timestamp_text(microseconds: int, zone: str = "") -> str:
    """Return a timestamp from microseconds since 1970-01-01 00:00:00, with `zone` behind the time."""
    days, rest = divmod(microseconds, _DAY_US)
    day, _, era = date_text(days).partition(" ")
    return f"{day} {time_text(rest)}{zone} {era}".rstrip()


_INTEGERS: dict[str, Callable[[Any], str]] = {
    "date": date_text,
    "time": time_text,
    "timestamp": timestamp_text,
    "timestamptz": lambda value: timestamp_text(value, "+00"),
}


def _array_texts(column: Any, pg_type: str) -> list[str | None]:
    """Return array literals of one dimension; elements are quoted, so that none is read as NULL or a brace."""
    elements = column_texts(column.flatten(), pg_type)
    texts: list[str | None] = []
    start = 0
    lengths = column.value_lengths().to_pylist()
    for length in lengths:
        if length is None:
            texts.append(None)
            continue
        texts.append("{" + ",".join(map(_element, elements[start : start + length])) + "}")
        start += length
    return texts


def _element(text: str | None) -> str:
    if text is None:
        return "NULL"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
