"""`cdcd init`: create what a first start needs and what is missing, or print how.

Comes in: a configuration.  Goes out: steps done, or (`plan`) the SQL and commands that would do them.
Invariant: the publication comes before the slot (F39); the slot is made here only when no snapshot is wanted,
because a snapshot joins the stream only if slot and snapshot are made together (F36); and never in the place
of one that cdcd has read from, because what came in between is not in it (F10). What exists stays.
Must not: alter or drop anything.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from cdcd.cli.beginning import ask
from cdcd.cli.published import asking_settings, own_topics, published_topics
from cdcd.cli.slot_made import slot_made
from cdcd.config import Config
from cdcd.errors import CdcdError, SlotMissing
from cdcd.ops.notices import hear
from cdcd.runtime.ownership import claims_of, refuse_owned
from cdcd.sink.topics import Topics
from cdcd.source.connection import connect_sql, translated
from cdcd.source.publication import create_publication_sql, missing_publications
from cdcd.source.slot import read_slot

_TIMEOUT_S = 60.0
_SLOT_LATER = "the daemon makes it at its first start, together with the snapshot"
_SLOT_NEVER = "only the daemon can make it, together with the snapshot: set source.slot.create: true"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was there, was made, or could not be made."""

    text: str
    is_done: bool = True


def init(config: Config) -> list[Step]:
    """Create what is missing. An endpoint that fails becomes a step that is not done; the others go on."""
    return [
        *_attempt("publication", _publication(config)),
        *_attempt("topics", _topics(config)),
        *_attempt("slot", _slot(config)),
    ]


def plan(config: Config) -> list[str]:
    """Return the SQL and commands for what is missing, with comments. Raises cdcd's errors."""
    connection = connect_sql(config.source_settings())
    try:
        missing = missing_publications(connection, config.source.publication.names)
        slot = read_slot(connection, config.source.slot.name)
        version = connection.server_version
    finally:
        connection.close()
    lines = [f"{create_publication_sql(name, config.source.publication.tables)};" for name in missing]
    if slot is None:
        lines.append(_slot_sql(config, version))
    topics = published_topics(config)
    own = own_topics(config)
    existing = _asked_topics(config).partitions([*topics, *own])
    lines += [topic_command(config, name) for name in topics if name not in existing]
    if missing:
        lines.append("# topics of the tables in the missing publication: run this again once it is there")
    lines += [topic_command(config, name) for name in own if name not in existing]
    return lines or ["# nothing is missing"]


def topic_command(config: Config, name: str) -> str:
    """Return the command of Kafka's own tools that creates the topic as cdcd would."""
    topics = config.sink.topics
    own = own_topics(config)
    properties = own.get(name, topics.properties)
    words = [
        "kafka-topics.sh",
        "--bootstrap-server",
        config.sink.bootstrap_servers,
        "--create",
        "--topic",
        name,
    ]
    words += ["--partitions", str(1 if name in own else topics.partitions)]
    words += ["--replication-factor", str(topics.replication_factor)]
    for key, value in properties.items():
        words += ["--config", f"{key}={value}"]
    return shlex.join(words)


# --- inside ---


def _attempt(subject: str, steps: Iterator[Step]) -> Iterator[Step]:
    try:
        yield from steps
    except CdcdError as error:
        yield Step(f"failed   {subject}: {error}", is_done=False)


def _publication(config: Config) -> Iterator[Step]:
    wanted = config.source.publication
    connection = connect_sql(config.source_settings())
    try:
        missing = missing_publications(connection, wanted.names)
        for name in wanted.names:
            statement = create_publication_sql(name, wanted.tables)
            if name not in missing:
                yield Step(f"exists   publication {name}")
            elif not wanted.create:
                yield Step(f"missing  publication {name}; as the tables' owner: {statement};", is_done=False)
            else:
                with translated(), connection.cursor() as cursor:
                    cursor.execute(statement)
                hear(connection.notices)
                yield Step(f"created  publication {name}")
    finally:
        connection.close()


def _topics(config: Config) -> Iterator[Step]:
    topics = _asked_topics(config)
    refuse_owned(config, claims_of(config, asking_settings(config, timeout_s=_TIMEOUT_S)))
    names = published_topics(config)
    own = list(own_topics(config))
    existing = topics.partitions([*names, *own])
    partitions = topics.ensure(names)
    topics.ensure_progress(config.progress_topic)
    if config.schema_topic is not None:
        topics.ensure_schemas(config.schema_topic)
    if config.dead_letter_topic is not None:
        topics.ensure_dead_letters(config.dead_letter_topic)
    for name in [*names, *own]:
        word = "exists " if name in existing else "created"
        yield Step(f"{word}  topic {name}, partitions: {partitions.get(name, 1)}")


def _slot(config: Config) -> Iterator[Step]:
    settings = config.source_settings()
    connection = connect_sql(settings)
    try:
        is_there = read_slot(connection, settings.slot) is not None
        lacks_publication = bool(missing_publications(connection, settings.publications))
    finally:
        connection.close()
    if is_there:
        yield Step(f"exists   slot {settings.slot}")
    elif config.snapshot.mode == "initial":
        ask(config, create_slot=True)
        yield _slot_of_the_daemon(config)
    elif lacks_publication:
        yield Step(f"missing  slot {settings.slot}: it needs the publication first (F39)", is_done=False)
    else:
        ask(config, create_slot=True)
        slot_made(settings).close()
        yield Step(f"created  slot {settings.slot}")


def _slot_of_the_daemon(config: Config) -> Step:
    slot = config.source.slot
    if slot.create:
        return Step(f"later    slot {slot.name}: {_SLOT_LATER}")
    return Step(f"missing  slot {slot.name}: {_SLOT_NEVER}", is_done=False)


def _slot_sql(config: Config, server_version: int) -> str:
    slot = config.source.slot
    try:
        ask(config, create_slot=True)
    except SlotMissing as error:
        return f"-- slot {slot.name}: {error.message}; {error.advice}"
    if config.snapshot.mode == "initial":
        return f"-- slot {slot.name}: {_SLOT_LATER if slot.create else _SLOT_NEVER}"
    failover = ", failover => true" if slot.failover and server_version >= 170_000 else ""
    two_phase = ", twophase => true" if config.source.protocol.two_phase and server_version >= 150_000 else ""
    return f"SELECT pg_create_logical_replication_slot('{slot.name}', 'pgoutput'{two_phase}{failover});"


def _asked_topics(config: Config) -> Topics:
    return Topics(asking_settings(config, timeout_s=_TIMEOUT_S), config.topic_settings())
