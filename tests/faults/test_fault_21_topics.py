"""Fault 21: a topic with records is deleted, recreated, or gets partitions: a halt, and its resolution (F66, F67)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import TopicMismatch, TopicMissing, TopicReplaced
from cdcd.sink.settings import TopicSettings
from cdcd.sink.topic_identity import TopicIdentities
from cdcd.sink.topics import Topics
from tests.faults.inserting import Inserting, await_more_rows
from tests.faults.test_fault_10_slot_moved import advanced
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.nightly import nightly_except
from tests.support.reader import Reader, assert_each_once
from tests.support.resolutions import ACCEPT_GAP, command, halts_with
from tests.support.sinks import sink_settings
from tests.support.stack import confirmed_position
from tests.support.topics import create_topic, new_name
from tests.support.waiting import eventually


def delete(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic], operation_timeout=30)[topic].result(30)
    eventually(lambda: topic not in admin.list_topics(timeout=10).topics, "the topic is deleted")


def replace(bootstrap: str, topic: str) -> None:
    delete(bootstrap, topic)

    def made() -> bool:
        try:
            create_topic(bootstrap, topic, partitions=2)
        except KafkaException:
            return False
        return True

    eventually(made, "the topic is recreated")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    eventually(lambda: topic in admin.list_topics(timeout=10).topics, "the broker's metadata has the topic")


def widen(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    eventually(
        lambda: len(admin.list_topics(timeout=10).topics[topic].partitions) == 3,
        "the topic has three partitions",
    )


def accept(daemon: Daemon, topic: str) -> None:
    """Accept the topic and resume, as an operator does."""
    done = daemon.run("resume", "--accept-topic", topic)
    assert done.returncode == 0, done.stderr


CHANGES = {
    "deleted": (delete, TopicMissing, 0),
    "replaced": (replace, TopicReplaced, 0),
    "widened": (widen, TopicMismatch, 1),
}


def cases(*at_each_change: str) -> pytest.MarkDecorator:
    """Return a parametrisation by the changes of a topic."""
    found = [pytest.param(*values, id=name) for name, values in CHANGES.items()]
    return pytest.mark.parametrize(("change", "cls", "held"), nightly_except(found, *at_each_change))


@cases("replaced", "widened")
def test_a_running_daemon_finds_the_change_when_it_checks(
    kafka: KafkaBroker, change: Callable[[str, str], None], cls: type[Exception], held: int
) -> None:
    """Both the periodic check of a session and the check of a start raise the error."""
    settings = sink_settings(kafka.bootstrap)
    topics = Topics(settings, TopicSettings(create=True, partitions=2, replication_factor=1))
    topics.identities = TopicIdentities()
    name = new_name("kept")
    expected = topics.ensure([name])
    topics.verify(expected)
    change(kafka.bootstrap, name)
    with pytest.raises(cls):
        topics.verify(expected)
    with pytest.raises(cls):
        topics.ensure([name])
    topics.identities.forget([name])
    topics.ensure([name])


@cases("replaced")
def test_a_change_while_it_runs_is_found_under_load_and_nothing_behind_it_is_skipped(
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
    kafka: KafkaBroker,
    change: Callable[[str, str], None],
    cls: type[Exception],
    held: int,
) -> None:
    """The periodic check finds a change that no record reveals (F66); rows that are not confirmed come later."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    with new_daemon(postgres, database) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.entry = ("-m", "tests.faults.impatient")
        daemon.start().wait_state("streaming")
        with Inserting(postgres.dsn(database)) as rows:
            await_more_rows(daemon)
            change(kafka.bootstrap, topic)
            behind = rows.last + 1
            daemon.wait_state("halted")
            assert daemon.events("halted")[-1]["code"] == cls.code  # type: ignore[attr-defined]
            confirmed_lsn = confirmed_position(postgres, daemon.slot)
            at = rows.last
            eventually(lambda: rows.last > at + 50, "rows are inserted", pause_s=0.01)
            assert confirmed_position(postgres, daemon.slot) == confirmed_lsn
        accept(daemon, topic)
        await_confirmed(postgres, daemon)
        events = reader.read(topic)
        assert_each_once(events)
        # A topic is deleted partition by partition, so some rows from before its end may be in the new topic.
        ids = {event.value["after"]["id"] for event in events}
        assert ids >= set(range(1 if held else behind, rows.last + 1))


@cases("widened")
def test_a_change_while_it_was_stopped_is_found_and_accepted_by_name(
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
    kafka: KafkaBroker,
    change: Callable[[str, str], None],
    cls: type[Exception],
    held: int,
) -> None:
    """The topic is never recreated silently; waiting rows are written once the operator accepts the topic."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    with new_daemon(postgres, database) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        postgres.execute("INSERT INTO t VALUES (1)", dbname=database)
        reader.wait([topic], lambda events: len(events) == 1)
        assert daemon.stop() == 0
        change(kafka.bootstrap, topic)
        postgres.execute("INSERT INTO t VALUES (2)", dbname=database)
        daemon.start().wait_state("halted")
        assert daemon.events("halted")[-1]["code"] == cls.code  # type: ignore[attr-defined]
        assert (topic in AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics().topics) == (
            change is not delete
        )
        accept(daemon, topic)
        events = eventually(lambda: _events(reader, topic, held + 1), "the waiting row is written", 60)
        assert sorted(event.value["after"]["id"] for event in events) == ([1, 2] if held else [2])
        assert daemon.stop() == 0
        daemon.start().wait_state("streaming")
        postgres.execute("INSERT INTO t VALUES (3)", dbname=database)
        eventually(lambda: _events(reader, topic, held + 2), "rows are written to the accepted topic", 60)


@pytest.mark.nightly
def test_a_topic_and_a_gap_are_accepted_at_once(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader, kafka: KafkaBroker
) -> None:
    """The daemon gets one signal after both decisions: after a first signal it would take the lock of the start."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    with new_daemon(postgres, database) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        postgres.execute("INSERT INTO t VALUES (1)", dbname=database)
        await_confirmed(postgres, daemon)
        assert daemon.stop() == 0
        widen(kafka.bootstrap, topic)
        postgres.execute("INSERT INTO t VALUES (2)", dbname=database)
        advanced(postgres, database, daemon)
        halts_with(daemon.start(), "CDCD-SLOT-AHEAD")
        ran = command(daemon, *ACCEPT_GAP, "--accept-topic", topic)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.count("asked cdcd to retry") == 1
        daemon.wait_state("streaming")
        assert len(daemon.events("halted")) == 1
        postgres.execute("INSERT INTO t VALUES (3)", dbname=database)
        await_confirmed(postgres, daemon)
        events = reader.read(topic)
        assert sorted(event.key["id"] for event in events if event.op == "c") == [1, 3]
        assert sorted(event.partition for event in events if event.op == "g") == [0, 1, 2]


def _events(reader: Reader, topic: str, at_least: int) -> list:
    if topic not in reader.topics(topic.split(".")[0]):
        return []
    events = reader.read(topic)
    return events if len(events) >= at_least else []
