"""Changes of one value by the smallest step: one unit, one character, one bit, NULL. Pure.

In: a value as PyArrow returns it, the column's kind.  Out: another value of the same type, and what was done to it.
`text_of`: the value as PostgreSQL reads it, for the judge.
Must not: return a change without saying which; the judge decides whether PostgreSQL distinguishes both values.
"""

from __future__ import annotations

import datetime as dt
import math
import random
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

Mutation = Callable[[Any, random.Random], Any]
MICROSECOND = dt.timedelta(microseconds=1)
DAY_US = 86_400_000_000


def _character(value: str, draw: random.Random, allowed: str, among: str | None = None) -> str:
    """Replace a random character, of those in `among`, by another one of `allowed`. Raises IndexError without one."""
    at = draw.choice([n for n, one in enumerate(value) if among is None or one in among])
    return value[:at] + draw.choice([one for one in allowed if one != value[at]]) + value[at + 1 :]


def _digit(value: str, draw: random.Random) -> str:
    return _character(value, draw, "123456789", "123456789")


def _letter(value: str, draw: random.Random) -> str:
    return _character(value, draw, "abcdefghijklmnopqrstuvwxyzé€")


def _case(value: str, draw: random.Random) -> str:
    at = draw.choice([n for n, one in enumerate(value) if one != one.swapcase()])
    return value[:at] + value[at].swapcase() + value[at + 1 :]


def _shorter(value: Any, draw: random.Random) -> Any:
    at = draw.randrange(len(value))
    return value[:at] + value[at + 1 :]


def _bit(bits: int) -> Mutation:
    return lambda value, draw: value ^ (1 << draw.randrange(bits))


def _unit(unit: Any) -> Mutation:
    return lambda value, draw: value + draw.choice((unit, -unit))


def _float_bit(of_float: str, of_bits: str, lowest: bool) -> Mutation:
    def change(value: float, draw: random.Random) -> float:
        (bits,) = struct.unpack(of_bits, struct.pack(of_float, value))
        place = 0 if lowest else draw.randrange(8 * struct.calcsize(of_bits))
        (changed,) = struct.unpack(of_float, struct.pack(of_bits, bits ^ (1 << place)))
        return float(changed)

    return change


def _sign_of_zero(value: float, _draw: random.Random) -> float:
    if value != 0:
        raise IndexError
    return -value


def _time(value: dt.time | int, draw: random.Random) -> dt.time | int:
    step = draw.choice((1, -1))
    if isinstance(value, int):
        return (value + step) % DAY_US
    moment = dt.datetime.combine(dt.date(2000, 1, 2), value) + step * MICROSECOND
    return moment.time()


def _byte(value: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(value))
    return value[:at] + bytes([value[at] ^ (1 << draw.randrange(8))]) + value[at + 1 :]


def _element(of_element: Mutation) -> Mutation:
    def change(value: list[Any], draw: random.Random) -> list[Any]:
        at = draw.choice([n for n, one in enumerate(value) if one is not None])
        return [*value[:at], of_element(value[at], draw), *value[at + 1 :]]

    return change


def _null_element(value: list[Any], draw: random.Random) -> list[Any]:
    at = draw.choice([n for n, one in enumerate(value) if one is not None])
    return [*value[:at], None, *value[at + 1 :]]


def _element_for_null(value: list[Any], draw: random.Random) -> list[Any]:
    at = draw.choice([n for n, one in enumerate(value) if one is None])
    known = [one for one in value if one is not None]
    return [*value[:at], draw.choice(known), *value[at + 1 :]]


def _order(value: list[Any], _draw: random.Random) -> list[Any]:
    return value[::-1]


def _attribute(name: str, of_attribute: Mutation) -> Mutation:
    return lambda value, draw: {**value, name: of_attribute(value[name], draw)}


def _of_array(of_element: Mapping[str, Mutation]) -> dict[str, Mutation]:
    return {
        **{f"array: {name}": _element(one) for name, one in of_element.items()},
        "array: an element NULL": _null_element,
        "array: an element for NULL": _element_for_null,
        "array: an element less": _shorter,
        "array: the order": _order,
    }


