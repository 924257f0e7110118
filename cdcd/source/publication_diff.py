"""Read the publications, and compare them with an earlier state (F39, F42, F72).

In: a SQL connection, publication names.  Out: `Published`; `changes(before, now)`, pure.
Invariant: publications and tables are identified by oid: one that was dropped and recreated with the same name is
another. PostgreSQL decodes each change by the publication at the time of that change (F42), so the result does not
describe the data in the stream, but the facts that an operator has to know about it. `dump` and `load` save the state
across restarts.
Must not: wait for a lock (the server locks each published table to read its columns), or change a publication.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.bounded import decompress, json_of, printable
from cdcd.errors import ProgressUnreadable
from cdcd.model import PublicationChangeKind
from cdcd.source.connection import fetch
from cdcd.source.start import quote_identifier
from cdcd.source.table_forms import Forms, TableForm
from cdcd.source.unpublished_tables import UnpublishedTable

FORMAT = 1
"""The format version that `dump` writes."""
_WAITING, _GONE, _REWRITTEN, _FORMS = "waiting", "gone", "rewritten", "forms"

_PUBLICATIONS = """
    SELECT p.pubname::text, p.oid,
           concat_ws(', ', CASE WHEN p.pubinsert THEN 'insert' END, CASE WHEN p.pubupdate THEN 'update' END,
                     CASE WHEN p.pubdelete THEN 'delete' END, CASE WHEN p.pubtruncate THEN 'truncate' END),
           coalesce(to_jsonb(p) ->> 'pubviaroot', 'false') = 'true',
           coalesce(to_jsonb(p) ->> 'pubgencols', ''), p.xmin::text
    FROM pg_publication p WHERE p.pubname = ANY(%s)
"""

# Only explicit column lists: without one the view lists all columns, and ADD COLUMN does not change the publication.
_TABLES = """
    SELECT t.pubname::text, c.oid, t.schemaname || '.' || t.tablename,
           coalesce(to_jsonb(r) ->> 'prattrs', ''), coalesce(to_jsonb(t) ->> 'rowfilter', ''),
           coalesce(r.oid, {schema_entry}, {parent_entry}, 0)
    FROM pg_publication_tables t
    JOIN pg_publication p ON p.pubname = t.pubname
    JOIN pg_namespace n ON n.nspname = t.schemaname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
    LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
    WHERE t.pubname = ANY(%s)
"""
_FIRST_VERSION_WITH_SCHEMAS = 150_000
_SCHEMA_ENTRY = """
    (SELECT s.oid FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = {relation}.relnamespace)
"""
# The nearest parent's entry: a partition is published with its parents, unless it has an entry of its own.
_PARENT_ENTRY = """
    (SELECT h.entry
     FROM (SELECT coalesce(pr.oid, {schema_entry}) AS entry, a.height
           FROM pg_partition_ancestors(c.oid) WITH ORDINALITY AS a (relid, height)
           JOIN pg_class parent ON parent.oid = a.relid
           LEFT JOIN pg_publication_rel pr ON pr.prpubid = p.oid AND pr.prrelid = parent.oid
           WHERE c.relispartition) h
     WHERE h.entry IS NOT NULL ORDER BY h.height LIMIT 1)
