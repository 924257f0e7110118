"""Catalog look-ups that the Relation message leaves open: types, keys, and the relation itself. Blocking.

In: oids.  Out: `PgType`s closed over elements and base types, `TableKeys`, `Relation`s.
Invariant: `relation` says what pgoutput's Relation message says for the same table. Answers are of now, which
may be later than the change being read (F44): types are cached by oid and asked for again only when unknown, but
composite types at each look-up, because the stream does not say when one was altered.
Several threads may ask; one question at a time is on its way.
Must not: be called from the event loop's thread while the stream runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.errors import SnapshotStale, SourceUnavailable
from cdcd.model import Attribute, Column, PgType, Relation, ReplicaIdentity
from cdcd.source.connection import connect_sql, fetch
from cdcd.source.key_index import TableKeys, table_keys
from cdcd.source.publication_catalog import PublishedTable
from cdcd.source.settings import SourceSettings

# A true array prints braces: int2vector and oidvector have elements too, but their own output function.
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

# Two statements are one transaction: the session's own lc_monetary is C again after it.
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
    SELECT a.attname::text, a.atttypid, a.atttypmod, a.attgenerated <> ''
    FROM pg_attribute a WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""

_Answer = TypeVar("_Answer")


class Catalog:
    """The catalog of one database over one connection, opened when needed, reopened once when broken."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._connection: Connection | None = None
        self._types: dict[int, PgType] = {}
        self._lock = threading.RLock()

    def types(self, oids: Iterable[int]) -> dict[int, PgType]:
        """Return the types of these oids and of all that they are made of, by oid.

        A type that is no longer there is left out (F44). Raises Source errors.
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
        """Return the unique indexes of a table, None when it is gone. Raises Source errors."""
        found = self._ask(lambda connection: table_keys(connection, (relid,)))
        if relid not in found and not self._fetch(_RELATION, (relid,)):
            return None
        return found.get(relid, TableKeys())

    def relation(self, relid: int, columns: Iterable[str] | None = None) -> Relation:
        """Return the table as the Relation message would describe it now.

        `columns` are the published ones; None means all that are not generated. Their order is the table's. Raises
        SnapshotStale when the table is gone, or some of them are: DDL came between the two look-ups, not to stay.
        """
        rows = self._fetch(_RELATION, (relid,))
        if not rows:
            raise SnapshotStale(f"relation {relid} is not in the catalog any more")
        schema, name, identity_letter = rows[0]
        identity = ReplicaIdentity(identity_letter)
        keys = self.keys(relid) or TableKeys()
        published = None if columns is None else set(columns)
        found = self.columns(relid, published)
        if published is not None and len(found) != len(published):
            raise SnapshotStale(f"{schema}.{name} does not have all of the published columns any more")
        return described(relid, schema, name, identity, keys, found)

    def relation_of(self, table: PublishedTable) -> Relation:
        """Return the same of a table of which identity and keys are known. Raises SnapshotStale, as above."""
        found = self.columns(table.relid, set(table.columns))
        if len(found) != len(table.columns):
            raise SnapshotStale(
                f"{table.schema}.{table.name} does not have all of the published columns any more"
            )
        return described(table.relid, table.schema, table.name, table.identity, table.keys, found)

    def columns(self, relid: int, published: Collection[str] | None) -> tuple[Column, ...]:
        """Return the published columns of a table in its order, none where it is gone; nothing is said of the key."""
        return tuple(
            Column(name, type_oid, typmod, is_key=False)
            for name, type_oid, typmod, is_generated in self._fetch(_COLUMNS, (relid,))
            if (not is_generated if published is None else name in published)
        )

    def close(self) -> None:
        """Close the connection; a later look-up opens another."""
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
            self._connection = connect_sql(self._settings)
        return self._connection

    def _fetch(self, sql: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return self._ask(lambda connection: fetch(connection, sql, parameters))

    def _ask(self, ask: Callable[[Connection], _Answer]) -> _Answer:
        """Run a query, over a new connection when the kept one turns out to be broken."""
        with self._lock:
            if self._connection is not None:
                try:
                    return ask(self._connection)
                except SourceUnavailable:
                    self.close()
            return ask(self._connected())


def described(
    relid: int, schema: str, name: str, identity: ReplicaIdentity, keys: TableKeys, columns: Iterable[Column]
) -> Relation:
    """Return the relation with the columns flagged that the Relation message flags."""
    sent = keys.sent(identity)
    is_full = identity is ReplicaIdentity.FULL
    flagged = tuple(replace(column, is_key=is_full or column.name in sent) for column in columns)
    return Relation(relid, schema, name, identity, flagged)


def _within(pg_type: PgType) -> tuple[int, ...]:
    """Return the types that one is made of."""
    attributes = (attribute.type_oid for attribute in pg_type.attributes)
    return (pg_type.element_oid, pg_type.base_oid, pg_type.subtype_oid, *attributes)
