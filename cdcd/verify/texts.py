"""The text that PostgreSQL writes for a value, from the value that a topic has.

In: the Avro type of a field, the PostgreSQL type of its column.  Out: a function from fastavro's value (without
logical types) to the bytes of the output function's text, under the settings of cdcd's sessions.
Invariant: the text is exactly the server's, so that hashes of both are equal; a form that does not determine the text
(`numeric_as: double`, `interval_as: microseconds`) has no function, and the column is not compared.
Must not: guess where the type and the form do not fit: then there is no function either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdcd.model import PgType
from cdcd.schema.calendar import civil_of
from cdcd.schema.types.bits import BIT
from cdcd.schema.types.boolean import BOOL
from cdcd.schema.types.bytea import BYTEA
from cdcd.schema.types.floating import FLOAT4, FLOAT8
from cdcd.schema.types.interval import INTERVAL
from cdcd.schema.types.money import MONEY
from cdcd.schema.types.numeric import NUMERIC
from cdcd.schema.types.system import VECTORS
from cdcd.schema.types.time import DAY_US, clock_text
from cdcd.verify.float_text import double_text, real_text

TextOf = Callable[[Any], bytes]
_MONEY_DIGITS = 2
"""Those of lc_monetary C, in which the server writes the stored number."""
_DIGITS_AT_ONCE = 4000
_AT_ONCE = 10**_DIGITS_AT_ONCE
_DOMAIN, _COMPOSITE = "d", "c"


def text_of(avro: Any, oid: int, types: Mapping[int, PgType], named: Mapping[str, Any]) -> TextOf | None:
    """Return the function of a type, without the union's null. `named`: the records of the schema by name."""
    if isinstance(avro, str) and avro in named:
        avro = named[avro]
    pg_type = types.get(oid)
    if pg_type is not None and pg_type.kind == _DOMAIN:
        return text_of(avro, pg_type.base_oid, types, named)
    kind = avro if isinstance(avro, str) else avro["type"]
    if pg_type is not None and kind == "array":
        return _array(avro, pg_type, types, named)
    if kind == "record":
        return _record(avro, oid, pg_type, types, named)
    if kind == "map":
        return _hstore if pg_type is not None and pg_type.name == "hstore" else None
    logical = None if isinstance(avro, str) else avro.get("logicalType")
    if logical == "decimal":
        return _decimal(oid, avro["scale"])
    made = _PLAIN.get((kind, logical))
    return None if made is None else made(oid, pg_type)


def named_records(schema: Any) -> dict[str, Any]:
    """Return the records that a schema defines, by their full names."""
    found: dict[str, Any] = {}
    if isinstance(schema, list):
        for branch in schema:
            found |= named_records(branch)
    elif isinstance(schema, dict):
        if schema.get("type") == "record":
            found[schema["name"]] = schema
        for part in ("type", "items", "values"):
            found |= named_records(schema.get(part))
        for field in schema.get("fields", ()):
            found |= named_records(field["type"])
    return found


# --- plain values


def integer_text(value: int) -> bytes:
    """Return int8out's text."""
    return str(value).encode()


encoded: TextOf = str.encode


def boolean_text(value: bool) -> bytes:
    """Return boolout's text."""
    return b"t" if value else b"f"


def bit_text(value: bool) -> bytes:
    """Return bit_out's text of one bit."""
    return b"1" if value else b"0"


def _date(days: int) -> bytes:
    year, month, day = civil_of(days)
    return b"%04d-%02d-%02d" % (year if year > 0 else 1 - year, month, day)


def _era(days: int) -> bytes:
    return b"" if civil_of(days)[0] > 0 else b" BC"


def date_text(days: int) -> bytes:
    """Return date_out's text with DateStyle ISO."""
    return _date(days) + _era(days)


def timestamp_text(us: int, zone: bytes = b"") -> bytes:
    """Return timestamp_out's text with DateStyle ISO."""
    days, clock_us = divmod(us, DAY_US)
    return _date(days) + b" " + clock_text(clock_us) + zone + _era(days)


def timestamptz_text(us: int) -> bytes:
    """Return timestamptz_out's text with DateStyle ISO and TimeZone UTC."""
    return timestamp_text(us, b"+00")


def hex_text(value: bytes) -> bytes:
    """Return byteaout's text with bytea_output hex."""
    return b"\\x" + value.hex().encode()


