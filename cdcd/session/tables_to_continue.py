"""List which tables of an interrupted snapshot are published, without a long wait for a lock. Blocking.

In: the settings of the source, relids.  Out: those of the tables that exist and are published.
Invariant: the stream does not wait for a lock on one of the tables: it begins, and the copy of each table waits for
its own lock. The server lists its published tables only if it can lock each of them for a moment. If it cannot, all
tables that exist count as published; the copy of a table that is not fails later, with the reason.
Must not: copy, or decide whether the rules of a table have changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

import structlog

from cdcd.errors import CdcdError
from cdcd.snapshot.units import CopiedTable
from cdcd.source.connection import connect_sql, fetch
from cdcd.source.locks import is_lock_timeout, lock_holders, set_lock_timeout
from cdcd.source.publication_catalog import published_tables
from cdcd.source.settings import SourceSettings

__all__ = ["tables_to_continue", "titles_of"]

_LOG = structlog.stdlib.get_logger("cdcd.snapshot")
LOCK_TIMEOUT_MS = 2_000
_HINT = (
    "the stream begins without the copy of these tables. The copy of a table continues when the transaction that "
    "holds the lock ends: ask the owner of that transaction to end it"
)
_TABLES = """
    SELECT c.oid::int8, n.nspname::text, c.relname::text
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY(%s::oid[])
"""


def tables_to_continue(settings: SourceSettings, relids: Collection[int]) -> list[CopiedTable]:
    """Return the tables with these relids, without their columns. Raises Source errors."""
    with contextlib.closing(connect_sql(settings)) as connection:
        rows = _existing(connection, relids)
        published = _published(connection, settings)
    return [
        CopiedTable(relid, schema, name, (), None, is_partitioned=False)
        for relid, schema, name in rows
        if published is None or relid in published
    ]


def titles_of(settings: SourceSettings, relids: Collection[int]) -> dict[int, str]:
    """Return the names SCHEMA.TABLE of the tables that exist, published or not. Raises Source errors."""
    with contextlib.closing(connect_sql(settings)) as connection:
        return {relid: f"{schema}.{name}" for relid, schema, name in _existing(connection, relids)}


def _existing(connection: Any, relids: Collection[int]) -> list[tuple[int, str, str]]:
    return fetch(connection, _TABLES, (list(relids),))


def _published(connection: Any, settings: SourceSettings) -> set[int] | None:
    """Return the relids of the published tables, None if another session has one of them locked."""
    set_lock_timeout(connection, LOCK_TIMEOUT_MS)
    try:
        return {table.relid for table in published_tables(connection, settings.publications)}
    except CdcdError as error:
        if not is_lock_timeout(error):
            raise
    _LOG.warning("table_locked", held_by=lock_holders(connection) or None, hint=_HINT)
    return None
