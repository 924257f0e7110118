"""The proleptic Gregorian calendar for any year, because Python's own covers only the years 1 to 9999.

In: astronomical years (0 is 1 BC), months, days.  Out: days since 1970-01-01; and the inverse.
Invariant: `civil_of(days_of(y, m, d)) == (y, m, d)` for every valid date; an invalid date is a ValueError.
"""

from __future__ import annotations

_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_DAYS_PER_ERA = 146_097  # 400 years
_EPOCH_SHIFT = 719_468  # days from 0000-03-01 to 1970-01-01


def is_leap(year: int) -> bool:
    """Whether the astronomical year has a 29 February."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_of(year: int, month: int, day: int) -> int:
    """Return days since 1970-01-01. Raises ValueError for an invalid date."""
    if not 1 <= month <= 12 or not 1 <= day <= _MONTH_DAYS[month - 1] + (month == 2 and is_leap(year)):
        raise ValueError("not a date")
    # With years that begin in March the leap day is the last day, so one formula gives a month's offset.
    shifted = year - (month <= 2)
    era, of_era = divmod(shifted, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * _DAYS_PER_ERA + of_era * 365 + of_era // 4 - of_era // 100 + of_year - _EPOCH_SHIFT


def civil_of(days: int) -> tuple[int, int, int]:
    """Return (astronomical year, month, day) of a number of days since 1970-01-01."""
    era, of_era_days = divmod(days + _EPOCH_SHIFT, _DAYS_PER_ERA)
    of_era = (of_era_days - of_era_days // 1460 + of_era_days // 36_524 - of_era_days // 146_096) // 365
    of_year = of_era_days - (365 * of_era + of_era // 4 - of_era // 100)
    shifted_month = (5 * of_year + 2) // 153
    day = of_year - (153 * shifted_month + 2) // 5 + 1
    month = (shifted_month + 2) % 12 + 1
    return era * 400 + of_era + (month <= 2), month, day
