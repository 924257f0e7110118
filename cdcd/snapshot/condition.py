"""The table that a copy reads, and the check of the columns and the condition that a user has given for it. Blocking.

In: a cursor, a table.  Out: SQL of the table; SourceSetup for a column that is not published, or a condition that the
server refuses.
Invariant: a condition is one expression: it cannot end the parentheses around it.
Must not: read a row. An error that a row causes is named here, and raised where the row is read.
"""

from __future__ import annotations

from typing import Any

import psycopg2
from psycopg2 import sql

from cdcd.errors import CdcdError, SourceSetup
from cdcd.redaction import clean
from cdcd.snapshot.units import CopiedTable
from cdcd.source.error_map import MAX_REPORT_CHARACTERS, first_line

_WRONG_SQL = frozenset({"42", "22"})  # syntax error or access rule violation; data exception
_COLUMNS_HINT = "correct `columns` of snapshot.overrides for this table, and restart cdcd"
_OVERRIDE = ("in snapshot.overrides", "correct `where` for this table, and restart cdcd")
_DATA_EXCEPTION = "22"
_ROW_HINT = (
    "correct `where` of snapshot.overrides for this table so that the server can evaluate it for every row, or "
    "correct the row, and restart cdcd. With another condition the table is copied again from its first row. If "
    "a command started a blocking snapshot with this condition, start it again with another one"
)
OF_COMMAND = ("of the command", "correct the condition, and start the snapshot again")


def source_of(table: CopiedTable) -> sql.Composable:
    """Return the table as a FROM item: a partitioned table with its partitions, other tables without children.

    The alias of a partitioned table: a condition that the server accepts here is also one of `leaf_source`.
    """
    name = sql.Identifier(table.schema, table.name)
    if table.is_partitioned:
        return sql.SQL("{} AS {}").format(name, sql.Identifier(table.name))
    return sql.SQL("ONLY {}").format(name)


def leaf_source(table: CopiedTable, quoted_leaf: str) -> sql.Composable:
    """Return one partition as a FROM item, under the table's name: a condition may name columns by it."""
    return sql.SQL("ONLY {} AS {}").format(sql.SQL(quoted_leaf), sql.Identifier(table.name))


def failed_for_a_row(error: CdcdError, table: CopiedTable) -> CdcdError:
    """Return the error of a copy; where the table's condition fails for a row, one that says so."""
    sqlstate = str(error.context.get("sqlstate") or "")
    has_other_cause = error.advice != error.hint  # as a text without a form in UTF-8 has
    if table.where is None or has_other_cause or not sqlstate.startswith(_DATA_EXCEPTION):
        return error
    message = f"the server cannot evaluate the condition `where` of the copy for a row: {error.message}"
    return SourceSetup(message, hint=_ROW_HINT, table=table.title, sqlstate=sqlstate)


def check_rules(cursor: Any, table: CopiedTable, origin: tuple[str, str] = _OVERRIDE) -> None:
    """Raise SourceSetup for the table's columns, or if the server does not accept its condition; psycopg2 errors.

    `origin`: where the condition comes from, and the hint.
    """
    if unknown := sorted(set(table.wanted or ()).difference(table.columns)):
        raise SourceSetup(
            "snapshot.overrides chooses columns that the table does not have, or does not publish: "
            + clean(", ".join(unknown), MAX_REPORT_CHARACTERS),
            hint=_COLUMNS_HINT,
            table=table.title,
        )
    if table.where is None:
        return
    # Both forms together: only one expression is valid in parentheses and without.
    query = sql.SQL("EXPLAIN SELECT FROM {} WHERE ({where}) AND {where}").format(
        source_of(table), where=sql.SQL(table.where)
    )
    try:
        cursor.execute(query)
    except psycopg2.errors.InsufficientPrivilege:
        raise
    except psycopg2.Error as error:
        if error.pgcode is None or error.pgcode[:2] not in _WRONG_SQL:
            raise
        primary = clean(first_line(error.diag.message_primary or ""), MAX_REPORT_CHARACTERS)
        raise SourceSetup(
            f"the server does not accept the condition {origin[0]}: {primary}",
            hint=origin[1],
            table=table.title,
        ) from error
