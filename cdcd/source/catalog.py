"""Catalog queries for data that the Relation message lacks: types, keys, and the relation itself. Blocking.

In: oids.  Out: `PgType`s with their element and base types, `TableKeys`, `Relation`s.
Invariant: `relation` returns the same as pgoutput's Relation message for the same table. Results show the current
catalog, which may be later than the change being read (F44). Types are cached by oid and queried only when unknown;
composite types are queried each time, because the stream does not report when one was altered.
Several threads may call it; queries run one at a time. Once the session has decided which server it reads, each
connection is to that server: another one has other oids (F59).
Must not: be called from the event loop's thread while the stream runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.errors import CdcdError, SnapshotStale, SourceUnavailable
from cdcd.model import Attribute, Column, PgType, Relation, ReplicaIdentity
from cdcd.schema.attnums import KnownAttnums, NumberedColumn, known_attnums
from cdcd.source.connection import connect_sql, fetch
from cdcd.source.identity import ServerIdentity, check_same_server
from cdcd.source.key_index import TableKeys, table_keys
from cdcd.source.publication_catalog import PublishedTable
from cdcd.source.settings import SourceSettings

# A true array has array_out: int2vector and oidvector also have elements, but other output functions.
_TYPES = """
    SELECT t.oid, n.nspname::text, t.typname::text, t.typtype::text,
           CASE WHEN t.typoutput = 'pg_catalog.array_out'::regproc THEN t.typelem ELSE 0 END,
           t.typbasetype, t.typtypmod, t.typdelim::text,
           COALESCE(CASE WHEN t.typtype = 'm' THEN r.rngtypid ELSE r.rngsubtype END, 0),
           COALESCE(e.extname::text, ''),
           (SELECT json_agg(json_build_array(a.attname, a.atttypid::int8, a.atttypmod) ORDER BY a.attnum)
            FROM pg_attribute a
            WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped),
           t.typsend <> 0
    FROM pg_type t
    JOIN pg_namespace n ON n.oid = t.typnamespace
    LEFT JOIN pg_range r ON t.oid IN (r.rngtypid, {multirange})
    LEFT JOIN pg_depend d ON d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e'
    LEFT JOIN pg_extension e ON e.oid = d.refobjid
    WHERE t.oid = ANY(%s::oid[])
"""
_COMPOSITE = "c"
_MULTIRANGE_SINCE = 140_000  # has pg_range.rngmultitypid

# Both statements run in one transaction: afterwards the session's lc_monetary is C again.
_MONEY_OID = 790
_FRACTION_DIGITS = """
    SELECT set_config('lc_monetary', reset_val, true) FROM pg_settings WHERE name = 'lc_monetary';
    SELECT scale(0::money::numeric)
"""

_RELATION = """
    SELECT n.nspname::text, c.relname::text, c.relreplident::text
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s
"""

_COLUMNS = """
    SELECT a.attrelid, a.attname::text, a.atttypid, a.atttypmod, a.attgenerated <> ''
    FROM pg_attribute a WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attrelid, a.attnum
