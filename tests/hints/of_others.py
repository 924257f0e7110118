"""Situations with another daemon, another writer or another server, and an expired transaction."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

from cdcd.demo.stack.postgres import PostgresServer
from tests.faults.test_fault_25_two_daemons import Ends
from tests.hints.situation import World, situation
from tests.integration.test_schema_topic import Writer
from tests.support.reader import Reader
from tests.support.resolutions import equals_table
from tests.support.standby import hosts_dsn, promote
from tests.support.topics import (
    committed_records,
    create_topic,
    new_name,
    set_topic_config,
    transactional_producer,
)
from tests.support.waiting import eventually

OWNED = "CDCD-OWNED-BY-ANOTHER"


# --- the same topics, the same id --------------------------------------------------------------------------------


@situation(OWNED, "another slot uses the name, and this one gets a new name", "choose another name")
def same_name(w: World) -> Iterator[None]:
    former = _owned_by_another(w)
    yield
    w.daemon.name = f"{former}-own"
    w.start(name=w.daemon.name)


@situation(OWNED, "another slot uses the name, and both share it", "sink.topics.shared_with: [")
def same_name_on_purpose(w: World) -> Iterator[None]:
    _owned_by_another(w)
    yield
    w.follow(w.printed_hint(OWNED), "sink.topics.shared_with")


@situation(
    OWNED,
    "another slot uses the name, is retired, and this one replaces it",
    "if that slot is retired",
    "resnapshot",
)
def same_name_in_place_of_a_retired_slot(w: World) -> Iterator[None]:
    """Nobody has seen the DELETE: only a truncate event removes the row from readers."""
    w.sql("INSERT INTO t VALUES (1, 'deleted'), (2, 'remains')")
    reader = Reader(w.kafka.bootstrap, w.registry.url)
    former = w.slot
    _owned_by_another(w)
    w.sql(f"SELECT pg_drop_replication_slot('{former}')", "DELETE FROM t WHERE id = 1")
    yield
    w.follow(w.printed_hint(OWNED), "sink.topics.shared_with")
    w.daemon.wait_state("streaming")
    w.daemon.stop()
    w.resume("resnapshot")
    w.start()
    w.daemon.wait_state("streaming")
    equals_table(reader, w.topic, w.server, w.dbname)


def _owned_by_another(w: World) -> str:
    """Let a daemon with the same name and another slot write to the topics first; return the name."""
    w.stream()
    w.daemon.stop()
    name = w.daemon.name
    w.daemon = w.new_daemon(w.server, w.dbname)
    w.start(name=name, source={"slot": {"name": w.slot}, "publication": {"names": [f"cdcd_{w.daemon.name}"]}})
    w.daemon.name = name
    return name


@situation(
    OWNED,
    "another slot uses the transactional id",
    "set sink.transactional_id to an id that no other slot uses",
)
def same_transactional_id(w: World) -> Iterator[None]:
    w.stream()
    other = w.daemon
    other.stop()
    w.daemon = w.new_daemon(w.server, w.dbname)
    w.start(sink={"transactional_id": f"cdcd-{other.slot}"})
    yield
    w.start(sink={"transactional_id": f"cdcd-{w.slot}"})


@situation("CDCD-SINK-FENCED", "another producer uses the transactional id", "stop the other", ends=True)
def fenced(w: World) -> Iterator[None]:
    w.stream()
    other = transactional_producer(w.kafka.bootstrap, f"cdcd-{w.slot}")
    w.insert()
    assert w.daemon.wait_exit() == 75
    yield
    del other
    w.start()


@situation(
    "CDCD-SINK-TRANSACTION-EXPIRED",
    "the daemon is stopped for longer than the transaction timeout",
    "no action is needed: the next session writes the records again",
    "raise sink.transaction_timeout_ms",
    is_retried=True,
)
def expired(w: World) -> Iterator[None]:
    w.stream(sink={"transaction_timeout_ms": 10_000, "commit": {"max_wait_ms": 2000}})
    ends = [Ends(w.kafka.bootstrap, w.topic, partition) for partition in (0, 1)]
    before = [one.written for one in ends]
    w.insert()
    (end,) = eventually(
        lambda: [one for one, was in zip(ends, before, strict=True) if one.written > was][:1],
        "the Kafka transaction has a record",
    )
    assert w.daemon.process is not None
    os.kill(w.daemon.process.pid, signal.SIGSTOP)
    written = end.written
    eventually(lambda: end.stable > written, "the broker aborts the transaction", pause_s=0.2)
    os.kill(w.daemon.process.pid, signal.SIGCONT)
    yield
    w.daemon.wait_state("streaming")
    w.follow(w.printed_hint("CDCD-SINK-TRANSACTION-EXPIRED"), "sink.transaction_timeout_ms", 60_000)


# --- the schema topic --------------------------------------------------------------------------------------------


@situation(
    "CDCD-REGISTRY-ID-TAKEN",
    "two daemons with one name register a subject's next version at once",
    "the next session chooses another",
    is_retried=True,
)
def version_taken(w: World) -> Iterator[None]:
    """The other writer's transaction is open; the next session waits until it is committed or aborted."""
    w.stream(registry="none")
    other = Writer(w.kafka, w.daemon.name, new_name("other")).open()
    w.closing.callback(other.close)
    subject = f"{w.topic}-value"
    schema = other.schemas.latest(subject)
    assert schema is not None
    more = {"name": "elsewhere", "type": ["null", "string"], "default": None}
    other.announce(subject, {**schema, "fields": [*schema["fields"], more]})
    w.sql("ALTER TABLE t ADD w text")
    w.insert()
    eventually(lambda: w.daemon.events("retrying"), "the daemon gives up its version")
    yield
    other.commit()


