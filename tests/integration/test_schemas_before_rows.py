"""A schema that would halt the daemon is reported before its row: by `cdcd check`, and by the daemon while it
streams.

All three use the same judgement: they report the same code, and none reports a table whose rows arrive.
"""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdcd.cli.check import check
from cdcd.cli.init import init
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.ports import free_port
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.findings import Finding
from cdcd.registry.confluent import Registry
from cdcd.session.start_checks.schema_dry_run import SchemaDryRun
from cdcd.session.start_checks.topics import topic_names
from cdcd.source.connection import connect_sql
from cdcd.source.publication_catalog import published_tables
from tests.integration.conftest import NewDaemon
from tests.support.broken_setups import World, published_in_part_and_by_roots
from tests.support.daemon import await_confirmed
from tests.support.hints import hint_of
from tests.support.nightly import nightly, nightly_except
from tests.support.stack import PostgresServers
from tests.support.waiting import eventually


@pytest.fixture
def world(
    postgres: PostgresServer,
    database: str,
    pg_server: PostgresServers,
    new_daemon: NewDaemon,
    kafka: KafkaBroker,
    tmp_path: Path,
) -> Iterator[World]:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, v text NOT NULL)", dbname=database)
    daemon = new_daemon(postgres, database)
    with contextlib.ExitStack() as ends:
        ends.callback(daemon.__exit__)
        yield World(postgres, database, daemon, kafka, tmp_path, pg_server, ends)


def of_table(findings: list[Finding], name: str = "public.t") -> list[Finding]:
    return [one for one in findings if one.subject == f"table {name}"]


def subjects(registry: SchemaRegistry, name: str) -> dict[str, Any]:
    """Return all versions of all subjects of this name."""

    def get(path: str) -> Any:
        with urllib.request.urlopen(f"{registry.url}/{path}", timeout=30) as answer:
            return json.load(answer)

    return {one: get(f"subjects/{one}/versions") for one in get("subjects") if name in one}


ALTER: dict[str, tuple[str, ...]] = {
    "CDCD-KEY-CHANGED": ("ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t ADD PRIMARY KEY (v)"),
    "CDCD-SCHEMA-INCOMPATIBLE": ("ALTER TABLE t ALTER v TYPE int USING 1",),
}


@pytest.mark.parametrize("code", nightly_except(ALTER, "CDCD-SCHEMA-INCOMPATIBLE"))
def test_a_row_halts_with_the_code_that_check_and_the_log_reported(
    code: str, world: World, registry: SchemaRegistry
) -> None:
    world.run_once()
    world.sql(*ALTER[code])
    before = subjects(registry, world.daemon.name)
    (found,) = (one for one in of_table(check(world.config)) if one.level != "warn")
    assert (found.level, found.code, found.at_row) == ("fail", code, True)
    assert "next row would halt" in found.message
    world.daemon.start().wait_state("streaming")
    eventually(lambda: world.daemon.events("table_will_halt"), "the halt is announced in the log")
    (line,) = world.daemon.events("table_will_halt")
    assert (line["subject"], line["code"]) == (found.subject, code)
    assert hint_of(f" -> {line['hint']}") == found.hint
    assert subjects(registry, world.daemon.name) == before, "the check registered something"
    world.sql("CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO other VALUES (1)")
    await_confirmed(world.server, world.daemon)  # other tables are not affected
    world.sql("INSERT INTO t VALUES (2, 2)")
    world.daemon.wait_state("halted")
    assert world.daemon.events("halted")[-1]["code"] == code


def test_init_makes_what_is_missing_also_where_one_row_would_halt(world: World) -> None:
    world.run_once()
    world.sql(*ALTER["CDCD-KEY-CHANGED"], "CREATE TABLE other (id int PRIMARY KEY)")
    steps = init(world.config)
    assert all(step.is_done for step in steps), steps
    assert f"created  topic {world.daemon.name}.public.other, partitions: 2" in [step.text for step in steps]