"""


@dataclass(frozen=True, slots=True)
class PublicationEntry:
    """A published table: the numbers of its listed columns and a digest of its row filter; empty without one.

    `entry`: the oid of its entry in the publication, else of its schema's, else of that of its nearest parent with an
    entry; 0 without any (FOR ALL TABLES, or a table without its own entry in the record of an older cdcd).
    """

    name: str
    columns: str = ""
    row_filter: str = ""
    entry: int = 0


@dataclass(frozen=True, slots=True)
class Publication:
    """One publication: its options, and its tables by oid. `version` changes with each ALTER."""

    oid: int
    operations: str
    via_root: bool = False
    generated: str = ""
    version: str = ""
    tables: Mapping[int, PublicationEntry] = field(default_factory=dict)


Published = Mapping[str, Publication]
"""The publications that exist, by name."""


@dataclass(frozen=True, slots=True)
class Step:
    """The oids before and after a change: if the same change is made a second time, its oids differ.

    `entry`: None if the table is not published any more. `relid` is 0 for a change of the publication itself.
    """

    publication: str
    was_oid: int
    oid: int
    relid: int = 0
    was_entry: int = 0
    entry: int | None = None

    def stands(self, now: Published) -> bool:
        """Return whether the state after the change is still the current one.

        Without an entry, only this distinguishes a second change from the first.
        """
        publication = now.get(self.publication)
        if publication is None or publication.oid != self.oid:
            return False
        table = publication.tables.get(self.relid)
        return self.relid == 0 or (None if table is None else table.entry) == self.entry


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a publication. `table` is empty for a change of the publication itself.

    `step`: for the kinds of changes that may halt cdcd.
    """

    kind: PublicationChangeKind
    publication: str
    table: str = ""
    what: str = ""
    step: Step | None = None
    sql: str = ""
    """The SQL that publishes a table again that a user may believe to be published; empty if none is needed."""

    @property
    def description(self) -> str:
        """A short description of the change."""
        text = _SAID[self.kind].format(table=self.table, publication=self.publication)
        return f"{text}: {self.what}" if self.what else text


_SAID: dict[PublicationChangeKind, str] = {
    "dropped": "publication {publication} was dropped",
    "recreated": "publication {publication} was dropped and recreated",
    "table_removed": "table {table} was removed from publication {publication}",
    "table_readded": "table {table} was removed from publication {publication} and added again",
    "table_replaced": "another table now has the name {table}, and publication {publication} does not publish it",
    "table_recreated": "table {table} of publication {publication} was dropped; a new one of this name is published",
    "table_renamed": "table {table} of publication {publication} was renamed",
    "table_attached": "table {table} of publication {publication} is now published as a partition of another table",
    "table_gone": "table {table} of publication {publication} was dropped",
    "table_added": "table {table} was added to publication {publication}",
    "columns": "the column list of table {table} in publication {publication} was changed",
    "rows": "the row filter of table {table} in publication {publication} was changed",
    "options": "the options of publication {publication} were changed",
}


_SET_TABLE = (
    "unless one SET TABLE changed the list or filter, which looks the same, but does not remove the table"
)


def read_published(connection: Connection, names: Sequence[str]) -> Published:
    """Return the existing publications with these names. Raises Source errors; SourceUnavailable for a lock."""
    tables: dict[str, dict[int, PublicationEntry]] = {}
    has_schemas = connection.server_version >= _FIRST_VERSION_WITH_SCHEMAS
    sql = _tables_sql(has_schemas)
    for publication, relid, name, columns, row_filter, entry in fetch(connection, sql, (list(names),)):
        table = PublicationEntry(name, columns, _digest(row_filter), entry)
        tables.setdefault(publication, {})[relid] = table
    rows = fetch(connection, _PUBLICATIONS, (list(names),))
    return {name: Publication(*(*row, tables.get(name, {}))) for name, *row in rows}


def _tables_sql(has_schemas: bool) -> str:
    of_table, of_parent = (
        _SCHEMA_ENTRY.format(relation=relation) if has_schemas else "NULL" for relation in ("c", "parent")
    )
    return _TABLES.format(schema_entry=of_table, parent_entry=_PARENT_ENTRY.format(schema_entry=of_parent))


def _digest(row_filter: str) -> str:
    """Return a digest of the filter for comparisons: a filter contains values, which must not be stored."""
    return hashlib.sha256(row_filter.encode()).hexdigest()[:16] if row_filter else ""


class StoredTables(NamedTuple):
    """What is stored with the publications: as in `NewTables`. Older versions ignore it.

    `waiting`: those that have joined.
    """

    waiting: Mapping[int, bool] = MappingProxyType({})
    gone: frozenset[str] = frozenset()
    rewritten: Mapping[int, bool] = MappingProxyType({})
    forms: Forms = MappingProxyType({})


NOTHING_STORED = StoredTables()


