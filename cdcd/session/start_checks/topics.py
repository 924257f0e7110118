"""The checks of a start that ask Kafka: the cluster, the topics and their owners, the transactional id.

In: `StartContext`.  Out: findings, and the names of all topics that a start would write to.
Must not: make or alter a topic (F79).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from cdcd.config import Config
from cdcd.errors import CdcdError
from cdcd.findings import Finding, failure
from cdcd.recovery.start_decision import Snapshot, is_same_database
from cdcd.session.start_checks.context import StartContext
from cdcd.sink.names import message_topic, own_topics, refuse_second_owner, topic_name, transaction_topic
from cdcd.sink.settings import SinkSettings
from cdcd.sink.topic_ownership import TopicOwnership
from cdcd.sink.topics import DEAD_LETTER_PROPERTIES, PROGRESS_PROPERTIES, SCHEMA_PROPERTIES, Topics
from cdcd.sink.transactional_id import check_transactional_id
from cdcd.source.key_check import record_key
from cdcd.source.publication_catalog import PublishedTable

FIRST_VERSION_WITH_MESSAGES = 140_000


def check_kafka(known: StartContext) -> list[Finding]:
    """Check that the cluster answers; read its metadata."""
    known.sink, known.topics, known.ownership = known.open_sink()
    known.metadata = known.topics.cluster_metadata()
    brokers = len(known.metadata.brokers)
    return [Finding("ok", "kafka", f"cluster {known.metadata.cluster_id} answers, {brokers} brokers")]


def check_topics(known: StartContext) -> list[Finding]:
    """Check that the topics of this configuration exist with the right settings, or can be created."""
    findings: list[Finding] = []
    names = table_topics(known, findings)
    keyless = {topic for topic, table in names.items() if table is not None and _is_keyless(known, table)}
    own = own_topic_properties(known.config)
    assert known.topics is not None
    found = known.topics.checks.topics(
        known.metadata, names, own, keyless=sorted(keyless), describes=known.is_first
    )
    return findings + [_not_needed_by_all(finding, known.config) for finding in found]


def topic_names(
    config: Config, tables: Iterable[PublishedTable], version_num: int, refused: list[Finding] | None = None
) -> dict[str, PublishedTable | None]:
    """Return the topics that will be written to, each with its table; None: the topic of messages or transactions.

    A table without a valid topic name, or with the name of another table's topic (F66), is added to `refused`.
    Without `refused` its error is raised.
    """
    names: dict[str, PublishedTable | None] = {}
    owners = dict.fromkeys(own_topics(config.name), ("cdcd", "itself"))
    template = config.sink.topics.template
    for table in tables:
        try:
            topic = topic_name(template, name=config.name, schema=table.schema, table=table.name)
            refuse_second_owner(owners, topic, (table.schema, table.name))
        except CdcdError as error:
            if refused is None:
                raise
            refused.append(failure(f"table {table.schema}.{table.name}", error))
        else:
            names[topic] = table
    if config.source.protocol.messages and version_num >= FIRST_VERSION_WITH_MESSAGES:
        names[message_topic(config.name)] = None
    if config.format.transactions:
        names[transaction_topic(config.name)] = None
    return names


def written_topics(known: StartContext) -> list[str]:
    """Return the topics that will be written to, with cdcd's own, as far as they are known."""
    return [*table_topics(known, []), *own_topic_properties(known.config)]


def table_topics(known: StartContext, refused: list[Finding]) -> dict[str, PublishedTable | None]:
    """Return the topics that will be written to, as far as the tables are known; `check_tables` reports the rest."""
    if known.server is None:
        return {}
    return topic_names(known.config, known.tables or (), known.server.version_num, refused)


def topics_with_rows(topics: Topics, names: Collection[str]) -> list[str]:
    """Return those of the topics that exist, each with its later versions (`registry.incompatible: new_topic`)."""
    found: list[str] = []
    version = 1
    while names:
        versions = {f"{name}.v{version}" if version > 1 else name: name for name in names}
        there = topics.partitions(list(versions))
        found += there
        names = [versions[name] for name in there]
        version += 1
    return found


def own_topic_properties(config: Config) -> dict[str, Mapping[str, str]]:
    """Return the topics of cdcd's own records, which have one partition each, with their settings."""
    own = {config.progress_topic: PROGRESS_PROPERTIES}
    if config.schema_topic is not None:
        own[config.schema_topic] = SCHEMA_PROPERTIES
    if config.dead_letter_topic is not None:
        own[config.dead_letter_topic] = DEAD_LETTER_PROPERTIES
    return own


def _is_keyless(known: StartContext, table: PublishedTable) -> bool:
    return not record_key(table, known.policy_of(f"{table.schema}.{table.name}"))


def _not_needed_by_all(finding: Finding, config: Config) -> Finding:
    """Make a failure of the message topic a warning: no halt before the first logical message."""
    if finding.level != "fail" or finding.subject != f"topic {message_topic(config.name)}":
        return finding
    hint = f"{finding.hint}; if nothing calls pg_logical_emit_message, set source.protocol.messages: false"
    message = f"{finding.message}; the first logical message would halt cdcd"
    return Finding("warn", finding.subject, message, hint)


def check_owners(known: StartContext) -> list[Finding]:
    """Check that no other slot writes to the topics of this configuration (F80), as far as the tables are known.

    `Topics.ensure` checks a topic that is not known yet, before it creates the topic.
    """
    assert known.ownership is not None
    if _may_drop_anothers_slot(known):
        assert known.server is not None
        known.ownership.refuse_slot_of_another(known.server.system_identifier, known.server.database)
    known.shared = shared = known.ownership.refuse_owned(written_topics(known))
    if shared is not None:
        return [Finding("warn", "owners", shared.message, shared.advice)]
    return [Finding("ok", "owners", "no other slot writes to these topics")]


def _may_drop_anothers_slot(known: StartContext) -> bool:
    """Whether a start would recreate a slot that another daemon may read.

    No record says that cdcd has created the slot on this server, or another consumer has advanced it.
    """
    begin, stored, server = known.verdict, known.stored, known.server
    if stored is None or server is None or not isinstance(begin, Snapshot) or not begin.drop_slot:
        return False
    is_created = stored.identity.slot_lsn and is_same_database(stored.identity, server)
    return known.drops_ahead or not is_created


def check_transactions(known: StartContext) -> list[Finding]:
    """Check that the transactional id may be used, unless the stored position was written under this id."""
    assert known.topics is not None
    assert known.sink is not None
    if not known.sink.is_exactly_once or not known.is_first:
        return []
    used = "" if known.stored is None else known.stored.transactional_id
    if used == known.sink.transactional_id and not known.may_run:
        return []  # finding the coordinator may take half a second
    found = check_transactional_id(known.sink, known.topics.checks.longest_transaction_ms(known.metadata))
    known.is_transaction_known = found is not None
    return [] if found is None else [found]


def ownership_of(config: Config, settings: SinkSettings) -> TopicOwnership:
    """Return the check of topic owners for this slot."""
    return TopicOwnership(settings, config.sink.topics.shared_with)
