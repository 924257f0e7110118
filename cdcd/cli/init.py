"""`cdcd init`: create the publication, topics and slot that are missing for a first start, or print the commands.

Comes in: a configuration.  Goes out: steps done, or (`plan`) the SQL and commands that would do them.
Invariant: first all checks of a start run (`session.start_checks`); if one of them refuses, nothing is created
anywhere (F79). The publication is created before the slot (F39), and its tables are checked before their topics are
created. The slot is created here only without a snapshot, because a snapshot joins the stream only if slot and
snapshot are created together (F36). A slot that cdcd has read from is never replaced, because the new slot lacks the
changes in between (F10). Existing objects are not changed.
Must not: alter or drop anything, or wait long for a lock.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from cdcd.cli.published_topics import LOCK_TIMEOUT_MS, command_settings, published_topics
from cdcd.cli.slot_creation import create_slot_reporting_waits
from cdcd.cli.start_inspection import ask, inspect_start, known_of
from cdcd.config import Config
from cdcd.errors import CdcdError, PublicationMissing, SlotMissing
from cdcd.findings import Finding
from cdcd.ops.notices import log_notices
from cdcd.session.start_checks.topics import own_topic_properties
from cdcd.sink.topics import Topics
from cdcd.source.blockers import AGAINST_ALTERING
from cdcd.source.connection import connect_sql, translated
from cdcd.source.locks import holders_named
from cdcd.source.publication_catalog import create_publication_sql, missing_publications
from cdcd.source.slot import read_slot

_TIMEOUT_S = 60.0
_SLOT_LATER = "the daemon creates it at its first start, together with the snapshot"
_SLOT_NEVER = "only the daemon can create it, together with the snapshot: set source.slot.create: true"


@dataclass(frozen=True, slots=True)
class Step:
    """One object that existed, was created, or could not be created."""

    text: str
    is_done: bool = True


def init(config: Config) -> list[Step]:
    """Create the missing objects. If a check of the start fails, return it as a step not done and create nothing."""
    steps = _refused(config)
    for make in () if steps else (_publication, _topics, _slot):
        steps += _attempt(make, config)
        if not all(step.is_done for step in steps):
            break
    return steps


def plan(config: Config) -> list[str]:
    """Return the SQL and commands for the missing objects, with comments. Raises cdcd's errors."""
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
    own = own_topic_properties(config)
    existing = _asked_topics(config).partitions([*topics, *own])
    lines += [topic_command(config, name) for name in topics if name not in existing]
    if missing:
        lines.append(
            "# topics of the tables in the missing publication: run this command again once the publication exists"
        )
    lines += [topic_command(config, name) for name in own if name not in existing]
    return lines or ["# nothing is missing"]


def topic_command(config: Config, name: str) -> str:
    """Return the command of Kafka's tools that creates the topic with cdcd's settings."""
    topics = config.sink.topics
    own = own_topic_properties(config)
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


def _attempt(make: Callable[[Config], list[Step]], config: Config) -> list[Step]:
    try:
        return make(config)
    except CdcdError as error:
        return [Step(f"failed   {make.__name__.lstrip('_')}: {error}", is_done=False)]


def _refused(config: Config) -> list[Step]:
    """Return the findings that refuse a start, except for objects that `cdcd init` creates."""
    with known_of(config, create_slot=True, timeout_s=_TIMEOUT_S) as known:
        findings = inspect_start(known)
    return [_not_done(one) for one in dict.fromkeys(findings) if _is_in_the_way(one, config)]


def _is_in_the_way(finding: Finding, config: Config) -> bool:
    if isinstance(finding.error, PublicationMissing) and config.source.publication.create:
        return False
    return finding.level in ("fail", "unknown") and not finding.at_row


def _not_done(finding: Finding) -> Step:
    word = "missing " if isinstance(finding.error, PublicationMissing) else "failed  "
    return Step(f"{word} {finding.subject}: {finding.message} -> {finding.hint}", is_done=False)


def _publication(config: Config) -> list[Step]:
    wanted, steps = config.source.publication, []
    with contextlib.closing(connect_sql(config.source_settings())) as connection:
        missing = missing_publications(connection, wanted.names)
        for name in wanted.names:
            if name not in missing:
                steps.append(Step(f"exists   publication {name}"))
                continue
            with (  # CREATE PUBLICATION locks the tables that it names
                holders_named(connection, LOCK_TIMEOUT_MS, AGAINST_ALTERING),
                translated(),
                connection.cursor() as cursor,
            ):
                cursor.execute(create_publication_sql(name, wanted.tables))
            log_notices(connection.notices)
            steps.append(Step(f"created  publication {name}"))
    # The published tables are known only now: two tables may share a topic, or the role may not read one of them.
    return [*steps, *(_refused(config) if missing else [])]


def _topics(config: Config) -> list[Step]:
    topics = _asked_topics(config)
    names = published_topics(config)
    own = list(own_topic_properties(config))
    existing = topics.partitions([*names, *own])
    partitions = topics.ensure(names)
    topics.ensure_progress(config.progress_topic)
    if config.schema_topic is not None:
        topics.ensure_schemas(config.schema_topic)
    if config.dead_letter_topic is not None:
        topics.ensure_dead_letters(config.dead_letter_topic)
    return [
        Step(
            f"{'exists ' if name in existing else 'created'}  topic {name}, partitions: {partitions.get(name, 1)}"
        )
        for name in [*names, *own]
    ]


def _slot(config: Config) -> list[Step]:
    settings = config.source_settings()
    with contextlib.closing(connect_sql(settings)) as connection:
        is_there = read_slot(connection, settings.slot) is not None
    if is_there:
        return [Step(f"exists   slot {settings.slot}")]
    if config.snapshot.copies_tables:
        return [_slot_of_the_daemon(config)]
    create_slot_reporting_waits(settings).close()
    return [Step(f"created  slot {settings.slot}")]


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
    if config.snapshot.copies_tables:
        return f"-- slot {slot.name}: {_SLOT_LATER if slot.create else _SLOT_NEVER}"
    failover = ", failover => true" if slot.failover and server_version >= 170_000 else ""
    two_phase = ", twophase => true" if config.source.protocol.two_phase and server_version >= 150_000 else ""
    return f"SELECT pg_create_logical_replication_slot('{slot.name}', 'pgoutput'{two_phase}{failover});"


def _asked_topics(config: Config) -> Topics:
    return Topics(command_settings(config, timeout_s=_TIMEOUT_S), config.topic_settings())
