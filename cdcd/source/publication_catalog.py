"""Read the contents of publications: tables, columns, row filters, identities. Blocking.

In: a SQL connection, publication names.  Out: `PublishedTable`s as pgoutput publishes them now (F41, F42).
Invariant: the list comes from pg_publication_tables and the catalogs; it is never derived from names. A single table
may be described by the catalogs alone, while another table is locked: then pg_publication_tables waits.
Must not: change a publication; `create_publication_sql` only returns the statement.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.errors import ServerInternal, SourceSetup
from cdcd.model import ReplicaIdentity
from cdcd.source.connection import fetch
from cdcd.source.key_index import KeyIndex, TableKeys, table_keys
from cdcd.source.start import quote_identifier

# The last column: with publish_via_partition_root of an ancestor, changes have the ancestor's name (F50).
_TABLES = """
    WITH published AS (
        SELECT c.oid AS relid, p.pubname, p.pubviaroot, {attnames} AS attnames, {rowfilter} AS rowfilter,
               p.pubupdate OR p.pubdelete AS needs_identity
        FROM pg_publication_tables t
        JOIN pg_publication p ON p.pubname = t.pubname
        JOIN pg_namespace n ON n.nspname = t.schemaname
        JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
        WHERE t.pubname = ANY(%s)
    )
    SELECT p.relid, n.nspname, c.relname, c.relreplident::text, p.pubname::text, p.pubviaroot, p.rowfilter,
           p.needs_identity, c.relkind = 'p', row_security_active(p.relid),
           ARRAY(SELECT a.attname::text FROM pg_attribute a
                 WHERE a.attrelid = p.relid AND a.attnum > 0 AND NOT a.attisdropped
                   AND CASE WHEN p.attnames IS NULL THEN a.attgenerated = ''
                            ELSE a.attname = ANY(p.attnames) AND ({generated} OR a.attgenerated = '') END
                 ORDER BY a.attnum),
           EXISTS (SELECT FROM pg_partition_ancestors(p.relid) a(relid)
                   JOIN published r ON r.relid = a.relid::oid AND r.pubviaroot
                   WHERE a.relid::oid <> p.relid)
    FROM published p
    JOIN pg_class c ON c.oid = p.relid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    ORDER BY n.nspname, c.relname, p.pubname
"""

# As the server derives pg_publication_tables. FOR ALL TABLES, and IN SCHEMA, override what is said of a table.
_PLAIN = """
    WITH published AS (
        SELECT c.oid AS relid, p.*, r.prrelid IS NOT NULL AS is_listed, r.prattrs, r.prqual IS NOT NULL AS has_filter,
               p.puballtables OR EXISTS (
                   SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace
               ) AS is_complete
        FROM pg_publication p CROSS JOIN pg_class c
        LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
        WHERE p.pubname = ANY(%s) AND c.oid = %s AND c.oid >= 16384 AND c.relkind = 'r' AND c.relpersistence = 'p'
              AND NOT c.relispartition)
    SELECT p.relid::int8, n.nspname, c.relname, c.relreplident::text, p.pubname::text, p.pubviaroot, NULL::text,
           p.pubupdate OR p.pubdelete, false, row_security_active(p.relid),
           ARRAY(SELECT a.attname::text FROM pg_attribute a
                 WHERE a.attrelid = p.relid AND a.attnum > 0 AND NOT a.attisdropped
                   AND CASE WHEN p.is_complete OR p.prattrs IS NULL THEN a.attgenerated = '' OR ({stored})
                            ELSE a.attnum = ANY(p.prattrs::int2[]) AND ({generated} OR a.attgenerated = '') END
                 ORDER BY a.attnum),
           false, p.has_filter AND NOT p.is_complete
    FROM published p
    JOIN pg_class c ON c.oid = p.relid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE p.is_complete OR p.is_listed
    ORDER BY p.pubname
"""
_LISTS_SINCE, _CATALOGS_UNKNOWN_SINCE = 150_000, 190_000

Ask = Callable[[Connection, str, tuple[Any, ...]], list[tuple[Any, ...]]]
CONFLICT_HINT = "set the same column list for the table in each publication"
LOCK_TIMEOUT_MS = 500
"""How long a start waits for tables that another session is altering, to check whether they can be decoded."""
_TRIES_WHILE_TABLES_GO = 20


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """One table as all publications together publish it.

    `columns` in table order, without generated ones unless they are published (F48); `row_filter` is SQL over
    the table's columns or None. `keys`: its unique indexes, also of columns that are not published.
    `needs_identity`: updates or deletes are published. `has_row_security`: row-level security would hide rows from
    the current role (F41, F73).
    """

    relid: int
    schema: str
    name: str
    columns: tuple[str, ...]
    row_filter: str | None
    identity: ReplicaIdentity
    keys: TableKeys
    needs_identity: bool
    via_root: bool
    is_partitioned: bool
    has_row_security: bool
    publications: tuple[str, ...]
    has_conflicting_columns: bool = False

    @property
    def has_key(self) -> bool:
        """Whether the replica identity has columns; otherwise updates and deletes fail if they are published."""
        if self.identity is ReplicaIdentity.NOTHING:
            return False
        return self.identity is ReplicaIdentity.FULL or (self.key is not None and self.key.is_sent)

    @property
    def key(self) -> KeyIndex | None:
        """The index whose columns are the records' key, unless it has a flaw or is only partly published."""
        return self.keys.of(self.identity)

    @property
    def comes_from_partitions(self) -> bool:
        """Whether its rows are those of its partitions, with their replica identities (F78)."""
        return self.is_partitioned and self.via_root

    @property
    def has_record_key(self) -> bool:
        """Whether its records have a key: unique at every moment (F82), and with all columns published (F45)."""
        if self.key is None or self.key.flaw is not None:
            return False
        return set(self.columns).issuperset(self.key.columns)

    @property
    def conflict(self) -> str:
        """The reason why the server fails to decode each change of the table, empty if it does not fail (F49)."""
        if not self.has_conflicting_columns:
            return ""
        return f"publications {', '.join(self.publications)} have different column lists for it"


