"""Tables by their names: those that are there and not published, although somebody may think that they are.

In: a SQL connection, what is published.  Out: `Standing` tables; `taken`, pure: those whose topics hold records.
Invariant: PostgreSQL publishes by oid: who renames a table publishes it under its new name, and what takes its old
name is not published. A partition whose root is published is published, and so is a root by its partitions.
Must not: wait for a lock, or change a publication.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.source.connection import fetch
from cdcd.source.start import quote_identifier

_UNPUBLISHED = """
    WITH published (relid) AS (SELECT unnest(%s::oid[]))
    SELECT c.oid::bigint, n.nspname::text, c.relname::text, c.relpersistence = 'p'
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND c.oid >= 16384
          AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
          AND NOT EXISTS (SELECT FROM published p WHERE p.relid = c.oid)
          AND NOT (c.relispartition AND EXISTS (
              SELECT FROM pg_partition_ancestors(c.oid) a JOIN published p ON p.relid = a.relid::oid))
          AND NOT (c.relkind = 'p' AND EXISTS (
              SELECT FROM pg_partition_tree(c.oid) t JOIN published p ON p.relid = t.relid::oid))
"""


@dataclass(frozen=True, slots=True)
class Standing:
    """A table that exists and is not published. `is_logged`: an unlogged one cannot be."""

    relid: int
    schema: str
    table: str
    is_logged: bool = True

    @property
    def name(self) -> str:
        """The name as publications and topics have it."""
        return f"{self.schema}.{self.table}"

    @property
    def quoted(self) -> str:
        """The name as SQL has it."""
        return f"{quote_identifier(self.schema)}.{quote_identifier(self.table)}"

    def added_to(self, publication: str) -> str:
        """Return the SQL that publishes it."""
        logged = "" if self.is_logged else f"ALTER TABLE {self.quoted} SET LOGGED; "
        return f"{logged}ALTER PUBLICATION {quote_identifier(publication)} ADD TABLE {self.quoted}"


def unpublished(connection: Connection, published: Collection[int]) -> list[Standing]:
    """Return the tables of this database besides those with these oids. Raises Source errors."""
    return [Standing(*row) for row in fetch(connection, _UNPUBLISHED, (list(published),))]


def taken(
    tables: Iterable[Standing], topic_of: Callable[[str, str], str], known: Collection[str]
) -> list[Standing]:
    """Return the tables whose topics hold records, by name. Pure.

    What is written to them does not come, and the topic holds the rows of another table of the name, or of this one
    from before it was taken out of the publication.
    """
    topics = frozenset(known)
    return sorted(
        (one for one in tables if topic_of(one.schema, one.table) in topics), key=lambda one: one.name
    )