def _unscaled_text(unscaled: int, scale: int) -> bytes:
    digits = _digits(abs(unscaled)).rjust(scale + 1, "0")
    sign, point = "-" if unscaled < 0 else "", len(digits) - scale
    return f"{sign}{digits[:point]}{'.' if scale else ''}{digits[point:]}".encode()


def _digits(number: int) -> str:
    """Return the decimal digits, also of more than str() makes: 4300 (sys.set_int_max_str_digits)."""
    pieces: list[str] = []
    while number >= _AT_ONCE:
        number, piece = divmod(number, _AT_ONCE)
        pieces.append(f"{piece:0{_DIGITS_AT_ONCE}d}")
    return "".join([str(number), *reversed(pieces)])


def _number(value: bytes) -> int:
    return int.from_bytes(value, "big", signed=True)


def _decimal(oid: int, scale: int) -> TextOf | None:
    if oid == MONEY:
        return lambda value: _money(_number(value))
    return DecimalText(scale) if oid == NUMERIC else None


@dataclass(frozen=True, slots=True)
class DecimalText:
    """numeric_out's text of a number with a fixed scale."""

    scale: int

    def __call__(self, value: bytes) -> bytes:
        """Return the text of an unscaled number."""
        return _unscaled_text(_number(value), self.scale)


def variable_scale_text(value: Mapping[str, Any]) -> bytes:
    """Return numeric_out's text of a record of a scale and an unscaled value."""
    return _unscaled_text(_number(value["value"]), value["scale"])


def _money(stored: int) -> bytes:
    whole, fraction = divmod(abs(stored), 10**_MONEY_DIGITS)
    return f"{'-' if stored < 0 else ''}${whole:,}.{fraction:0{_MONEY_DIGITS}d}".encode()


def _money_of_text(text: str) -> bytes:
    return _money(int(text.replace(".", ""))) if _IS_NUMBER(text) else text.encode()


_IS_NUMBER = re.compile(r"-?\d+(\.\d+)?").fullmatch
_ISO = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?)(\d+)(?:\.(\d{1,6}))?S)?)?"
).fullmatch


def _interval_of_iso(text: str) -> bytes:
    found = _ISO(text)
    if found is None:  # the server's own text: `special: string`, or a special value
        return text.encode()
    years, months, days, hours, minutes = (int(found[number] or 0) for number in range(1, 6))
    us = int(found[7] or 0) * 1_000_000 + int((found[8] or "").ljust(6, "0"))
    us = -us if found[6] else us
    return interval_text(12 * years + months, days, (60 * hours + minutes) * 60_000_000 + us)