def _of_float(of_float: str, of_bits: str) -> dict[str, Mutation]:
    return {
        "number: the last bit": _float_bit(of_float, of_bits, lowest=True),
        "number: a bit": _float_bit(of_float, of_bits, lowest=False),
        "number: the sign of zero": _sign_of_zero,
    }


_DOUBLE, _REAL = _of_float("<d", "<Q"), _of_float("<f", "<I")
_TEXT: dict[str, Mutation] = {
    "text: a character": _letter,
    "text: the case of a letter": _case,
    "text: a character less": _shorter,
    "text: a trailing blank": lambda value, _: value + " ",
}
_DIGIT: dict[str, Mutation] = {"text: a digit": _digit}
_JSON: dict[str, Mutation] = {
    "json: a digit": _digit,
    "json: the case of a letter": lambda value, _: value.replace('"a', '"A', 1),
}
_MOMENT: dict[str, Mutation] = {"time: a microsecond": _unit(MICROSECOND)}
MUTATIONS: dict[str, dict[str, Mutation]] = {
    "int2": {"number: one": _unit(1), "number: a bit": _bit(14)},
    "int4": {"number: one": _unit(1), "number: a bit": _bit(30)},
    "int8": {"number: one": _unit(1), "number: a bit": _bit(62)},
    "numeric(12,2)": {"number: the last digit": _unit(Decimal("0.01")), "number: the sign": lambda v, _: -v},
    "numeric(38,10)": {"number: the last digit": _unit(Decimal(1).scaleb(-10))},
    "numeric": {
        "number: a digit": _digit,
        "number: the scale": lambda value, _: value + ("0" if "." in value else ".0"),
    },
    "float8": _DOUBLE,
    "float4": _REAL,
    "text": _TEXT,
    "varchar(40)": _TEXT,
    "char(8)": {"text: a character": _letter, "text: the case of a letter": _case},
    "date": {"time: a day": _unit(dt.timedelta(days=1))},
    "timestamptz": _MOMENT,
    "timestamp": _MOMENT,
    "time": {"time: a microsecond": _time},
    "interval": _DIGIT,
    "bool": {"bool": lambda value, _: not value},
    "uuid": {"text: a digit": lambda value, draw: _character(value, draw, "0123456789abcdef", "0123456789abcdef")},
    "jsonb": _JSON,
    "json": {**_JSON, "json: a blank": lambda value, _: value.replace(":", ": ", 1)},
    "bytea": {"bytea: a bit": _byte, "bytea: a byte more": lambda v, _: v + b"\0", "bytea: a byte less": _shorter},
    "varbit": {"text: a digit": lambda value, draw: _character(value, draw, "01")},
    "inet": _DIGIT,
    "mood": {"enum: another label": lambda value, _: {"sad": "Sad", "Sad": "ok"}.get(value, "sad")},
    "text[]": _of_array({**_TEXT, "the text NULL": lambda value, _: "NULL", "empty": lambda value, _: ""}),
    "int4[]": _of_array({"one": _unit(1)}),
    "float8[]": _of_array(_DOUBLE),
    "place": {
        **{f"composite: {name}": _attribute("x", one) for name, one in _DOUBLE.items()},
        **{f"composite: {name}": _attribute("name", one) for name, one in _TEXT.items()},
    },
}  # fmt: skip
"""By type of PostgreSQL. A mutation of a value that it does not fit raises IndexError, or an error of its value."""


def text_of(value: Any) -> Any:
    """Return a value as a parameter that PostgreSQL reads exactly: numbers as texts, which keep the sign of zero."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else repr(value)
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return str(value)  # -1::int8::text is - (1::int8::text)
    if isinstance(value, list):
        return [text_of(one) for one in value]
    if isinstance(value, dict):
        return tuple(text_of(one) for one in value.values())
    return value


def time_of(value: Any) -> Any:
    """Return a time of day of a file in an open format, which has its microseconds."""
    if not isinstance(value, int):
        return value
    return (dt.datetime(2000, 1, 1) + value * MICROSECOND).time()
