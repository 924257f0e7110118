"""The commands for a walsender, and the statement that creates a publication."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdcd.errors import SourceSetup
from cdcd.source.publication_catalog import create_publication_sql
from cdcd.source.settings import SourceSettings, StreamOptions
from cdcd.source.slot import check_slot_name, create_slot_command
from cdcd.source.start import start_command

SETTINGS = SourceSettings("host=h", lambda: None, "shop", ("pub",), "a")


def test_start_replication_with_the_least_options() -> None:
    assert start_command(SETTINGS, StreamOptions(1), 0x16_B374_D848) == (
        "START_REPLICATION SLOT \"shop\" LOGICAL 16/B374D848 (proto_version '1', publication_names '\"pub\"')"
    )


def test_start_replication_with_all_options() -> None:
    options = StreamOptions(4, "parallel", binary=True, messages=True, origin="none", two_phase=True)
    assert start_command(SETTINGS, options, 0).endswith(
        "streaming 'parallel', binary 'true', messages 'true', origin 'none', two_phase 'true')"
    )


def test_a_publication_name_is_an_identifier_inside_a_literal() -> None:
    settings = replace(SETTINGS, publications=("a,b", 'c"d', "e'f"))
    assert 'publication_names \'"a,b","c""d","e\'\'f"\')' in start_command(settings, StreamOptions(1), 0)


@pytest.mark.parametrize(
    ("server", "export", "failover", "tail"),
    [
        (140_000, True, False, "pgoutput EXPORT_SNAPSHOT"),
        (140_000, False, False, "pgoutput NOEXPORT_SNAPSHOT"),
        (150_000, True, False, "pgoutput (SNAPSHOT 'export')"),
        (160_000, False, False, "pgoutput (SNAPSHOT 'nothing')"),
        (170_000, True, True, "pgoutput (SNAPSHOT 'export', FAILOVER true)"),
    ],
)
def test_create_slot_speaks_the_grammar_of_the_server(
    server: int, export: bool, failover: bool, tail: str
) -> None:
    command = create_slot_command(replace(SETTINGS, failover=failover), server, export)
    assert command == f'CREATE_REPLICATION_SLOT "shop" LOGICAL {tail}'


@pytest.mark.parametrize("server", [140_000, 160_000])
def test_a_failover_slot_needs_17(server: int) -> None:
    with pytest.raises(SourceSetup):
        create_slot_command(replace(SETTINGS, failover=True), server, True)


@pytest.mark.parametrize(
    ("failover", "tail"), [(False, "TWO_PHASE true)"), (True, "FAILOVER true, TWO_PHASE true)")]
)
def test_a_slot_for_prepared_transactions_says_so(failover: bool, tail: str) -> None:
    command = create_slot_command(replace(SETTINGS, two_phase=True, failover=failover), 170_000, False)
    assert command.endswith(tail)


def test_a_slot_for_prepared_transactions_needs_15() -> None:
    with pytest.raises(SourceSetup, match="two_phase needs PostgreSQL 15, the server is 14"):
        create_slot_command(replace(SETTINGS, two_phase=True), 140_000, True)


@pytest.mark.parametrize("name", ["", "Shop", "a-b", 'a"b', "x" * 64])
def test_names_that_no_slot_can_have(name: str) -> None:
    with pytest.raises(SourceSetup):
        check_slot_name(name)


def test_create_publication() -> None:
    assert create_publication_sql("p", via_root=False) == 'CREATE PUBLICATION "p" FOR ALL TABLES'
    assert create_publication_sql("p", ["public.a", 'Sales.x"y', "audit.*"]) == (
        'CREATE PUBLICATION "p" FOR TABLE "public"."a", "Sales"."x""y", TABLES IN SCHEMA "audit" '
        "WITH (publish_via_partition_root = true)"
    )
    with pytest.raises(SourceSetup):
        create_publication_sql("p", ["orders"])
