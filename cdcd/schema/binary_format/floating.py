"""Floats in their shortest decimal form, as PostgreSQL writes them since version 12.

In: a float, or the binary format of real and double precision.  Out: `0.1`, `1e+22`, `-0`, `NaN`, `-Infinity`.
Invariant: the result has the fewest digits that lie strictly between the midpoints to both neighbours, and of those
the nearest to the value. Python's repr also accepts a midpoint itself where the mantissa is even; PostgreSQL never
does. A double from 0.0001 to below 1e15, and a real to below 1e6, is written without exponent (f2s.c, d2s.c).
"""

from __future__ import annotations

import math
import struct

_unpack_real = struct.Struct(">f").unpack
_unpack_double = struct.Struct(">d").unpack

_REAL_FIXED_DIGITS, _DOUBLE_FIXED_DIGITS = 6, 15
_REAL_LOWEST_EXPONENT, _DOUBLE_LOWEST_EXPONENT = -149, -1074
_SMALLEST_NORMAL_REAL = 2.0**-126
_INTEGERS_ONLY = 2.0**52
_NO_SHORT_MIDPOINTS = (
    1e41  # above, a midpoint of 54 bits times a power of two has more than 17 decimal digits
)


def text_of_double(value: float) -> bytes:
    """Return float8out's text."""
    if not math.isfinite(value) or value == 0:
        return _text_of_odd(value)
    digits, exponent = _parts(repr(abs(value)))
    if _INTEGERS_ONLY <= abs(value) < _NO_SHORT_MIDPOINTS and _is_midpoint(abs(value), digits, exponent):
        digits, exponent = _fewest(abs(value), 53, _DOUBLE_LOWEST_EXPONENT)
    return _written(value < 0, digits, exponent, _DOUBLE_FIXED_DIGITS)


def text_of_real(value: float) -> bytes:
    """Return float4out's text of a real, given as Python's float."""
    if not math.isfinite(value) or value == 0:
        return _text_of_odd(value)
    digits, exponent = _real_digits(abs(value))
    return _written(value < 0, digits, exponent, _REAL_FIXED_DIGITS)


def double(raw: bytes) -> bytes:
    """Convert float8send's eight bytes."""
    return text_of_double(_unpack_double(raw)[0])


def real(raw: bytes) -> bytes:
    """Convert float4send's four bytes."""
    return text_of_real(_unpack_real(raw)[0])


def _text_of_odd(value: float) -> bytes:
    if value != value:
        return b"NaN"
    if value == 0:
        return b"-0" if math.copysign(1, value) < 0 else b"0"
    return b"Infinity" if value > 0 else b"-Infinity"


def _parts(text: str) -> tuple[str, int]:
    """Return (digits without leading and trailing zeros, number of digits before the point)."""
    mantissa, _, exponent = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = whole + fraction
    point = len(whole) + int(exponent or 0)
    stripped = digits.lstrip("0")
    return stripped.rstrip("0"), point - (len(digits) - len(stripped))


def _written(is_negative: bool, digits: str, point: int, fixed_digits: int) -> bytes:
    if -3 <= point <= fixed_digits:
        if point <= 0:
            text = "0." + "0" * -point + digits
        elif point >= len(digits):
            text = digits + "0" * (point - len(digits))
        else:
            text = f"{digits[:point]}.{digits[point:]}"
    else:
        fraction = f".{digits[1:]}" if len(digits) > 1 else ""
        text = f"{digits[0]}{fraction}e{point - 1:+03d}"
    return (f"-{text}" if is_negative else text).encode()


def _is_midpoint(value: float, digits: str, point: int) -> bool:
    quarters = 4 * int(digits) * 10 ** (point - len(digits)) if point >= len(digits) else 0
    mantissa, exponent, below = _binary(value, 53, _DOUBLE_LOWEST_EXPONENT)
    return quarters in ((4 * mantissa + 2) << exponent, (4 * mantissa - below) << exponent)


def _real_digits(value: float) -> tuple[str, int]:
    mantissa, exponent, below = _binary(value, 24, _REAL_LOWEST_EXPONENT)
    if value >= _SMALLEST_NORMAL_REAL and below == 2:
        # At most one number of six digits lies between a real's midpoints, so it is the nearest one.
        low, high = (math.ldexp(4 * mantissa + side, exponent - 2) for side in (-2, 2))
        for precision in (5, 6, 7, 8):
            text = f"{value:.{precision}e}"
            if low < float(text) < high:
                return _parts(text)
    return _fewest(value, 24, _REAL_LOWEST_EXPONENT)


def _binary(value: float, bits: int, lowest_exponent: int) -> tuple[int, int, int]:
    """Return (mantissa, exponent of two, distance to the lower midpoint in quarters of the mantissa's unit)."""
    exponent = math.frexp(value)[1]
    exponent = max(exponent - bits, lowest_exponent)
    mantissa = int(math.ldexp(value, -exponent))
    is_power = mantissa == 1 << (bits - 1) and exponent > lowest_exponent
    return mantissa, exponent, 1 if is_power else 2


def _fewest(value: float, bits: int, lowest_exponent: int) -> tuple[str, int]:
    """Return the digits, computed with exact integers: slow, for the few values that the fast path cannot decide."""
    mantissa, exponent, below = _binary(value, bits, lowest_exponent)
    up, unit = 1 << max(exponent, 0), 4 << max(-exponent, 0)
    exact, low, high = 4 * mantissa * up, (4 * mantissa - below) * up, (4 * mantissa + 2) * up  # of 1 / unit
    point = int(f"{value:.17e}".partition("e")[2]) + 1
    for count in range(1, 19):
        power = point - count
        scale, one = (1, unit * 10**power) if power >= 0 else (10**-power, unit)
        floor = exact * scale // one
        inside = [n for n in (floor, floor + 1) if low * scale < n * one < high * scale]
        if inside:
            digits = str(min(inside, key=lambda n: (abs(n * one - exact * scale), n & 1)))
            return digits.rstrip("0"), point + len(digits) - count
    raise ValueError("not a float")
