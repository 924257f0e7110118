"""The settings of a command's Kafka clients, and the topics that are written to.

Comes in: a configuration.  Goes out: settings; topic names, read from the source's catalog now.
Invariant: the topics are those of a start (`session.start_checks`), so `resnapshot` and `init` use the same topics.
Must not: create anything, or wait long for a lock.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from cdcd.config import Config
from cdcd.session.start_checks.topics import topic_names
from cdcd.sink.settings import SinkSettings
from cdcd.source.connection import connect_sql
from cdcd.source.locks import holders_named
from cdcd.source.publication_catalog import published_tables

LOCK_TIMEOUT_MS = 4000
"""How long each query waits for the lock of a published table; its error names the sessions that hold the lock."""


def command_settings(config: Config, *, timeout_s: float = 10.0) -> SinkSettings:
    """Return the sink's settings for a command: each call waits `timeout_s`, and librdkafka logs nothing.

    librdkafka also returns its errors to the call that failed, so nothing is lost. Raises SecretUnreadable.
    """
    settings = config.sink_settings()
    quiet = {} if "debug" in settings.properties else {"log_level": "0"}
    return replace(settings, operation_timeout_s=timeout_s, properties=quiet | dict(settings.properties))


def published_topics(config: Config) -> list[str]:
    """Return the topics of all published tables, of logical messages and of transactions, each once.

    Raises Source and Sink errors.
    """
    with contextlib.closing(connect_sql(config.source_settings())) as connection:
        with holders_named(connection, LOCK_TIMEOUT_MS):
            tables = published_tables(connection, config.source.publication.names)
        version = connection.server_version
    return list(topic_names(config, tables, version))
