"""Find tables that are not published although a user may believe so, because of their names.

In: a SQL connection, the published tables.  Out: `UnpublishedTable`s; `with_topic`, pure: those whose topics have
records.
Invariant: PostgreSQL publishes by oid: a renamed table stays published under its new name, and a new table with the
old name is not published. A partition with a published root is published, and so is a root of which all partitions
are published.
Must not: wait for a lock, or change a publication.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.source.connection import fetch
from cdcd.source.start import quote_identifier

# IS TRUE keeps the planner from joining `published` to each table's partitions: a hash of all oids, built once.
_UNPUBLISHED = """
    WITH published (relid) AS (SELECT unnest(%s::oid[]))
    SELECT c.oid::bigint, n.nspname::text, c.relname::text, c.relpersistence = 'p',
           EXISTS (SELECT FROM pg_publication p WHERE p.puballtables AND p.pubname = ANY(%s))
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND c.oid >= 16384
          AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
          AND NOT EXISTS (SELECT FROM published p WHERE p.relid = c.oid)
          AND NOT (c.relispartition AND EXISTS (
              SELECT FROM pg_partition_ancestors(c.oid) a
              WHERE (a.relid::oid IN (SELECT relid FROM published)) IS TRUE))
          AND NOT (c.relkind = 'p' AND EXISTS (
              SELECT FROM pg_partition_tree(c.oid) t
              WHERE (t.relid::oid IN (SELECT relid FROM published)) IS TRUE)
              AND NOT EXISTS (
                  SELECT FROM pg_partition_tree(c.oid) t
                  WHERE t.isleaf AND NOT EXISTS (
                      SELECT FROM pg_partition_ancestors(t.relid) a
                      WHERE (a.relid::oid IN (SELECT relid FROM published)) IS TRUE)))
"""
_ATTACHED = """
    SELECT c.oid::bigint, (
        SELECT n.nspname || '.' || r.relname
        FROM pg_partition_ancestors(c.oid) WITH ORDINALITY a (relid, height)
        JOIN pg_class r ON r.oid = a.relid JOIN pg_namespace n ON n.oid = r.relnamespace
        WHERE r.oid <> c.oid AND r.oid = ANY(%s::oid[]) ORDER BY a.height DESC LIMIT 1)
    FROM pg_class c WHERE c.relispartition AND c.oid = ANY(%s::oid[])
"""
_NAMED = """
    SELECT r.prrelid::bigint FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
    WHERE p.pubname = ANY(%s)
"""
_EXISTING = "SELECT oid::bigint FROM pg_class WHERE oid = ANY(%s::oid[])"


@dataclass(frozen=True, slots=True)
class UnpublishedTable:
    """A table that exists and is not published. `is_logged`: an unlogged table cannot be published.

    `is_of_all`: a publication is FOR ALL TABLES.
    """

    relid: int
    schema: str
    table: str
    is_logged: bool = True
    is_of_all: bool = False

    @property
    def name(self) -> str:
        """The name as in publications and topics."""
        return f"{self.schema}.{self.table}"

    @property
    def quoted(self) -> str:
        """The name as a quoted SQL identifier."""
        return f"{quote_identifier(self.schema)}.{quote_identifier(self.table)}"

    def added_to(self, publication: str) -> str:
        """Return the SQL that publishes the table."""
        logged = "" if self.is_logged else f"ALTER TABLE {self.quoted} SET LOGGED; "
        if self.is_of_all:
            return logged.removesuffix("; ")
        return f"{logged}ALTER PUBLICATION {quote_identifier(publication)} ADD TABLE {self.quoted}"


def read_unpublished(
    connection: Connection, published: Collection[int], publications: Collection[str] = ()
) -> list[UnpublishedTable]:
    """Return the tables of this database other than those with these oids. Raises Source errors.

    `publications`: the publications that cdcd reads.
    """
    rows = fetch(connection, _UNPUBLISHED, (list(published), list(publications)))
    return [UnpublishedTable(*row) for row in rows]


def read_named(connection: Connection, publications: Collection[str]) -> set[int]:
    """Return the oids of the tables that these publications list themselves, not by schema or parent."""
    return {relid for (relid,) in fetch(connection, _NAMED, (list(publications),))}


def read_existing(connection: Connection, relids: Collection[int]) -> set[int]:
    """Return those of these tables that exist. Raises Source errors."""
    return {relid for (relid,) in fetch(connection, _EXISTING, (list(relids),))} if relids else set()


def read_attached(
    connection: Connection, relids: Collection[int], published: Collection[int]
) -> dict[int, str]:
    """Return, of these tables, the partitions of published tables, with the names of their roots."""
    if not relids:
        return {}
    rows = fetch(connection, _ATTACHED, (list(published), list(relids)))
    return {relid: root for relid, root in rows if root is not None}


def with_topic(
    tables: Iterable[UnpublishedTable], topic_of: Callable[[str, str], str], known: Collection[str]
) -> list[UnpublishedTable]:
    """Return the tables whose topics have records, sorted by name. Pure.

    Changes of these tables are not published, and the topic has the rows of another table with that name, or of this
    table from before it was removed from the publication.
    """
    topics = frozenset(known)
    return sorted(
        (one for one in tables if topic_of(one.schema, one.table) in topics), key=lambda one: one.name
    )
