"""Keys of published tables that an option of the configuration makes inexact. Blocking.

In: the published tables, the catalog, the policies.  Out: a finding for each such table.
Invariant: each table that the daemon would log as `key_not_exact` has a finding.
Must not: query a table without such an option.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cdcd.findings import Finding
from cdcd.schema.exact_keys import may_merge, merges
from cdcd.schema.policy import Policies
from cdcd.schema.resolve import resolve
from cdcd.source.catalog import Catalog
from cdcd.source.key_check import record_key
from cdcd.source.publication_catalog import PublishedTable


def inexact_keys(tables: Iterable[PublishedTable], catalog: Catalog, policies: Policies) -> Iterator[Finding]:
    """Yield a warning for each table with an inexact key. Raises Source errors."""
    for table in tables:
        name = f"{table.schema}.{table.name}"
        merged = _merged(table, name, catalog, policies)
        if merged:
            message = (
                "format.numeric_as: double or format.interval_as: microseconds may map two different keys "
                f"to one in {', '.join(merged)}; a reader by key then has only one of the two rows"
            )
            hint = "exclude these columns from the option, in format.overrides"
            yield Finding("warn", f"table {name}", message, hint)


def _merged(table: PublishedTable, name: str, catalog: Catalog, policies: Policies) -> list[str]:
    key = record_key(table, policies.table(name))
    chosen = {column for column in key if may_merge(policies.column(name, column))}
    if not chosen:
        return []
    columns = [column for column in catalog.columns(table.relid, table.columns) if column.name in chosen]
    types = catalog.types({column.type_oid for column in columns})
    found = []
    for column in columns:
        policy = policies.column(name, column.name)
        if merges(column, resolve(column.type_oid, column.typmod, types, policy).type_name, policy):
            found.append(column.name)
    return found
