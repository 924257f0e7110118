"""The topics that the published tables will be written to.

Comes in: a configuration.  Goes out: topic names, asked from the source's catalog at this moment.
Invariant: the same template and escapes as the stream uses, so `check` and `init` speak of its topics.
Must not: create anything.
"""

from __future__ import annotations

from cdcd.config import Config
from cdcd.sink.names import topic_name
from cdcd.source.connection import connect_sql
from cdcd.source.publication import published_tables


def published_topics(config: Config) -> list[str]:
    """Return the topics of all published tables, each once. Raises Source and Sink errors."""
    connection = connect_sql(config.source_settings())
    try:
        tables = published_tables(connection, config.source.publication.names)
    finally:
        connection.close()
    template = config.sink.topics.template
    names = (
        topic_name(template, name=config.name, schema=table.schema, table=table.name) for table in tables
    )
    return list(dict.fromkeys(names))
