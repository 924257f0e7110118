"""Two daemons that would write to the same resources: the second is refused before it changes anything (F80).

In: a daemon that streams, and a second configuration that shares a resource with it. The judge is the servers: their
content before and after the second has halted, and the first daemon, which continues.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.schema_registry import SchemaRegistryClient

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.failpoints import EXIT_STATUS, VARIABLE
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, merge
from tests.support.nightly import nightly_except
from tests.support.reader import Reader, assert_each_once
from tests.support.resolutions import command, halts_with
from tests.support.stack import drop_database, new_database_name
from tests.support.topics import committed_records

NO_NAME = {"sink": {"topics": {"template": "{schema}.{table}"}}}
CREATE = "CREATE TABLE IF NOT EXISTS public.{} (id int PRIMARY KEY, v text)"


def same_name(first: Daemon, second: Daemon) -> None:
    """Share the name; slot and publication are the second's own."""
    second.config["source"] |= {
        "slot": {"name": second.slot},
        "publication": {"names": [f"cdcd_{second.name}"]},
    }
    second.config["name"] = first.name


def no_name_in_the_template(first: Daemon, second: Daemon) -> None:
    merge(second.config, NO_NAME)


def same_transactional_id(first: Daemon, second: Daemon) -> None:
    second.config["sink"]["transactional_id"] = f"cdcd-{first.slot}"


def name_below_it(first: Daemon, second: Daemon) -> None:
    """`shop.eu` keeps its own records in topics that a table of `shop` in schema `eu` may have."""
    second.config["source"] |= {
        "slot": {"name": second.slot},
        "publication": {"names": [f"cdcd_{second.name}"]},
    }
    second.config["name"] = f"{first.name}.eu"


def same_slot(first: Daemon, second: Daemon) -> None:
    second.config["source"]["slot"] = {"name": first.slot}
    second.config["sink"]["transactional_id"] = f"cdcd-{second.slot}"


class Case(NamedTuple):
    """The resource shared by the second daemon, and whether it reads the same database."""

    share: Callable[[Daemon, Daemon], None]
    has_same_database: bool
    first: dict[str, Any] | None = None
    table: str = "orders"
    first_stops: bool = False
    code: str = "CDCD-OWNED-BY-ANOTHER"


REFUSED = {
    "one name, two databases": Case(same_name, False),
    "one name, two slots of one database": Case(same_name, True),
    "one name, and the first has stopped": Case(same_name, False, first_stops=True),
    "no name in the template": Case(no_name_in_the_template, False, NO_NAME),
    "one transactional id": Case(same_transactional_id, False, table="parcels"),
    "one slot, two names": Case(
        same_slot, True, table="parcels", first_stops=True, code="CDCD-SLOT-UNUSABLE"
    ),
    "one slot name, two databases": Case(same_slot, False, table="parcels", code="CDCD-SLOT-UNUSABLE"),
    "a table has the topic of the other's own records": Case(name_below_it, False, table="parcels"),
}


def is_of(name: str, first: Daemon, second: Daemon) -> bool:
    """Return whether a topic or a subject is named after one of the daemons, or after a table alone."""
    return name.startswith(("public.", "eu.", first.name, second.name))


class Servers:
    """The objects on the servers that these two daemons could have created."""

    def __init__(self, postgres: PostgresServer, kafka: KafkaBroker, registry: SchemaRegistry) -> None:
        self._postgres = postgres
        self._bootstrap = kafka.bootstrap
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        self._registry = SchemaRegistryClient({"url": registry.url})

    def seen(self, first: Daemon, second: Daemon) -> dict[str, Any]:
        """Return slots, topics, subjects, and the records under the second's slot in the progress topics."""
        slot = second.slot
        topics = sorted(
            one for one in self._admin.list_topics(timeout=10).topics if is_of(one, first, second)
        )
        progress = [topic for topic in topics if topic.endswith(".__progress")]
        return {
            "slots": self._postgres.execute("SELECT slot_name FROM pg_replication_slots ORDER BY 1"),
            "topics": topics,
            "records": [key for topic in progress for key in self._keys(topic) if slot.encode() in key],
            "subjects": sorted(one for one in self._registry.get_subjects() if is_of(one, first, second)),
        }

    def _keys(self, topic: str) -> list[bytes]:
        return [message.key() or b"" for message in committed_records(self._bootstrap, topic)]


@pytest.fixture
def servers(postgres: PostgresServer, kafka: KafkaBroker, registry: SchemaRegistry) -> Servers:
    return Servers(postgres, kafka, registry)


@pytest.fixture
def other_database(postgres: PostgresServer, database: str) -> Any:
    name = new_database_name()
    postgres.create_database(name)
    yield name
    drop_database(postgres, name)


