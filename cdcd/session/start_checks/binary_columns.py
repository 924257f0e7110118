"""Published columns that cannot be read in binary, by the catalog, before a stream begins. Blocking.

In: settings, the catalog, the policies.  Out: the columns by name, each with its type.
Invariant: a column in the result would end the session with its first value in binary (`option_downgrade`). A column
whose type has no send function is sent as text anyway and is not in the result. While a published table is locked,
the result is empty.
Must not: read rows; `option_downgrade` handles a column that is added later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from cdcd.model import Column, PgType
from cdcd.schema.policy import Policies
from cdcd.schema.resolve import resolve
from cdcd.source.catalog import Catalog
from cdcd.source.publication_catalog import PublishedTable
from cdcd.source.settings import StreamOptions

_LOG = structlog.stdlib.get_logger("cdcd.session")
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A published column that can be read as text only."""

    table: str
    column: str
    type_name: str


def in_readable_form(options: StreamOptions, columns: Sequence[TextColumn]) -> StreamOptions:
    """Return the options without binary, and log that, if a published column cannot be read exactly in binary."""
    if not options.binary or not columns:
        return options
    _LOG.warning("option_disabled", option="source.protocol.binary", reason=as_reason(columns))
    return replace(options, binary=False)


def text_columns(tables: Iterable[PublishedTable], catalog: Catalog, policies: Policies) -> list[TextColumn]:
    """Return the published columns that cannot be read exactly in binary. Raises Source errors."""
    found = []
    for table in tables:
        name = f"{table.schema}.{table.name}"
        columns = catalog.columns(table.relid, table.columns)
        types = catalog.types({column.type_oid for column in columns})
        found += [
            TextColumn(name, column.name, kind)
            for column in columns
            if (kind := _only_as_text(name, column, types, policies)) is not None
        ]
    return found


def as_reason(columns: Sequence[TextColumn]) -> str:
    """Return one line that names the columns, at most the first ten."""
    shown = ", ".join(f"{one.table}.{one.column} ({one.type_name})" for one in columns[:_SHOWN])
    more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
    return f"the binary format of these columns cannot be read exactly: {shown}{more}"


def _only_as_text(table: str, column: Column, types: Mapping[int, PgType], policies: Policies) -> str | None:
    """Return the name of the column's type if it can be read as text only, else None."""
    pg_type = types.get(column.type_oid)
    if pg_type is not None and not pg_type.has_send:
        return None
    found = resolve(column.type_oid, column.typmod, types, policies.column(table, column.name))
    return None if found.codec.binary is not None else found.domain or found.type_name
