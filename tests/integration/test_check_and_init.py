"""`cdcd check` reports every failure at once; `cdcd init` creates the missing objects. On real servers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import AdminClient

from cdcd.cli import main
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.ports import free_port
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.support.nightly import nightly
from tests.support.stack import PostgresServers, run_script
from tests.support.topics import new_name


class Command:
    """One configuration file, and the commands that use it."""

    def __init__(self, path: Path, tree: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
        self.path, self.tree, self._capsys = path, tree, capsys

    def run(self, *words: str) -> tuple[int, str]:
        self.path.write_text(yaml.safe_dump(self.tree))
        self._capsys.readouterr()
        status = main([*words, "--config", str(self.path)])
        return status, self._capsys.readouterr().out

    def check(self) -> tuple[int, dict[str, tuple[str, str, str]]]:
        status, text = self.run("check", "--json")
        return status, {
            one["subject"]: (one["level"], one["message"], one["hint"]) for one in json.loads(text)
        }


@pytest.fixture
def command(
    tmp_path: Path,
    postgres: PostgresServer,
    database: str,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    """Return a valid configuration for the session's servers and a database of the test's own with one table."""
    for name in [name for name in os.environ if name.startswith("CDCD_") and "__" in name]:
        monkeypatch.delenv(name)
    run_script(postgres.dsn(database), "CREATE TABLE public.orders (id int PRIMARY KEY)")
    tree: dict[str, Any] = {
        "name": new_name("shop").replace("-", "_"),
        "source": {"dsn": postgres.dsn(database)},
        "sink": {"bootstrap_servers": kafka.bootstrap, "topics": {"partitions": 2, "replication_factor": 1}},
        "registry": {"url": registry.url},
    }
    return Command(tmp_path / "prod.yaml", tree, capsys)


def topics_of(kafka: KafkaBroker, prefix: str) -> dict[str, int]:
    found = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=30).topics
    return {name: len(topic.partitions) for name, topic in found.items() if name.startswith(prefix)}


def slot_of(command: Command) -> str:
    return "cdcd_" + str(command.tree["name"])


def publish_orders(command: Command, postgres: PostgresServer, database: str) -> None:
    run_script(postgres.dsn(database), f'CREATE PUBLICATION "{slot_of(command)}" FOR TABLE public.orders')


def test_init_makes_what_check_misses_and_check_is_content(
    command: Command, postgres: PostgresServer, database: str, kafka: KafkaBroker
) -> None:
    name = command.tree["name"]
    slot = slot_of(command)
    command.tree["source"]["publication"] = {"create": True, "tables": ["public.orders"]}
    command.tree["snapshot"] = {"mode": "never"}
    command.tree["sink"]["too_large"] = "dead_letter"

    status, plan = command.run("init", "--dry-run")
    assert status == 0
    assert f'CREATE PUBLICATION "{slot}" FOR TABLE "public"."orders"' in plan
    assert f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput');" in plan
    assert f"--create --topic {name}.__progress --partitions 1" in plan
    letters = f"--create --topic {name}.__dead_letters --partitions 1 --replication-factor 1"
    assert f"{letters} --config cleanup.policy=delete --config retention.ms=-1" in plan, (
        "dead letters are retained"
    )
    assert postgres.execute("SELECT count(*) FROM pg_publication", dbname=database) == [(0,)]
    assert topics_of(kafka, name) == {}

    status, output = command.run("init")
    assert status == 0, output
    assert [line.split()[:2] for line in output.splitlines()] == [
        ["created", "publication"],
        ["created", "topic"],
        ["created", "topic"],
        ["created", "topic"],
        ["created", "topic"],
        ["created", "slot"],
    ]
    made = {f"{name}.public.orders": 2, f"{name}.message": 2}
    made |= {f"{name}.__progress": 1, f"{name}.__dead_letters": 1}
    assert topics_of(kafka, name) == made
    slots = postgres.execute("SELECT plugin FROM pg_replication_slots WHERE slot_name = %s", slot)
    assert slots == [("pgoutput",)]

    status, output = command.run("init")
    assert status == 0
    assert {line.split()[0] for line in output.splitlines()} == {"exists"}
    status, plan = command.run("init", "--dry-run")
    assert plan == "# nothing is missing\n"
    status, found = command.check()
    assert [subject for subject, (level, _, _) in found.items() if level == "fail"] == []
    assert status == 0
    assert found[f"topic {name}.public.orders"][0] == "ok"


def test_the_commands_of_a_dry_run_are_sql_that_works(
    command: Command, postgres: PostgresServer, database: str
) -> None:
    command.tree["snapshot"] = {"mode": "never"}
    command.tree["source"]["publication"] = {"create": True, "tables": ["public.orders"]}
    _, plan = command.run("init", "--dry-run")
    statements = [line for line in plan.splitlines() if line.endswith(";")]
    assert len(statements) == 2
    run_script(postgres.dsn(database), *statements)
    _, plan = command.run("init", "--dry-run")
    assert [line for line in plan.splitlines() if not line.startswith("kafka-topics.sh")] == []


@pytest.mark.parametrize("by", ["init", nightly("sql")])
def test_a_slot_for_prepared_transactions_is_made_as_one_and_checked(
    by: str, command: Command, postgres: PostgresServer, database: str
) -> None:
    """F35: such a slot is accepted with the option on, and refused with the option off."""
    command.tree["snapshot"] = {"mode": "never"}
    command.tree["source"]["publication"] = {"create": True, "tables": ["public.orders"]}
    command.tree["source"]["protocol"] = {"two_phase": True}
    if by == "init":
        status, output = command.run("init")
        assert status == 0, output
    else:
        _, plan = command.run("init", "--dry-run")
        run_script(postgres.dsn(database), *(line for line in plan.splitlines() if line.endswith(";")))
    slots = postgres.execute(
        "SELECT two_phase FROM pg_replication_slots WHERE slot_name = %s", slot_of(command)
    )
    assert slots == [(True,)]
    _, found = command.check()
    assert found["slot"][0] == "ok"
    del command.tree["source"]["protocol"]
    _, found = command.check()
    assert found["slot"][0] == "fail"
    assert "source.protocol.two_phase: true" in found["slot"][2]


def test_init_leaves_the_slot_to_the_daemon_when_a_snapshot_is_wanted(
    command: Command, postgres: PostgresServer, database: str
) -> None:
    """F36: slot and snapshot are created together."""
    slot = slot_of(command)
    publish_orders(command, postgres, database)
    status, output = command.run("init")
    assert status == 0, output
    assert f"later    slot {slot}" in output
    assert postgres.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", slot) == []


def test_init_prints_the_sql_of_a_publication_it_may_not_create(command: Command) -> None:
    status, output = command.run("init")
    assert status == 1
    assert "missing  publication" in output
    assert "CREATE PUBLICATION" in output


def test_check_says_how_each_topic_will_be_made(
    command: Command, postgres: PostgresServer, database: str
) -> None:
    name = command.tree["name"]
    publish_orders(command, postgres, database)
    status, found = command.check()
    assert status == 0, found
    assert found[f"topic {name}.public.orders"][:2] == ("ok", "will be created with 2 partitions")
    assert found[f"topic {name}.message"][:2] == ("ok", "will be created with 2 partitions")
    assert found[f"topic {name}.__progress"][:2] == ("ok", "will be created with 1 partition")

    command.tree["sink"]["topics"]["create"] = False
    status, found = command.check()
    assert status == 1
    assert found[f"topic {name}.public.orders"][0] == "fail"
    level, _, hint = found[f"topic {name}.message"]
    assert level == "warn", "the daemon runs until a logical message is written"
    assert "source.protocol.messages: false" in hint
    command.tree["source"]["protocol"] = {"messages": False}
    _, found = command.check()
    assert f"topic {name}.message" not in found


def test_check_names_all_that_is_wrong_on_every_side(
    command: Command, pg_server: PostgresServers, tmp_path: Path
) -> None:
    with pg_server.fresh(18, settings={"wal_level": "replica"}) as server:
        run_script(
            server.dsn(),
            "CREATE TABLE public.keyless (v text)",
            "CREATE PUBLICATION there FOR TABLE public.keyless",
        )
        command.tree["source"] = {
            "dsn": server.dsn(),
            "publication": {"names": ["there", "gone"]},
            "slot": {"create": False},
        }
        command.tree["sink"]["bootstrap_servers"] = f"127.0.0.1:{free_port()}"
        command.tree["registry"]["url"] = f"http://127.0.0.1:{free_port()}"
        status, found = command.check()
    assert status == 1
    failed = {subject: hint for subject, (level, _, hint) in found.items() if level == "fail"}
    assert "ALTER SYSTEM SET wal_level" in failed["wal_level"]
    assert any("gone" in hint for hint in failed.values())
    assert {"kafka", "registry"} <= failed.keys()
    keyless = next((level, hint) for subject, (level, _, hint) in found.items() if "keyless" in subject)
    assert keyless[0] in ("warn", "fail")
    assert "REPLICA IDENTITY" in keyless[1]
    assert all(hint for hint in failed.values())


@pytest.mark.nightly
def test_check_with_a_wrong_password_still_asks_kafka_and_the_registry(
    command: Command, pg_server: PostgresServers, tmp_path: Path
) -> None:
    secret = tmp_path / "password"
    secret.write_text("canary-wrong\n")
    secret.chmod(0o644)
    with pg_server.fresh(18, authentication="scram-sha-256") as server:
        server.create_role("cdcd", "right")
        command.tree["source"] = {"dsn": server.dsn(user="cdcd"), "password_file": str(secret)}
        status, found = command.check()
    assert status == 1
    assert [subject for subject, (level, _, _) in found.items() if level == "fail"] == ["source password"]
    assert found[f"file {secret}"] == (
        "warn",
        "every user of this machine can read this secret",
        f"chmod o= {secret}",
    )
    assert found["kafka"][0] == found["registry"][0] == "ok"
    assert "canary-wrong" not in str(found)
