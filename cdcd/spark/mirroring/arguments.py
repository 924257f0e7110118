"""The arguments of a mirror that can be checked without a connection.

In: the values that `mirror` was given.  Out: nothing, or ConfigError, which names the argument.
Invariant: what is wrong here is reported before the target is locked, or taken over from another mirror.
Must not: connect, import PySpark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdcd.errors import ConfigError
from cdcd.spark.decoding.name_lists import check_lists
from cdcd.spark.tables.retained_columns import CHANGED_TYPES, DROPPED_COLUMNS
from cdcd.spark.target.versions import SCD_TYPES, TABLE_FORMATS

__all__ = ["check_choices", "check_history", "check_names", "check_numbers"]

_CHOICES: Mapping[str, tuple[object, ...]] = {
    "format": TABLE_FORMATS,
    "stored_as_scd_type": SCD_TYPES,
    "on_error": ("park", "fail"),
    "dropped_columns": DROPPED_COLUMNS,
    "changed_types": CHANGED_TYPES,
}
_LEAST = {"buckets": 1, "max_rows": 1, "driver_bytes": 0, "retain_s": 0, "retry_s": 0}


def check_choices(**given: object) -> None:
    """Raise ConfigError for a value that is none of the parameter's."""
    for name, value in given.items():
        if value not in _CHOICES[name]:
            choices = " or ".join(repr(one) for one in _CHOICES[name])
            raise ConfigError(f"the mirror has an unknown {name}", hint=f"use {choices}", value=value)


def check_numbers(**given: float) -> None:
    """Raise ConfigError for a number that is too small."""
    for name, value in given.items():
        if value < _LEAST[name]:
            raise ConfigError(
                f"{name} of the mirror is too small", hint=f"use a number from {_LEAST[name]} on", value=value
            )


def check_names(tables: Sequence[str], topics: Sequence[str]) -> None:
    """Raise ConfigError for tables and topics that are no lists, or are both given."""
    check_lists(tables=tables, topics=topics)
    if tables and topics:
        raise ConfigError(
            "tables and topics of the mirror exclude each other", hint="name the tables in one of them"
        )


def check_history(retain_s: float | None, scd_type: int) -> None:
    """Raise ConfigError for a retention of the history without a history, or of no time."""
    if retain_s is not None and (scd_type != 2 or retain_s <= 0):
        raise ConfigError(
            "the retention of the history needs a mirror with a history, and a time above 0",
            hint="pass history_retain_s > 0 with stored_as_scd_type=2 (--history-retain with --scd 2), or neither",
        )