@pytest.mark.nightly  # test_evolution lets a type through
@pytest.mark.parametrize("policy", [nightly("new_topic"), "register_with_none"])
def test_what_the_policy_lets_through_is_a_warning_and_the_row_arrives(policy: str, world: World) -> None:
    world.daemon.config["registry"]["incompatible"] = policy
    world.run_once()
    world.sql(*ALTER["CDCD-SCHEMA-INCOMPATIBLE"])
    findings = check(world.config)
    (found,) = of_table(findings)
    assert found.level == "warn"
    place = f"{world.topic}.v2" if policy == "new_topic" else world.topic
    assert f"the next row goes to {place} " in found.message
    world.daemon.start().wait_state("streaming")
    world.sql("INSERT INTO t VALUES (2, 2)")
    await_confirmed(world.server, world.daemon)
    assert [line["topic"] for line in world.daemon.events("incompatible_schema")] == [place]
    assert world.daemon.events("table_will_halt") == []


@pytest.mark.nightly
def test_a_first_key_is_a_warning(world: World) -> None:
    world.sql("ALTER TABLE t DROP CONSTRAINT t_pkey")
    world.run_once()
    world.sql("ALTER TABLE t ADD PRIMARY KEY (id)")
    assert [
        one.level for one in of_table(check(world.config)) if "first record with a key" in one.message
    ] == ["warn"]


def test_a_different_description_in_the_stream_is_no_finding_and_its_rows_arrive(world: World) -> None:
    published_in_part_and_by_roots(world)
    findings = check(world.config)
    assert [one for one in findings if one.level == "fail"] == []
    assert [one.message for one in findings if one.subject == "schemas"] == [
        "the records of 7 topics can be written"
    ]
    world.daemon.start().wait_state("streaming")
    world.sql(
        "INSERT INTO p VALUES ('a', 2, 'v')",
        "INSERT INTO g VALUES (2)",
        "INSERT INTO f VALUES (2, 'v')",
        "INSERT INTO x VALUES (2, 'two')",
        "INSERT INTO k VALUES ('v')",
    )
    await_confirmed(world.server, world.daemon)
    assert world.daemon.events("table_will_halt") == []


def test_schemas_that_somebody_else_has_to_register_are_named(world: World) -> None:
    """The finding has the text of each, and does not propose to register those of messages that cannot be written."""
    world.daemon.config["registry"]["auto_register"] = False
    findings = check(world.config)
    (found,) = of_table(findings)
    assert found.code == "CDCD-REGISTRY-REFUSED"
    assert "register this Avro schema under the subject" in found.hint
    assert ".public.t.Envelope" in found.hint
    (of_messages,) = (
        one for one in findings if one.subject == f"topic {world.daemon.name}.message" and one.level != "ok"
    )
    assert of_messages.level == "warn"
    assert "source.protocol.messages: false" in of_messages.hint


@pytest.fixture
def dry_run(world: World) -> Iterator[Callable[..., list[Finding]]]:
    """Check the published tables with these schemas, without registering them."""

    def result(url: str, **limits: Any) -> list[Finding]:
        world.daemon.config["registry"]["url"] = url
        config = world.config
        with (
            contextlib.closing(connect_sql(config.source_settings())) as connection,
            contextlib.closing(Registry(config.registry_settings())) as registry,
        ):
            tables = published_tables(connection, config.source.publication.names)
            topics = topic_names(config, tables, connection.server_version)
            dry_run = SchemaDryRun(config, registry, lambda _name: False)
            return dry_run.run(topics, at_once=True, **limits)

    return result


def test_tables_that_could_not_be_checked_are_unknown(
    dry_run: Callable[..., list[Finding]], world: World, registry: SchemaRegistry
) -> None:
    world.sql(*(f"CREATE TABLE t{number} (id int PRIMARY KEY)" for number in range(20)))
    (found,) = dry_run(registry.url)
    assert found.level == "ok"
    (found,) = dry_run(f"http://127.0.0.1:{free_port()}")
    assert (found.level, "of 22 topics not checked: " in found.message) == ("unknown", True)
    (found,) = dry_run(registry.url, limit_s=0.0)
    assert (found.level, "of 22 topics could not be checked within 0 s" in found.message) == (
        "unknown",
        True,
    )
    ours = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
    eventually(
        lambda: world.server.execute(ours, world.database) == [(0,)],
        "the check's last thread has closed its clients",
    )
