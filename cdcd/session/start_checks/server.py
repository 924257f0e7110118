"""The checks of a start that ask PostgreSQL: the server, the publications, the tables, the set-up.

In: `StartContext`.  Out: findings; the server and the published tables for the checks that follow.
Must not: change anything (F79).
"""

from __future__ import annotations

import contextlib

from cdcd.errors import SourceSetup
from cdcd.findings import CORRECT_FIRST, Finding, failure
from cdcd.recovery.start_decision import Snapshot, is_anew
from cdcd.session.start_checks.binary_columns import as_reason, text_columns
from cdcd.session.start_checks.context import StartContext
from cdcd.session.start_checks.exact_keys import inexact_keys
from cdcd.snapshot.condition import check_rules
from cdcd.snapshot.units import CopiedTable
from cdcd.source.catalog import Catalog
from cdcd.source.connection import translated
from cdcd.source.identity import identify
from cdcd.source.preflight import publication_findings, server_findings, setup_findings, table_findings
from cdcd.source.publication_catalog import PublishedTable, missing_publications, published_tables
from cdcd.source.slot import read_slot
from cdcd.source.start import quote_identifier


def check_server(known: StartContext) -> list[Finding]:
    """Check that PostgreSQL answers; the finding names the server."""
    known.server = identify(known.sql())
    return list(server_findings(known.server))


def check_publications(known: StartContext) -> list[Finding]:
    """Check that the publications exist, or may be created."""
    missing = missing_publications(known.sql(), known.source.publications)
    may_create = known.config.source.publication.create
    return list(publication_findings(known.source, missing, may_create=may_create))


def check_setup(known: StartContext) -> list[Finding]:
    """Check that the server's settings and the role's privileges are enough for the stream."""
    assert known.server is not None
    connection = known.sql()
    return list(
        setup_findings(
            known.source,
            connection,
            known.server,
            read_slot(connection, known.source.slot) if known.slot is None else known.slot,
            drops_slot=isinstance(known.verdict, Snapshot) and known.verdict.drop_slot,
            wanted=known.config.wanted_options,
            heartbeat=known.config.source.heartbeat_interval_ms > 0,
            limits_wal=known.config.source.wal_guard.drop_slot is not None,
        )
    )


def check_published(known: StartContext) -> list[Finding]:
    """Check that the publications are as they were when records were last written (F39, F42)."""
    if known.identities is None:
        return [Finding("unknown", "published", "not compared: the position is not known", CORRECT_FIRST)]
    found = known.compare(known.identities, is_anew(known.verdict), known.sql())
    is_first = known.stored is None
    same = "the publication is as it was when records were last written"
    return found or [
        Finding("ok", "published", "no record was written yet, so nothing is compared" if is_first else same)
    ]


def check_tables(known: StartContext) -> list[Finding]:
    """List the published tables; check that each has a replica identity and can be read."""
    connection = known.sql()
    known.tables = tables = published_tables(connection, known.source.publications)
    policies = known.config.format.policies()
    copied = known.copied if known.is_anew else []
    findings = list(
        table_findings(
            connection,
            tables,
            snapshot=known.is_anew,
            policy_of=policies.table,
            copied_columns={table.relid: table.selected for table in copied},
        )
    )
    if not tables:
        name = quote_identifier(known.source.publications[0])
        hint = f"ALTER PUBLICATION {name} ADD TABLE schema.table"
        findings.append(Finding("warn", "publication", "the publications have no tables", hint))
    if known.is_anew:
        findings += _rules(known, copied)
    if known.config.source.protocol.binary:
        findings += _binary(known, tables)
    catalog = Catalog(known.source)
    with contextlib.closing(catalog):
        findings += inexact_keys(tables, catalog, policies)
    return findings or [Finding("ok", "tables", f"{len(tables)} tables are published")]


def _rules(known: StartContext, tables: list[CopiedTable]) -> list[Finding]:
    """Check the columns and the conditions of snapshot.overrides, of all tables."""
    findings = []
    with known.sql().cursor() as cursor:
        for table in tables:
            try:
                with translated():
                    check_rules(cursor, table)
            except SourceSetup as error:
                findings.append(failure(f"table {table.title}", error))
    return findings


def _binary(known: StartContext, tables: list[PublishedTable]) -> list[Finding]:
    catalog = Catalog(known.source)
    try:
        known.text_columns = columns = text_columns(tables, catalog, known.config.format.policies())
    finally:
        catalog.close()
    if not columns:
        return []
    option = "source.protocol.binary"
    message = f"left out: {as_reason(columns)}"
    return [Finding("warn", option, message, f"set {option}: false to accept this")]