def interval_text(months: int, days: int, us: int) -> bytes:
    """Return interval_out's text with IntervalStyle postgres (datetime.c, EncodeInterval)."""
    negative = -1 if months < 0 else 1
    parts, was_negative = [], False
    for number, unit in (
        (negative * (abs(months) // 12), "year"),
        (negative * (abs(months) % 12), "mon"),
        (days, "day"),
    ):
        if number:
            sign = "+" if was_negative and number > 0 else ""
            parts.append(f"{sign}{number} {unit}{'' if number == 1 else 's'}")
            was_negative = number < 0
    if us or not parts:
        seconds, fraction = divmod(abs(us), 1_000_000)
        sign = "-" if us < 0 else "+" if was_negative else ""
        clock = f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        parts.append(clock + (f".{fraction:06d}".rstrip("0") if fraction else ""))
    return " ".join(parts).encode()


def _of_boolean(oid: int, _: PgType | None) -> TextOf | None:
    if oid == BIT:
        return bit_text
    return boolean_text if oid == BOOL else None


def _of_long(oid: int, _: PgType | None) -> TextOf | None:
    return None if oid == INTERVAL else integer_text


def _of_string(oid: int, _: PgType | None) -> TextOf | None:
    return {INTERVAL: _interval_of_iso, MONEY: _money_of_text}.get(oid, encoded)


def _of_bytes(oid: int, pg_type: PgType | None) -> TextOf | None:
    if pg_type is not None and pg_type.name in ("geometry", "geography"):
        return lambda value: bytes(value.hex().upper().encode())
    return hex_text if oid == BYTEA else None


def _only(wanted: int, text: TextOf) -> Callable[[int, PgType | None], TextOf | None]:
    return lambda oid, _: text if oid == wanted else None


def _always(text: TextOf) -> Callable[[int, PgType | None], TextOf | None]:
    return lambda oid, _: text


_PLAIN: dict[tuple[str, str | None], Callable[[int, PgType | None], TextOf | None]] = {
    ("boolean", None): _of_boolean,
    ("int", None): _always(integer_text),
    ("long", None): _of_long,
    ("float", None): _only(FLOAT4, real_text),
    ("double", None): _only(FLOAT8, double_text),
    ("string", None): _of_string,
    ("string", "uuid"): _of_string,
    ("bytes", None): _of_bytes,
    ("int", "date"): _always(date_text),
    ("long", "time-micros"): _always(clock_text),
    ("long", "local-timestamp-micros"): _always(timestamp_text),
    ("long", "timestamp-micros"): _always(timestamptz_text),
}
"""By Avro type and logical type."""


# --- values made of others


def _array(
    avro: Mapping[str, Any], pg_type: PgType, types: Mapping[int, PgType], named: Mapping[str, Any]
) -> TextOf | None:
    if not pg_type.element_oid or pg_type.oid in VECTORS:
        is_vector = avro["items"] == "float" and pg_type.name in ("vector", "halfvec")
        return (lambda value: b"[" + b",".join(map(real_text, value)) + b"]") if is_vector else None
    element = text_of(_without_null(avro["items"]), pg_type.element_oid, types, named)
    described = types.get(pg_type.element_oid)
    if element is None or described is None:
        return None
    return ArrayText(element, described.delimiter.encode())


class ArrayText:
    """array_out's text of one dimension.

    An element that is an array itself, as of a domain over an array, is quoted like every other text.
    """

    def __init__(self, element: TextOf, delimiter: bytes) -> None:
        self.element, self.delimiter = element, delimiter
        self._needs_quotes = re.compile(rb'[{}"\\\s' + re.escape(delimiter) + rb"]").search

    def __call__(self, value: Sequence[Any]) -> bytes:
        """Return the text of an array's values."""
        texts = [_element(one, self.element, self._needs_quotes) for one in value]
        return b"{" + self.delimiter.join(texts) + b"}"


def _element(value: Any, text: TextOf, needs_quotes: Callable[[bytes], Any]) -> bytes:
    if value is None:
        return b"NULL"
    found = text(value)
    if found and found.upper() != b"NULL" and not needs_quotes(found):
        return found
    return b'"' + found.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def _record(
    avro: Mapping[str, Any],
    oid: int,
    pg_type: PgType | None,
    types: Mapping[int, PgType],
    named: Mapping[str, Any],
) -> TextOf | None:
    if oid == INTERVAL:
        return lambda value: interval_text(value["months"], value["days"], value["us"])
    if oid == NUMERIC:
        return variable_scale_text
    if pg_type is None or pg_type.kind != _COMPOSITE:
        return None
    fields, attributes = avro["fields"], pg_type.attributes
    if [field.get("pg.name", field["name"]) for field in fields] != [one.name for one in attributes]:
        return None  # the type was altered since
    parts = [
        (field["name"], text_of(_without_null(field["type"]), one.type_oid, types, named))
        for field, one in zip(fields, attributes, strict=True)
    ]
    if any(text is None for _, text in parts):
        return None

    def row_text(value: Mapping[str, Any]) -> bytes:
        texts = [b"" if value[name] is None else _attribute(text(value[name])) for name, text in parts]  # type: ignore[misc]
        return b"(" + b",".join(texts) + b")"

    return row_text


_ATTRIBUTE_NEEDS_QUOTES = re.compile(rb'[()",\\\s]').search


def _attribute(text: bytes) -> bytes:
    if text and not _ATTRIBUTE_NEEDS_QUOTES(text):
        return text
    return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'""') + b'"'


def _hstore(value: Mapping[str, str | None]) -> bytes:
    return b", ".join(
        _quoted(key) + b"=>" + (b"NULL" if one is None else _quoted(one)) for key, one in value.items()
    )


def _quoted(text: str) -> bytes:
    return b'"' + text.replace("\\", "\\\\").replace('"', '\\"').encode() + b'"'


def _without_null(avro: Any) -> Any:
    return next(branch for branch in avro if branch != "null") if isinstance(avro, list) else avro