@situation(
    "CDCD-SCHEMA-TOPIC",
    "another program wrote to it",
    "docs/registry.md",
    "cdcd resume",
    "under the same key",
)
def foreign_schema(w: World) -> Iterator[None]:
    """Follow docs/registry.md: the broker's log cleaner runs every few seconds."""
    topic = f"{w.daemon.name}.__schemas"
    w.stream(registry="none")
    w.daemon.stop()
    _produce(w, topic, b"theirs", b"not cdcd's")
    w.start()
    yield
    error = str(w.daemon.events("halted")[-1]["error"])
    (theirs,) = [one for one in committed_records(w.kafka.bootstrap, topic) if one.key() == b"theirs"]
    assert f"offset={theirs.offset()}" in error
    for name, value in {"min.cleanable.dirty.ratio": "0", "segment.ms": "1000"}.items():
        set_topic_config(w.kafka.bootstrap, topic, name, value)
    _produce(w, topic, b"theirs", None)

    def is_gone() -> bool:
        _produce(w, topic, b"another", None)  # rolls the segment when it is old enough
        return b"not cdcd's" not in [one.value() for one in committed_records(w.kafka.bootstrap, topic)]

    eventually(is_gone, "the topic is compacted", 180, pause_s=1)
    w.resume()


@situation(
    "CDCD-SCHEMA-TOPIC",
    "a newer version of cdcd wrote to it",
    "Run the version of cdcd that wrote the record",
    is_well_after=False,
)
def newer_schema(w: World) -> Iterator[None]:
    """Write a record of the next format; no later version of cdcd exists that could read it."""
    w.configure(registry="none")
    topic = f"{w.daemon.name}.__schemas"
    create_topic(w.kafka.bootstrap, topic, config={"cleanup.policy": "compact"})
    _produce(w, topic, b"{}", b'{"format": 2}')
    w.start()
    yield
    assert "did not write" not in w.printed_hint("CDCD-SCHEMA-TOPIC")


def _produce(w: World, topic: str, key: bytes, value: bytes | None) -> None:
    producer = transactional_producer(w.kafka.bootstrap, new_name("someone"))
    producer.begin_transaction()
    producer.produce(topic, value, key)
    producer.commit_transaction(30)


# --- another server ----------------------------------------------------------------------------------------------


@situation(
    "CDCD-SOURCE-STANDBY",
    "the standby is promoted",
    "tries again until the server is a primary",
    is_retried=True,
)
def standby_is_promoted(w: World) -> Iterator[None]:
    standby = _standby(w)
    yield
    promote(standby)


@situation(
    "CDCD-SOURCE-STANDBY",
    "another server is the primary",
    "list all servers",
    "target_session_attrs",
    is_retried=True,
)
def standby_with_its_primary(w: World) -> Iterator[None]:
    primary = w.server
    standby = _standby(w)
    yield
    w.server = primary
    w.start(source={"dsn": hosts_dsn(w.dbname, standby, primary)})


def _standby(w: World) -> PostgresServer:
    """Start the daemon on a server in recovery; return the server."""
    server = w.servers.fresh(w.server.major)
    w.closing.callback(server.stop, "immediate")
    server.start()
    server.create_database(w.dbname)
    create = "CREATE TABLE public.t (id int PRIMARY KEY, body text)"
    w.sql(create, f"CREATE PUBLICATION {w.slot} FOR ALL TABLES", server=server)
    server.stop()
    (server.data_folder / "standby.signal").touch()
    server.start()
    w.server = server
    w.start(source={"dsn": server.dsn(w.dbname)})
    return server
