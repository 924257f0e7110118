"""SQL views of a mirror's tables, for engines that read its files without cdcd: DuckDB, Spark.

In: a mirror as of one version, a dialect of SQL.  Out: for each table a statement, and notes for a reader.
Invariant: a view has the rows that `Mirror.table` returns: of each key the newest one, no deleted row, no incomplete
row. It names the files of one version, so it can be read while that version is retained.
Must not: execute a statement; read rows: of the files it reads the columns' names and types.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from cdcd.errors import ConfigError, MirrorInconsistent
from cdcd.escaped_names import unescape
from cdcd.lsn import format_lsn
from cdcd.spark.decoding.name_lists import check_lists
from cdcd.spark.reading.mirror import EPOCH, Mirror
from cdcd.spark.reading.plain_history import ADDED, HistoryQuery
from cdcd.spark.reading.plain_query import TableQuery
from cdcd.spark.reading.sql_dialects import DIALECTS, Dialect, NoSuchView
from cdcd.spark.reading.views import view_names
from cdcd.spark.source.table_options import topics_of
from cdcd.spark.target.commit_log import newer_versions
from cdcd.spark.target.versions import TableEntry

__all__ = ["PlainView", "plain_views", "script_of"]


_FOR_TERMINALS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters but tab and line end, and those that change the direction of a text: they may hide SQL."""


@dataclass(frozen=True, slots=True)
class PlainView:
    """The view of one table. `statement` None: there is none in the dialect, or of a damaged file; a note says why.

    `notes`: in which way its rows are not those of the version's commit, and what its columns cannot be.
    """

    table: str
    name: str
    statement: str | None
    notes: tuple[str, ...] = ()


def plain_views(
    opened: Mirror, dialect: str = "duckdb", *, tables: Sequence[str] = ("*",), prefix: str = ""
) -> list[PlainView]:
    """Return the view `<prefix><schema>_<table>` of each table that `tables` names, all as of one commit.

    With a history, also `<prefix><schema>_<table>_history` of each table with a key, with the columns of `history`.

    The columns are those of `Mirror.table`. Raises ConfigError for an unknown dialect, and for Spark's with a mirror
    of Delta or Iceberg tables; SparkReadError for a name that no table has; StorageError.
    """
    chosen = DIALECTS.get(dialect)
    if chosen is None:
        raise ConfigError(f"unknown dialect {dialect!r}", hint=f"use {' or '.join(DIALECTS)}")
    table_format = opened.version.table_format
    if table_format not in chosen.formats:
        raise ConfigError(
            f"the tables of this mirror have the format {table_format}, of which there are no statements in Spark's "
            "dialect",
            hint="use cdcd.spark.consistent_view, or the dialect duckdb",
        )
    check_lists(tables=tables)
    topics = topics_of(tables, opened.version.prefix, opened.topics, target=opened.target.uri)
    named = {topic: unescape(topic.removeprefix(f"{opened.version.prefix}.")) for topic in topics}
    names = view_names(named.values(), prefix)
    found = []
    for topic, table in named.items():
        entry = opened.version.tables[topic]
        found.append(_view(opened, entry, chosen, table, names[table]))
        if opened.version.scd_type == 2 and entry.keyed is not False:
            found.append(_history_view(opened, entry, chosen, table, names))
    return found


def script_of(opened: Mirror, views: Iterable[PlainView], now_s: float) -> Iterator[str]:
    """Yield the lines of a script that makes the views; it begins with their position, and until when they last.

    `now_s`: a time (Unix epoch) before the mirror was opened. Raises SparkReadError if it is not retained any more.
    """
    version = opened.version
    position = (
        f"all commits below the LSN {format_lsn(version.end_lsn)}" if version.end_lsn else "unknown position"
    )
    at = opened.commit_time
    last = "" if at is None else f", the last one at {at.isoformat()}"
    until = EPOCH + timedelta(seconds=int(_readable_until_s(opened, now_s)))
    yield _comment(f"{opened.target.uri}, version {version.number}: {position}{last}")
    yield _comment(
        f"The views can be read until {until.isoformat()}, or longer if the mirror does not change: create them "
        "again before. A mirror that is started with a shorter --retain ends this time earlier."
    )
    for one in views:
        yield ""
        yield from (_comment(f"{one.table}: {note}") for note in one.notes)
        if one.statement is not None and _FOR_TERMINALS.search(one.statement):
            yield _comment(
                f"{one.table}: no view here, because a name has a character that a terminal interprets"
            )
        elif one.statement is not None:
            yield f"{one.statement};"


def _readable_until_s(opened: Mirror, now_s: float) -> float:
    later = list(newer_versions(opened.target, opened.version))
    newest = later[-1] if later else opened.version
    return (later[0].published_s if later else now_s) + newest.retain_s


def _comment(text: str) -> str:
    """Return a line that is a comment, whatever the text has."""
    return "-- " + "".join(one if one.isprintable() else " " for one in text)


def _view(opened: Mirror, entry: TableEntry, dialect: Dialect, table: str, name: str) -> PlainView:
    notes = [*_notes(opened, entry)]
    if not entry.fields:
        return PlainView(table, name, None, (*notes, "no view, because no row and no column is known yet"))
    lowered = [one.name.lower() for one in entry.fields]
    if len(set(lowered)) < len(lowered):
        notes.append("columns differ only in the case of their names, so the engine may show other names")
    if dialect.many_files is not None and len(entry.files) + len(entry.deltas) > dialect.many_files:
        notes.append(
            f"{len(entry.files) + len(entry.deltas)} files, each of which is a relation of its own for Spark: each "
            "reading of the view takes a while. cdcd.spark.consistent_view has one relation for all"
        )
    try:
        statement = dialect.view(name, TableQuery(opened, entry, dialect).text())
    except (NoSuchView, MirrorInconsistent) as error:
        return PlainView(table, name, None, (*notes, f"no view: {error}"))
    return PlainView(table, name, statement, tuple(notes))


def _history_view(
    opened: Mirror, entry: TableEntry, dialect: Dialect, table: str, names: Mapping[str, str]
) -> PlainView:
    name, notes = f"{names[table]}_history", [*_notes(opened, entry)]
    reserved = sorted({one.name for one in entry.fields} & set(ADDED))
    why = ""
    if not entry.fields:
        why = "because no row and no column is known yet"
    elif name.lower() in {one.lower() for one in names.values()}:
        why = f"because {name} is the view of another table"
    elif reserved:
        why = f"because the table has columns with names of a history: {', '.join(reserved)}"
    if why:
        return PlainView(table, name, None, (*notes, f"no view of the history, {why}"))
    try:
        statement = dialect.view(name, HistoryQuery(opened, entry, dialect).text())
    except (NoSuchView, MirrorInconsistent) as error:
        return PlainView(table, name, None, (*notes, f"no view of the history: {error}"))
    return PlainView(table, name, statement, tuple(notes))


def _notes(opened: Mirror, entry: TableEntry) -> Iterator[str]:
    parked = entry.parked
    if entry.topic in opened.version.loading:
        yield "LOADING: cdcd still copies the table, so rows are missing"
    if parked is not None:
        of = (
            f"is as of the LSN {format_lsn(parked.end_lsn)}"
            if parked.end_lsn
            else "is not as of a single commit"
        )
        yield f"PARKED: the table {of}, and not updated any more: {parked.reason}"
