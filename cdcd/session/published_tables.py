"""The published tables for incremental snapshots, each with the plan of its records. Blocking.

In: names or relids.  Out: relids; tables as the publications publish them now.
Invariant: the plan is that of the table's present columns, and is not one of the stream's plans: those are made from
the stream's own descriptions (F43).
Must not: be used by the stream.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from cdcd.avro.plan import RelationPlan
from cdcd.errors import CdcdError, SnapshotRefused
from cdcd.pipeline.changed_rows import first_without_text
from cdcd.pipeline.plans import Plans
from cdcd.schema.policy import Policies
from cdcd.session.snapshot_copy import copied_table
from cdcd.snapshot.chunk_values import ChunkTable
from cdcd.snapshot.selection import Selection
from cdcd.snapshot.units import CopiedTable
from cdcd.source.catalog import Catalog
from cdcd.source.connection import fetch
from cdcd.source.locks import is_lock_timeout
from cdcd.source.publication_catalog import PublishedTable, published_if_plain, published_tables
from cdcd.source.settings import SourceSettings

_RELIDS = """
    SELECT n.nspname || '.' || c.relname, c.oid::int8, c.relkind IN ('r', 'p')
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname || '.' || c.relname = ANY(%s)
"""
_TITLES = """
    SELECT c.oid::int8, n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = ANY(%s::oid[])
"""
_NAME_HINT = "write SCHEMA.TABLE as it is in the database: without quotes, capital letters as they are"
_NO_TABLE_HINT = "name a table: PostgreSQL publishes no rows of views, sequences and foreign tables"
_AMBIGUOUS_HINT = "rename a schema or a table, or copy all tables with `cdcd snapshot start --all`"
_LOCK_TIMEOUT_MS = 5_000
"""The server locks a table to list it. A longer wait would hold up the end of the session."""


class PublishedTables:
    """The tables of one session, with the columns that the rules choose.

    `is_binary`: the stream sends values in binary format.
    """

    def __init__(
        self,
        source: SourceSettings,
        catalog: Catalog,
        plans: Plans,
        selection: Selection,
        policies: Policies,
        *,
        is_binary: bool,
    ) -> None:
        self._source = source
        self._selection = selection
        self._policies = policies
        self._catalog = catalog
        self._plans = plans
        self._is_binary = is_binary
        self._plan_of: dict[int, RelationPlan] = {}

    def relids_of(self, titles: Sequence[str]) -> list[int]:
        """Return the relids of tables SCHEMA.TABLE. Raises SnapshotRefused for a name of no table, or of several."""
        with contextlib.closing(self._connected()) as connection:
            found = fetch(connection, _RELIDS, (list(titles),))
        return [
            _only_table(title, {relid: is_table for name, relid, is_table in found if name == title})
            for title in titles
        ]

    def titles_of(self, relids: Sequence[int]) -> dict[int, str]:
        """Return the names SCHEMA.TABLE of the tables that exist. Raises Source errors."""
        with contextlib.closing(self._connected()) as connection:
            return dict(fetch(connection, _TITLES, (list(relids),)))

    def all(self) -> list[CopiedTable]:
        """Return every published table. Raises Source errors."""
        with contextlib.closing(self._connected()) as connection:
            return list(map(copied_table, published_tables(connection, self._source.publications)))

    def find(self, relid: int) -> ChunkTable | None:
        """Return a published table, None if it is not published; make its plan. Raises Source and schema errors."""
        with contextlib.closing(self._connected()) as connection:
            table = self._published(connection, relid)
        if table is None:
            return None
        relation = self._catalog.relation(relid, table.columns)
        plan = self._plan_of[relid] = self._plans.place(relation)
        key = tuple(relation.columns[i].name for i in plan.key_indexes)
        unreadable = first_without_text(relation, key) if self._is_binary else None
        return ChunkTable(self._copied(table), relation, key, unreadable)

    def _published(self, connection: Any, relid: int) -> PublishedTable | None:
        """Return one published table; while another one is locked, by the catalogs alone. Raises Source errors."""
        names = self._source.publications
        try:
            return next(iter(published_tables(connection, names, only=relid)), None)
        except CdcdError as error:
            if not is_lock_timeout(error) or (table := published_if_plain(connection, names, relid)) is None:
                raise
            return table

    def _copied(self, table: PublishedTable) -> CopiedTable:
        return self._selection.with_columns(copied_table(table, self._policies))

    def _connected(self) -> Any:
        connection = self._catalog.connect()
        fetch(connection, "SELECT set_config('lock_timeout', %s, false)", (str(_LOCK_TIMEOUT_MS),))
        return connection

    def plan_of(self, relid: int) -> RelationPlan:
        """Return the plan of the table as it was found last."""
        return self._plan_of[relid]


def _only_table(title: str, found: Mapping[int, bool]) -> int:
    """Return the one table among the relations of a name, each with whether it is a table. Raises SnapshotRefused."""
    tables = [relid for relid, is_table in found.items() if is_table]
    if not found:
        raise SnapshotRefused("the table does not exist", hint=_NAME_HINT, table=title)
    if not tables:
        raise SnapshotRefused("the name is not that of a table", hint=_NO_TABLE_HINT, table=title)
    if len(tables) > 1:  # names may contain dots
        raise SnapshotRefused("several tables have this name", hint=_AMBIGUOUS_HINT, table=title)
    return tables[0]
