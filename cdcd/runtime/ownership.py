"""Whether every topic that a start would write to is its own (F80).

In: the configuration, what the publications publish now.  Out: nothing, or `Owned`.
Invariant: this only reads, and comes before anything is fenced, made or written. A topic that nobody could name yet
(a table that is published later) is asked about before it is made (`Topics.ensure`).
Must not: make anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from cdcd.config import Config
from cdcd.errors import Owned
from cdcd.sink.claims import Claims
from cdcd.sink.names import message_topic, topic_name, transaction_topic
from cdcd.sink.settings import SinkSettings
from cdcd.source.connection import connect_sql
from cdcd.source.publication import PublishedTable, published_now

_FIRST_VERSION_WITH_MESSAGES = 140_000


def written_topics(config: Config, tables: Iterable[PublishedTable], server_version: int) -> list[str]:
    """Return the topics of these tables, of logical messages and of transactions, each once. Raises SinkError."""
    template = config.sink.topics.template
    names = [
        topic_name(template, name=config.name, schema=table.schema, table=table.name) for table in tables
    ]
    if config.source.protocol.messages and server_version >= _FIRST_VERSION_WITH_MESSAGES:
        names.append(message_topic(config.name))
    if config.format.transactions:
        names.append(transaction_topic(config.name))
    return list(dict.fromkeys(names))


def own_topic_names(config: Config) -> list[str]:
    """Return the topics that cdcd keeps its own records in."""
    names = (config.progress_topic, config.schema_topic, config.dead_letter_topic)
    return [name for name in names if name is not None]


def refuse_owned(config: Config, claims: Claims) -> Owned | None:
    """Raise Owned where another slot writes to a topic of this configuration. Blocks. Raises Source and Sink errors.

    Returned, not raised, for topics that hold rows of both already. While a published table is locked, its topic is
    asked about when its first row comes.
    """
    with contextlib.closing(connect_sql(config.source_settings())) as connection:
        tables = published_now(connection, config.source.publication.names)
        names = written_topics(config, tables, connection.server_version)
    return claims.refuse_owned([*names, *own_topic_names(config)])


def claims_of(config: Config, settings: SinkSettings) -> Claims:
    """Return what asks whose topics are."""
    return Claims(settings, config.sink.topics.shared_with)
