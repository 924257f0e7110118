"""The options of typed columns: `format("cdcd").option("table", "public.orders")`.

In: Spark's options, names in lower case; the names of the existing topics.  Out: `TableOptions`, and the topics.
Invariant: a name or a pattern that no topic has is an error; nothing is read without a table that was asked for.
Must not: connect, import PySpark.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, get_args

from cdcd.errors import SparkReadError
from cdcd.escaped_names import unescape
from cdcd.spark.decoding.change_columns import ErrorPolicy, SpecialPolicy

TABLE_OPTIONS = ("table", "before", "columns", "sourceFields", "special", "onError", "caseSensitive")
_ONLY_WITH_TABLE = TABLE_OPTIONS[1:]
_SWITCHES = ("before", "caseSensitive")
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "special": get_args(SpecialPolicy),
    "onError": get_args(ErrorPolicy),
}
_PATTERN = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The tables, by name or pattern, and the parameters of their decoding by name."""

    tables: tuple[str, ...]
    parameters: tuple[tuple[str, Any], ...]
    is_case_sensitive: bool


def table_options(given: Mapping[str, str]) -> TableOptions | None:
    """Return the options of valid values; None without a table, for raw records."""
    tables = _names(given, "table")
    if not tables:
        return None
    parameters = {
        "before": given.get("before", "").lower() == "true",
        "columns": _names(given, "columns") if "columns" in given else None,
        "source": _names(given, "sourceFields"),
        "special": given.get("special", "map"),
        "on_error": given.get("onerror", "fail"),
    }
    return TableOptions(tables, tuple(parameters.items()), given.get("casesensitive", "").lower() == "true")


def wrong_values(given: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the options."""
    yield from wrong_switches(given, _SWITCHES)
    for name, choices in _CHOICES.items():
        value = given.get(name.lower())
        if value is not None and value not in choices:
            yield f"option {name} has to be {' or '.join(choices)}"
    if not _names(given, "table"):
        if "table" in given:
            yield "option table is empty: name a table, or omit the option for the raw records of all topics"
        yield from (
            f"option {name} needs the option table" for name in _ONLY_WITH_TABLE if name.lower() in given
        )
    else:
        yield from (
            f"options table and {name} exclude each other" for name in ("topics", "ids") if name in given
        )


def wrong_switches(given: Mapping[str, str], names: Iterable[str]) -> Iterator[str]:
    """Yield what is wrong with options that are true or false, in any case."""
    for name in names:
        if given.get(name.lower(), "true").lower() not in ("true", "false"):
            yield f"option {name} has to be true or false"


def topics_of(
    tables: Iterable[str], prefix: str, existing: Iterable[str], *, target: str | None = None
) -> tuple[str, ...]:
    """Return the topics of the tables, each once, sorted for a pattern. `existing`: topics of tables.

    A table's name is its topic's without the prefix, or PostgreSQL's with all its characters. `target`: of the mirror
    whose tables these are, None: they are those of Kafka. Raises SparkReadError for one that does not exist.
    """
    names = _by_name(prefix, existing)
    found: dict[str, None] = {}
    for table in tables:
        topic = _named(names, table)
        matched = _matched(names, table) if topic is None else [topic]
        if not matched:
            raise missing_table(table, prefix, names.values(), target=target)
        found.update(dict.fromkeys(matched))
    return tuple(found)


def is_only_in_a_pattern(topic: str, tables: Iterable[str], prefix: str, existing: Iterable[str]) -> bool:
    """Return whether no table is the topic's by its name."""
    names = _by_name(prefix, existing)
    return all(_named(names, table) != topic for table in tables)


def named_topic(table: str, prefix: str, existing: Iterable[str]) -> str | None:
    """Return the topic of the table of exactly this name, None if there is none; of two, that of the topic's name."""
    return _named(_by_name(prefix, existing), table)


def _by_name(prefix: str, existing: Iterable[str]) -> dict[str, str]:
    return {topic.removeprefix(f"{prefix}."): topic for topic in sorted(existing)}


def _named(names: Mapping[str, str], table: str) -> str | None:
    return names.get(table) or next((topic for name, topic in names.items() if unescape(name) == table), None)


def _matched(names: Mapping[str, str], table: str) -> list[str]:
    return [
        topic
        for name, topic in names.items()
        if fnmatchcase(name, table) or fnmatchcase(unescape(name), table)
    ]


def missing_table(
    table: str, prefix: str, existing: Iterable[str], *, target: str | None = None
) -> SparkReadError:
    """Return the error of a name, or a pattern, that no table has. `target`: as for `topics_of`."""
    shown = {unescape(name).lower(): unescape(name) for name in _by_name(prefix, existing)}
    near = [shown[one] for one in difflib.get_close_matches(table.lower(), shown, n=3)]
    meant = f"did you mean {' or '.join(near)}" if near else None
    is_pattern = bool(_PATTERN & set(table))
    if target is not None:
        return SparkReadError(
            "no table of the mirror matches the pattern" if is_pattern else "the mirror has no such table",
            hint=meant or "correct the name; `python -m cdcd.spark status --target TARGET` lists the tables",
            table=table,
            target=target,
        )
    known = meant or "correct the table or the prefix"
    what = "no topic matches the pattern" if is_pattern else "the table has no topic"
    return SparkReadError(
        what,
        hint=f"{known}; cdcd creates the topic of a table with its first row",
        table=table,
        prefix=prefix,
    )


def split_names(text: str) -> tuple[str, ...]:
    """Return the names of a list with commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _names(given: Mapping[str, str], option: str) -> tuple[str, ...]:
    return split_names(given.get(option.lower(), ""))