def published_tables(
    connection: Connection, names: Sequence[str], ask: Ask = fetch, *, only: int | None = None
) -> list[PublishedTable]:
    """Return the tables that these publications publish, by schema and name. Raises Source errors.

    `only`: the relid of the one table to return, if it is published.

    The server locks each table to read its published columns: `ask` may be a function that waits for the lock.

    Two publications with different column lists for one table make decoding fail (F49): such a table has
    `has_conflicting_columns` set, and the first list.
    """
    has_lists = connection.server_version >= 150_000
    query = _TABLES.format(
        attnames="t.attnames" if has_lists else "NULL::name[]",
        rowfilter="t.rowfilter" if has_lists else "NULL::text",
        generated="true" if connection.server_version >= 180_000 else "false",
    )
    if connection.server_version < 130_000:
        query = query.replace("p.pubname, p.pubviaroot,", "p.pubname, false AS pubviaroot,")
    if only is not None:
        query = query.replace("WHERE t.pubname = ANY(%s)", f"WHERE t.pubname = ANY(%s) AND c.oid = {only:d}")
    by_relid: dict[int, list[tuple[Any, ...]]] = {}
    for row in fetch_while_tables_go(connection, query, names, ask):
        if not row[11]:
            by_relid.setdefault(row[0], []).append(row)
    keys = table_keys(connection, by_relid)
    return [_table(rows, keys.get(relid, TableKeys())) for relid, rows in by_relid.items()]


def fetch_while_tables_go(
    connection: Connection, query: str, names: Sequence[str], ask: Ask
) -> list[tuple[Any, ...]]:
    """Return the rows of a query about published tables, retried while tables are dropped.

    The server opens the tables after listing them, and fails with an internal error if one was dropped in between.
    Raises Source errors.
    """
    for _ in range(_TRIES_WHILE_TABLES_GO - 1):
        with contextlib.suppress(ServerInternal):
            return ask(connection, query, (list(names),))
    return ask(connection, query, (list(names),))


def published_if_plain(connection: Connection, names: Sequence[str], relid: int) -> PublishedTable | None:
    """Return what `published_tables` returns for one table, from the catalogs alone; None if these do not suffice.

    The server's own list waits for the lock of each published table, this one for no lock. It knows tables that are
    neither partitioned nor partitions, and have no row filter. Raises Source errors.
    """
    version = connection.server_version
    if not _LISTS_SINCE <= version < _CATALOGS_UNKNOWN_SINCE:
        return None
    is_stored_published = "p.pubgencols = 's' AND a.attgenerated = 's'" if version >= 180_000 else "false"
    query = _PLAIN.format(generated="true" if version >= 180_000 else "false", stored=is_stored_published)
    rows = fetch(connection, query, (list(names), relid))
    if not rows or any(has_filter for *_, has_filter in rows):
        return None
    keys = table_keys(connection, {relid: rows})
    return _table([row[:-1] for row in rows], keys.get(relid, TableKeys()))


def missing_publications(connection: Connection, names: Sequence[str]) -> list[str]:
    """Return the names for which this database has no publication (F39, F72). Raises Source errors."""
    rows = fetch(
        connection, "SELECT pubname::text FROM pg_publication WHERE pubname = ANY(%s)", (list(names),)
    )
    existing = {row[0] for row in rows}
    return [name for name in names if name not in existing]


def create_publication_sql(name: str, tables: Iterable[str] = (), *, via_root: bool = True) -> str:
    """Return the CREATE PUBLICATION statement for these tables, or for all tables if none are given.

    A table is written `schema.table`, taken literally and quoted here; `schema.*` is a whole schema
    (PostgreSQL 15 or later). Raises SourceSetup for a name without a schema.
    """
    schemas: list[str] = []
    listed: list[str] = []
    for table in tables:
        schema, dot, relation = table.partition(".")
        if not schema or not dot or not relation:
            raise SourceSetup(f"{table!r} is not schema.table", hint="change source.publication.tables")
        if relation == "*":
            schemas.append(quote_identifier(schema))
        else:
            listed.append(f"{quote_identifier(schema)}.{quote_identifier(relation)}")
    parts = [f"TABLE {', '.join(listed)}"] if listed else []
    parts += [f"TABLES IN SCHEMA {', '.join(schemas)}"] if schemas else []
    target = ", ".join(parts) if parts else "ALL TABLES"
    options = " WITH (publish_via_partition_root = true)" if via_root else ""
    return f"CREATE PUBLICATION {quote_identifier(name)} FOR {target}{options}"


def _table(rows: list[tuple[Any, ...]], keys: TableKeys) -> PublishedTable:
    first = rows[0]
    filters = [row[6] for row in rows]
    # A row is published if it matches the filter of any publication; one without a filter publishes all rows.
    row_filter = None if None in filters else " OR ".join(dict.fromkeys(f"({text})" for text in filters))
    columns = tuple(first[10])
    return PublishedTable(
        relid=first[0],
        schema=first[1],
        name=first[2],
        columns=columns,
        row_filter=row_filter,
        identity=ReplicaIdentity(first[3]),
        keys=keys,
        needs_identity=any(row[7] for row in rows),
        via_root=any(row[5] for row in rows),
        is_partitioned=first[8],
        has_row_security=first[9],
        publications=tuple(row[4] for row in rows),
        has_conflicting_columns=any(tuple(row[10]) != columns for row in rows),
    )
