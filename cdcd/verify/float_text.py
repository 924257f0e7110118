"""The texts of real and double precision with extra_float_digits above 0 (common/d2s.c, f2s.c).

In: a number.  Out: PostgreSQL's text of it: the shortest that is read back as the same number.
Invariant: a text exactly midway between two numbers is none of either number's: PostgreSQL excludes the bounds, where
Python's repr includes them (1e+23).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

_DOUBLE_DIGITS, _REAL_DIGITS = 15, 6
"""The exponent from which the text is in scientific notation."""
_EXACT_DOUBLE, _EXACT_REAL = 2.0**53, 2.0**24
_NORMAL_DOUBLE, _NORMAL_REAL = 2.0**-1022, 2.0**-126
_LEAST_EXPONENT = -4


def double_text(value: float) -> bytes:
    """Return float8out's text."""
    if not math.isfinite(value) or value == 0:
        return _other(value)
    if _NORMAL_DOUBLE <= abs(value) < _EXACT_DOUBLE:
        return _shown(repr(value), _DOUBLE_DIGITS)
    return _shown(_within(value, 17, _double_neighbour), _DOUBLE_DIGITS)


def real_text(value: float) -> bytes:
    """Return float4out's text; `value` is a real."""
    if not math.isfinite(value) or value == 0:
        return _other(value)
    return _cached_real(value)


@lru_cache(maxsize=4096)
def _cached_real(value: float) -> bytes:
    """Return the text of a real that is not 0: 0.0 equals -0.0, so that a cache cannot distinguish them."""
    if _NORMAL_REAL <= abs(value) < _EXACT_REAL and abs(math.frexp(value)[0]) != 0.5:
        for digits in range(_REAL_DIGITS, 10):
            text = f"{value:.{digits - 1}e}"
            if struct.unpack("<f", struct.pack("<f", float(text)))[0] == value:
                return _shown(text, _REAL_DIGITS)
    return _shown(_within(value, 9, _real_neighbour), _REAL_DIGITS)


def _other(value: float) -> bytes:
    if value != value:
        return b"NaN"
    if value == 0:
        return b"-0" if math.copysign(1, value) < 0 else b"0"
    return b"Infinity" if value > 0 else b"-Infinity"


def _within(value: float, most: int, neighbour: Callable[[float, int], Fraction]) -> str:
    """Return the shortest decimal strictly between the midpoints to both neighbours, of several the nearest one.

    At a power of two the lower midpoint is nearer than the upper one, so the nearest decimal of a length may be
    outside while the next one is inside.
    """
    exact = Fraction(abs(value))
    low, high = (exact + neighbour(abs(value), -1)) / 2, (exact + neighbour(abs(value), 1)) / 2
    sign = "-" if value < 0 else ""
    for digits in range(1, most):
        near = Decimal(f"{abs(value):.{digits - 1}e}")
        unit = Decimal((0, (1,), near.adjusted() - digits + 1))
        inside = [one for one in (near, near + unit, near - unit) if low < Fraction(one) < high]
        if inside:
            return f"{sign}{min(inside, key=lambda one: abs(Fraction(one) - exact)):.{digits - 1}e}"
    return f"{value:.{most - 1}e}"


def _double_neighbour(value: float, step: int) -> Fraction:
    return _neighbour("<q", "<d", value, step, Fraction(2) ** 1024)


def _real_neighbour(value: float, step: int) -> Fraction:
    return _neighbour("<i", "<f", value, step, Fraction(2) ** 128)


def _neighbour(bits: str, number: str, value: float, step: int, beyond: Fraction) -> Fraction:
    (as_bits,) = struct.unpack(bits, struct.pack(number, value))
    (found,) = struct.unpack(number, struct.pack(bits, as_bits + step))
    return beyond if found == math.inf else Fraction(found)


def _shown(text: str, most_digits: int) -> bytes:
    """Return the digits of a decimal or scientific notation in PostgreSQL's notation."""
    mantissa, _, exponent_text = text.partition("e")
    sign, mantissa = ("-", mantissa[1:]) if mantissa[0] == "-" else ("", mantissa)
    whole, _, fraction = mantissa.partition(".")
    point = len(whole) + int(exponent_text or 0)
    digits = whole + fraction
    stripped = digits.lstrip("0")
    point -= len(digits) - len(stripped)
    digits = stripped.rstrip("0")
    exponent = point - 1
    if exponent < _LEAST_EXPONENT or exponent >= most_digits:
        tail = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{tail}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}".encode()
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}".encode()
    if point >= len(digits):
        return f"{sign}{digits}{'0' * (point - len(digits))}".encode()
    return f"{sign}{digits[:point]}.{digits[point:]}".encode()
