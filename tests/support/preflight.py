"""Run the checks that a start makes of PostgreSQL, without Kafka and without a configuration.

In: settings and options of the package `source`.  Out: findings.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from cdcd.errors import CdcdError
from cdcd.findings import Finding
from cdcd.schema.policy import DEFAULT_POLICY, Policy
from cdcd.source.connection import connect_sql
from cdcd.source.identity import identify
from cdcd.source.preflight import (
    connection_failure,
    holder_findings,
    publication_findings,
    server_findings,
    setup_findings,
    table_findings,
)
from cdcd.source.publication_catalog import missing_publications, published_tables
from cdcd.source.settings import SourceSettings, StreamOptions
from cdcd.source.slot import read_slot


def preflight(
    settings: SourceSettings,
    *,
    publication_create: bool = False,
    snapshot: bool = True,
    wanted: Callable[[int], StreamOptions] | None = None,
    policy_of: Callable[[str], Policy] = lambda _table: DEFAULT_POLICY,
    heartbeat: bool = False,
    limits_wal: bool = True,
    drops_slot: bool = False,
) -> list[Finding]:
    """Return the findings; an unreachable server is one finding."""
    try:
        connection = connect_sql(settings)
    except CdcdError as error:
        return [connection_failure(error)]
    with contextlib.closing(connection):
        server, slot = identify(connection), read_slot(connection, settings.slot)
        setup = setup_findings(
            settings,
            connection,
            server,
            slot,
            drops_slot=drops_slot,
            wanted=wanted,
            heartbeat=heartbeat,
            limits_wal=limits_wal,
        )
        missing = missing_publications(connection, settings.publications)
        tables = published_tables(connection, settings.publications)
        return [
            *server_findings(server),
            *publication_findings(settings, missing, may_create=publication_create),
            *(() if slot is None else holder_findings(connection, settings, slot)),
            *setup,
            *table_findings(connection, tables, snapshot=snapshot, policy_of=policy_of),
        ]