"""
_TABLES_IN_A_QUERY = 500

# A publication leaves out generated columns, and with a column list others, too. Before 15 there are no lists.
_ATTNUMS = """
    SELECT a.attname::text, a.atttypid, a.atttypmod, a.attnum,
           a.attgenerated <> '' OR EXISTS (SELECT FROM pg_publication_rel r
                                           WHERE r.prrelid = a.attrelid AND to_jsonb(r) ->> 'prattrs' IS NOT NULL),
           c.relnatts
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum
"""

_Answer = TypeVar("_Answer")


class Catalog:
    """The catalog of one database over one connection, opened on demand and reopened once if broken."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._connection: Connection | None = None
        self._expected: ServerIdentity | None = None
        self._types: dict[int, PgType] = {}
        self._lock = threading.RLock()

    def expect(self, server: ServerIdentity) -> None:
        """Query only this server from now on."""
        with self._lock:
            self.close()
            self._types.clear()
            self._expected = server

    def types(self, oids: Iterable[int]) -> dict[int, PgType]:
        """Return the types with these oids and all types that they consist of, by oid.

        A type that no longer exists is left out (F44). Raises Source errors.
        """
        with self._lock:
            return self._found_types(set(oids))

    def _found_types(self, wanted: set[int]) -> dict[int, PgType]:
        self._types = {oid: entry for oid, entry in self._types.items() if entry.kind != _COMPOSITE}
        found: dict[int, PgType] = {}
        while wanted:
            self._load_types(wanted - self._types.keys())
            known = [self._types[oid] for oid in wanted if oid in self._types]
            found.update((entry.oid, entry) for entry in known)
            wanted = {oid for entry in known for oid in _within(entry)} - found.keys() - {0}
        return found

    def keys(self, relid: int) -> TableKeys | None:
        """Return the unique indexes of a table, None if the table does not exist. Raises Source errors."""
        found = self._ask(lambda connection: table_keys(connection, (relid,)))
        if relid not in found and not self._fetch(_RELATION, (relid,)):
            return None
        return found.get(relid, TableKeys())

    def relation(self, relid: int, columns: Iterable[str] | None = None) -> Relation:
        """Return the table as the Relation message would describe it now.

        `columns` are the published ones; None means all that are not generated. Their order is the table's. Raises
        SnapshotStale if DDL between two queries dropped the table or a column, and Source errors.
        """
        rows = self._fetch(_RELATION, (relid,))
        if not rows:
            raise SnapshotStale(f"relation {relid} was dropped in the meantime")
        schema, name, identity_letter = rows[0]
        identity = ReplicaIdentity(identity_letter)
        keys = self.keys(relid) or TableKeys()
        published = None if columns is None else set(columns)
        found = self.columns(relid, published)
        if published is not None and len(found) != len(published):
            raise SnapshotStale(f"{schema}.{name} no longer has all of the published columns")
        return with_key_flags(relid, schema, name, identity, keys, found)

    def relation_of(self, table: PublishedTable) -> Relation:
        """Return the relation of a table whose identity and keys are known. Raises as `relation`."""
        return self.relations_of([table])[0]

    def relations_of(self, tables: Sequence[PublishedTable]) -> list[Relation]:
        """Do the same as `relation_of` for many tables, by few queries."""
        return [
            relation
            for begin in range(0, len(tables), _TABLES_IN_A_QUERY)
            for relation in self._relations_of(tables[begin : begin + _TABLES_IN_A_QUERY])
        ]

    def _relations_of(self, tables: Sequence[PublishedTable]) -> Iterator[Relation]:
        columns = self._columns({table.relid: set(table.columns) for table in tables})
        for table in tables:
            found = columns.get(table.relid, ())
            if len(found) != len(table.columns):
                raise SnapshotStale(f"{table.schema}.{table.name} no longer has all of the published columns")
            yield with_key_flags(table.relid, table.schema, table.name, table.identity, table.keys, found)

    def attnums(self, relation: Relation) -> KnownAttnums:
        """Return what the table's present columns show about the attnums of a described relation."""
        rows = self._fetch(_ATTNUMS, (relation.relid,))
        highest = rows[0][-1] if rows else 0
        return known_attnums(relation, (NumberedColumn(*columns) for *columns, _ in rows), highest)

    def columns(self, relid: int, published: Collection[str] | None) -> tuple[Column, ...]:
        """Return the published columns of a table in its order, without key flags; none if the table is missing."""
        return tuple(self._columns({relid: published}).get(relid, ()))

    def _columns(self, published: Mapping[int, Collection[str] | None]) -> dict[int, list[Column]]:
        found: dict[int, list[Column]] = {}
        for relid, name, type_oid, typmod, is_generated in self._fetch(_COLUMNS, (list(published),)):
            names = published[relid]
            if not is_generated if names is None else name in names:
                found.setdefault(relid, []).append(Column(name, type_oid, typmod, is_key=False))
        return found

    def close(self) -> None:
        """Close the connection; a later query opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _load_types(self, oids: set[int]) -> None:
        if not oids:
            return
        for *columns, attributes, has_send in self._fetch(self._types_sql(), (list(oids),)):
            parts = tuple(Attribute(*attribute) for attribute in attributes or ())
            self._types[columns[0]] = replace(PgType(*columns), attributes=parts, has_send=has_send)
        if _MONEY_OID in oids:
            ((digits,),) = self._fetch(_FRACTION_DIGITS, ())
            self._types[_MONEY_OID] = replace(self._types[_MONEY_OID], fraction_digits=digits)

    def _types_sql(self) -> str:
        is_known = self._connected().server_version >= _MULTIRANGE_SINCE
        return _TYPES.format(multirange="r.rngmultitypid" if is_known else "r.rngtypid")

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self.connect()
        return self._connection

    def connect(self) -> Connection:
        """Return a connection to the same server, which the caller closes. Raises Source errors."""
        connection = connect_sql(self._settings)
        if self._expected is not None:
            try:
                check_same_server(connection, self._expected)
            except CdcdError:
                connection.close()
                raise
        return connection

    def _fetch(self, sql: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return self._ask(lambda connection: fetch(connection, sql, parameters))

    def _ask(self, ask: Callable[[Connection], _Answer]) -> _Answer:
        """Run a query; if the existing connection is broken, run it over a new one."""
        with self._lock:
            if self._connection is not None:
                try:
                    return ask(self._connection)
                except SourceUnavailable:
                    self.close()
            return ask(self._connected())


def with_key_flags(
    relid: int, schema: str, name: str, identity: ReplicaIdentity, keys: TableKeys, columns: Iterable[Column]
) -> Relation:
    """Return the relation with the same key flags of columns as in the Relation message."""
    sent = keys.sent(identity)
    is_full = identity is ReplicaIdentity.FULL
    flagged = tuple(replace(column, is_key=is_full or column.name in sent) for column in columns)
    return Relation(relid, schema, name, identity, flagged)


def _within(pg_type: PgType) -> tuple[int, ...]:
    """Return the oids of the types that this type consists of."""
    attributes = (attribute.type_oid for attribute in pg_type.attributes)
    return (pg_type.element_oid, pg_type.base_oid, pg_type.subtype_oid, *attributes)
