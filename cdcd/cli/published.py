"""The topics that will be written to, and the settings with which a command asks Kafka about them.

Comes in: a configuration.  Goes out: topic names, asked from the source's catalog at this moment.
Invariant: the same template and escapes as the stream uses, so `check` and `init` speak of its topics.
Must not: create anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cdcd.config import Config
from cdcd.runtime.ownership import written_topics
from cdcd.sink.settings import SinkSettings
from cdcd.sink.topics import DEAD_LETTER_PROPERTIES, PROGRESS_PROPERTIES, SCHEMA_PROPERTIES
from cdcd.source.connection import connect_sql
from cdcd.source.publication import published_tables


def asking_settings(config: Config, *, timeout_s: float = 10.0) -> SinkSettings:
    """Return the sink's settings for a command: each call waits so long, and the client's own log is quiet.

    What the client would log comes as an error of the call that met it. Raises SecretUnreadable.
    """
    settings = config.sink_settings()
    quiet = {} if "debug" in settings.properties else {"log_level": "0"}
    return replace(settings, operation_timeout_s=timeout_s, properties=quiet | dict(settings.properties))


def published_topics(config: Config) -> list[str]:
    """Return the topics of all published tables, of logical messages and of transactions, each once.

    Raises Source and Sink errors.
    """
    connection = connect_sql(config.source_settings())
    try:
        tables = published_tables(connection, config.source.publication.names)
        version = connection.server_version
    finally:
        connection.close()
    return written_topics(config, tables, version)


def own_topics(config: Config) -> dict[str, Mapping[str, str]]:
    """Return the topics with one partition that cdcd keeps its own records in, with their settings."""
    own = {config.progress_topic: PROGRESS_PROPERTIES}
    if config.schema_topic is not None:
        own[config.schema_topic] = SCHEMA_PROPERTIES
    if config.dead_letter_topic is not None:
        own[config.dead_letter_topic] = DEAD_LETTER_PROPERTIES
    return own