def dump(published: Published, tables: StoredTables = NOTHING_STORED) -> str:
    """Return a text for `load` and `load_new_tables`, which is small even for thousands of tables."""
    document = {
        name: [*astuple(replace(publication, tables={}))[:-1], _rows(publication.tables)]
        for name, publication in sorted(published.items())
    }
    whole: dict[str, object] = {"format": FORMAT, "publications": document}
    stored = {
        _WAITING: sorted(tables.waiting.items()),
        _GONE: sorted(tables.gone),
        _REWRITTEN: sorted(tables.rewritten.items()),
        _FORMS: [[relid, *form] for relid, form in sorted(tables.forms.items())],
    }
    whole |= {name: one for name, one in stored.items() if one}
    text = json.dumps(whole, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode())).decode()


def _rows(tables: Mapping[int, PublicationEntry]) -> list[list[object]]:
    return [[relid, *_HOW(table)] for relid, table in sorted(tables.items())]


_HOW = attrgetter(*(one.name for one in fields(PublicationEntry)))
"""The same as `astuple`, but ten times as fast: there may be thousands of tables."""


def load_new_tables(text: str) -> StoredTables:
    """Return the tables from a text of `dump` that `load` can read. Raises ProgressUnreadable."""
    try:
        document = _document(text)
        return StoredTables(
            {int(relid): bool(is_again) for relid, is_again in document.get(_WAITING, ())},
            frozenset(str(name) for name in document.get(_GONE, ())),
            {int(relid): bool(is_again) for relid, is_again in document.get(_REWRITTEN, ())},
            {
                int(relid): TableForm(str(file), int(columns), int(highest))
                for relid, file, columns, highest in document.get(_FORMS, ())
            },
        )
    except (ValueError, TypeError, AttributeError, binascii.Error) as error:
        raise ProgressUnreadable("the stored list of new tables is malformed") from error


def _document(text: str) -> Any:
    return json_of(decompress(base64.b64decode(text, validate=True)))