@pytest.mark.parametrize(
    "case",
    nightly_except(
        (pytest.param(case, id=name) for name, case in REFUSED.items()),
        "one transactional id",
    ),
)
def test_who_shares_something_with_another_is_refused_and_leaves_no_trace(
    case: Case,
    postgres: PostgresServer,
    database: str,
    other_database: str,
    new_daemon: NewDaemon,
    servers: Servers,
    reader: Reader,
) -> None:
    """The halt names the owner, check and init report the same, and the first daemon is not disturbed."""
    postgres.execute("CREATE SCHEMA eu; CREATE TABLE eu.message (id int PRIMARY KEY)", dbname=database)
    postgres.execute("INSERT INTO eu.message VALUES (1)", dbname=database)
    postgres.execute(CREATE.format("orders"), dbname=database)
    postgres.execute("INSERT INTO orders VALUES (1, 'a')", dbname=database)
    second_database = database if case.has_same_database else other_database
    postgres.execute(CREATE.format(case.table), dbname=second_database)
    first = new_daemon(postgres, database, **(case.first or {}))
    second = new_daemon(postgres, second_database)
    case.share(first, second)
    topic = "public.orders" if case.first else f"{first.name}.public.orders"
    first.start().wait_state("streaming")
    before_first = len(reader.read(topic))
    if case.first_stops:
        assert first.stop() == 0
    before = servers.seen(first, second)

    second.start()
    reason = halts_with(second, case.code)
    assert "drop" not in reason
    assert first.slot in reason
    assert database in reason or case.code == "CDCD-SLOT-UNUSABLE"
    checked = command(second, "check")
    assert checked.returncode == 1
    assert case.code in checked.stdout
    made = command(second, "init")
    assert made.returncode == 1
    assert case.code in made.stdout
    assert second.stop() == 0
    assert servers.seen(first, second) == before

    if case.first_stops:
        first.start()
    first.wait_state("streaming")
    postgres.execute("INSERT INTO orders VALUES (2, 'b')", dbname=database)
    reader.wait([topic], lambda events: len(events) == before_first + 1)
    assert not first.events("halted")


@pytest.mark.nightly
def test_slots_of_one_name_that_publish_different_tables_go_on_side_by_side(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader, tmp_path: Path
) -> None:
    """With one folder for spilled transactions and heartbeats of both, until a table of the one is published to the
    other.
    """
    for name in ("orders", "parcels"):
        postgres.execute(CREATE.format(name), dbname=database)
    first, second = new_daemon(postgres, database), new_daemon(postgres, database)
    for daemon in (first, second):
        daemon.config["source"]["heartbeat_interval_ms"] = 1000
        daemon.config["buffer"] = {"spill_dir": str(tmp_path / "spill"), "memory": "64KiB"}
        daemon.config["source"]["dsn"] += "?options=-c%20logical_decoding_work_mem%3D64kB"
    same_name(first, second)
    for daemon, name in ((first, "orders"), (second, "parcels")):
        publication = f"cdcd_{daemon.name}"
        postgres.execute(f"DROP PUBLICATION {publication}", dbname=database)
        postgres.execute(f"CREATE PUBLICATION {publication} FOR TABLE {name}", dbname=database)
        daemon.start().wait_state("streaming")
    large = "SELECT number, repeat('x', 100) FROM generate_series(2, 2000) number"
    for name in ("orders", "parcels"):
        postgres.execute(f"INSERT INTO {name} VALUES (1, 'a'); INSERT INTO {name} {large}", dbname=database)
    for name in ("orders", "parcels"):
        assert_each_once(reader.wait([f"{first.name}.public.{name}"], lambda events: len(events) == 2000))
    postgres.execute(f"ALTER PUBLICATION cdcd_{second.name} ADD TABLE orders", dbname=database)
    postgres.execute("INSERT INTO orders VALUES (3000, 'b')", dbname=database)
    assert f"slot {first.slot}" in halts_with(second, "CDCD-OWNED-BY-ANOTHER")
    assert_each_once(reader.wait([f"{first.name}.public.orders"], lambda events: len(events) == 2001))


@pytest.mark.nightly
def test_a_topic_shared_by_configuration_is_written_by_both_daemons(
    postgres: PostgresServer, database: str, other_database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """Both log it; the record of each names the owner."""
    for name in (database, other_database):
        postgres.execute(CREATE.format("orders"), dbname=name)
    postgres.execute("INSERT INTO orders VALUES (1, 'a')", dbname=database)
    postgres.execute("INSERT INTO orders VALUES (2, 'b')", dbname=other_database)
    first, second = new_daemon(postgres, database), new_daemon(postgres, other_database)
    same_name(first, second)
    second.config["sink"]["topics"]["shared_with"] = [first.slot]
    topic = f"{first.name}.public.orders"
    first.start().wait_state("streaming")
    second.start().wait_state("streaming")
    events = reader.wait([topic], lambda events: len(events) == 2)
    assert {event.value["source"]["db"] for event in events} == {database, other_database}
    assert first.stop() == 0
    first.start().wait_state("streaming")
    assert second.slot in first.events("topics_shared")[-1]["detail"]
    checked = command(first, "check")
    assert checked.returncode == 0
    assert f"another slot writes to {topic}" in checked.stdout


@pytest.mark.nightly
def test_an_interrupted_start_does_not_drop_a_slot_created_later_by_another_daemon(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """That start had recorded that it begins, and ended before it created the slot."""
    postgres.execute(CREATE.format("orders"), dbname=database)
    first, second = new_daemon(postgres, database), new_daemon(postgres, database)
    same_slot(first, second)
    first.environment[VARIABLE] = "snapshot_begun"
    assert first.start().wait_exit() == EXIT_STATUS
    first.environment.clear()
    second.start().wait_state("streaming")
    assert second.stop() == 0
    first.start()
    reason = halts_with(first, "CDCD-OWNED-BY-ANOTHER")
    assert f"(name {second.name})" in reason
    checked = command(first, "check")
    assert (checked.returncode, "CDCD-OWNED-BY-ANOTHER" in checked.stdout) == (1, True)
    refused = command(first, "drop-slot")
    assert refused.returncode != 0
    assert "read by a daemon with another name" in refused.stderr
    assert first.stop() == 0
    second.start().wait_state("streaming")
    assert second.stop() == 0