def load(text: str) -> Published:
    """Return the publications from a text of `dump`. Raises ProgressUnreadable."""
    try:
        document = _document(text)
        if document["format"] != FORMAT:
            raise ProgressUnreadable(
                f"the stored description of the publication has format {printable(document['format'])}; "
                f"this version reads {FORMAT}",
                hint="run the version of cdcd that wrote it, or a newer one",
            )
        return {name: _loaded(*parts) for name, parts in document["publications"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, binascii.Error) as error:
        raise ProgressUnreadable("the stored description of the publication is malformed") from error


def _loaded(
    oid: int, operations: str, via_root: bool, generated: str, version: str, tables: list[list[Any]]
) -> Publication:
    by_oid = {relid: PublicationEntry(*how) for relid, *how in tables}
    return Publication(oid, operations, via_root, generated, version, by_oid)


def published_oids(now: Published) -> set[int]:
    """Return the oids of all published tables."""
    return {relid for publication in now.values() for relid in publication.tables}


def table_names(published: Published) -> dict[int, str]:
    """Return the names of all published tables, by oid."""
    return {
        relid: table.name for publication in published.values() for relid, table in publication.tables.items()
    }


def not_published_any_more(before: Published, now: Published) -> set[int]:
    """Return the oids of the tables that were published and no longer are."""
    return published_oids(before) - published_oids(now)


def changes(
    before: Published,
    now: Published,
    not_published: Collection[UnpublishedTable] = (),
    roots: Mapping[int, str] = MappingProxyType({}),
    named: Collection[int] | None = None,
) -> list[Change]:
    """Return the changes from `before` to `now`. Pure.

    `not_published`: the tables that exist and are not published. `roots`: the root's name of each table that became
    a partition, by oid. `named`: the tables that a publication lists itself, so that DROP TABLE can remove them;
    None: all of them.
    """
    found: list[Change] = []
    by_relid = {one.relid: one for one in not_published}
    by_name = {one.name: one for one in not_published}
    for name, was in before.items():
        publication = now.get(name)
        if publication is None:
            found.append(Change("dropped", name))
            continue
        if publication.oid != was.oid:
            found.append(Change("recreated", name, step=Step(name, was.oid, publication.oid)))
        found += _options(name, was, publication)
        found += _tables(name, was, publication, by_relid, by_name, roots)
    if named is not None:
        found = [replace(one, sql="") if _takes_out_unnamed(one, named) else one for one in found]
    return found


def _options(name: str, was: Publication, now: Publication) -> list[Change]:
    differing = [
        f"{what} was {old or 'nothing'}, is {new or 'nothing'}"
        for what, old, new in (
            ("publish", was.operations, now.operations),
            ("publish_via_partition_root", str(was.via_root).lower(), str(now.via_root).lower()),
            ("publish_generated_columns", was.generated, now.generated),
        )
        if old != new
    ]
    if not differing and was.version != now.version and was.oid == now.oid:
        differing = [
            "the publication was altered, and altered back; changes in between were published by its definition "
            "at that time"
        ]
    return [Change("options", name, what="; ".join(differing))] if differing else []


def _tables(
    name: str,
    was: Publication,
    now: Publication,
    by_relid: Mapping[int, UnpublishedTable],
    by_name: Mapping[str, UnpublishedTable],
    roots: Mapping[int, str],
) -> list[Change]:
    found: list[Change] = []
    published_names = {table.name: relid for relid, table in now.tables.items()}
    recreated: set[int] = set()
    for relid, old in was.tables.items():
        new = now.tables.get(relid)
        if new == old:
            continue
        step = Step(name, was.oid, now.oid, relid, old.entry, None if new is None else new.entry)
        other = by_name.get(old.name)
        if new is not None:
            if new.name != old.name:
                found += _renamed(name, old, new, other, step)
            found += _published_as(name, old, new, step)
        elif (there := by_relid.get(relid)) is not None:
            what = "" if there.name == old.name else f"it is {there.name} now"
            found.append(Change("table_removed", name, old.name, what, step, there.added_to(name)))
        elif relid in roots:
            found.append(Change("table_attached", name, old.name, f"it is a partition of {roots[relid]}"))
            if roots[relid] == old.name:
                recreated.add(published_names[old.name])
        elif other is not None:
            found.append(_replaced(name, old, other, step))
        elif old.name in published_names:
            relid_now = published_names[old.name]
            recreated.add(relid_now)
            step = _joining(name, was, now, relid_now)
            found.append(Change("table_recreated", name, old.name, step=step))
        else:
            found.append(Change("table_gone", name, old.name))
    for relid, new in now.tables.items():
        if relid not in was.tables and relid not in recreated:
            found.append(Change("table_added", name, new.name, step=_joining(name, was, now, relid)))
    return found


def _joining(name: str, was: Publication, now: Publication, relid: int) -> Step:
    return Step(name, was.oid, now.oid, relid, 0, now.tables[relid].entry)


def _renamed(
    name: str, old: PublicationEntry, new: PublicationEntry, other: UnpublishedTable | None, step: Step
) -> list[Change]:
    """Return the changes for a table whose name or schema changed, and whose old name another table may have."""
    renamed = Change("table_renamed", name, new.name, f"it was {old.name}", step)
    if other is None:
        return [renamed]
    return [replace(renamed, sql=_drop(name, new.name)), _replaced(name, old, other, step)]


def _takes_out_unnamed(change: Change, named: Collection[int]) -> bool:
    """Return whether the SQL would remove a table that is only published with its schema, a parent or all tables."""
    return change.kind == "table_renamed" and change.step is not None and change.step.relid not in named


def _drop(publication: str, name: str) -> str:
    """Return the SQL that removes a table, empty if a dot in a name makes the schema ambiguous."""
    schema, _, table = name.partition(".")
    if "." in table:
        return ""
    quoted = ".".join(map(quote_identifier, (schema, table)))
    return f"ALTER PUBLICATION {quote_identifier(publication)} DROP TABLE {quoted}"


def _replaced(name: str, old: PublicationEntry, other: UnpublishedTable, step: Step) -> Change:
    step = replace(step, relid=other.relid, entry=None)
    return Change("table_replaced", name, old.name, "", step, other.added_to(name))


def _published_as(name: str, old: PublicationEntry, new: PublicationEntry, step: Step) -> list[Change]:
    found: list[Change] = []
    if old.columns != new.columns:
        found.append(Change("columns", name, new.name))
    if old.row_filter != new.row_filter:
        found.append(Change("rows", name, new.name))
    # Compared with the record of an older cdcd, a table without an entry may have one now: that is not a change.
    if old.entry not in (0, new.entry) and step.was_oid == step.oid:
        found.append(Change("table_readded", name, new.name, _SET_TABLE if found else "", step))
    return found
