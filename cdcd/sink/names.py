"""Topic names from a template, reversible and without collisions.

In: the template and the names of a relation.  Out: a name that Kafka accepts.
Invariant: two relations never share a topic by accident. A character that Kafka does not allow, and a dot inside a
schema or table name, become `_uXXXX` (UTF-16 code units in upper-case hex), and so does the `_` of a name that
already looks like such an escape.
Must not: do I/O.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, MutableMapping

from cdcd.errors import ConfigError, SinkError, TopicMismatch
from cdcd.escaped_names import escape, unescape

__all__ = [
    "MAX_TOPIC_CHARACTERS",
    "check_template",
    "escape",
    "message_topic",
    "own_topics",
    "progress_topic",
    "refuse_second_owner",
    "topic_name",
    "topic_of_table",
    "transaction_topic",
    "unescape",
]

MAX_TOPIC_CHARACTERS = 249
PLACEHOLDERS = frozenset({"name", "schema", "table"})

_LEGAL_TEXT = re.compile(r"[A-Za-z0-9._-]*")


def topic_of_table(template: str, name: str) -> Callable[[str, str], str]:
    """Return a function from schema and table to the topic, "" where Kafka would not accept the name."""

    def topic(schema: str, table: str) -> str:
        try:
            return topic_name(template, name=name, schema=schema, table=table)
        except SinkError:
            return ""

    return topic


def topic_name(template: str, *, name: str, schema: str, table: str) -> str:
    """Return the topic of a relation. The dots of `name`, the prefix, are not escaped.

    Raises SinkError when Kafka would not accept the name, ConfigError for an unusable template.
    """
    check_template(template)
    topic = template.format(name=_prefix(name), schema=escape(schema), table=escape(table))
    if len(topic) > MAX_TOPIC_CHARACTERS:
        raise SinkError(
            f"the topic name has {len(topic)} characters, Kafka allows {MAX_TOPIC_CHARACTERS}",
            hint="shorten sink.topics.template or name, and restart cdcd",
            table=f"{schema}.{table}",
        )
    if topic in ("", ".", ".."):
        raise SinkError(
            f"{topic!r} is not a topic name", hint="change sink.topics.template, and restart cdcd"
        )
    return topic


def message_topic(name: str) -> str:
    """Return the topic of the logical messages; the dots of `name`, the prefix, are not escaped."""
    return f"{_prefix(name)}.message"


def own_topics(name: str) -> tuple[str, ...]:
    """Return the topics that no table may use, whatever the template."""
    one_partition = (progress_topic(name), f"{name}.__schemas", f"{name}.__dead_letters")
    return (message_topic(name), transaction_topic(name), *one_partition)


def progress_topic(name: str) -> str:
    """Return the topic of the progress records, one for all slots under this name."""
    return f"{name}.__progress"


def refuse_second_owner(
    owners: MutableMapping[str, tuple[str, str]], topic: str, table: tuple[str, str]
) -> None:
    """Assign the topic to this (schema, table). Raises TopicMismatch where another table has the topic."""
    owner = owners.setdefault(topic, table)
    if owner != table:
        raise TopicMismatch(
            f"two tables would share one topic: {'.'.join(owner)} and {'.'.join(table)}",
            hint="change sink.topics.template so that each table has a topic of its own, and restart cdcd",
            topic=topic,
        )


def transaction_topic(name: str) -> str:
    """Return the topic of the transactions' BEGIN and END."""
    return f"{_prefix(name)}.transaction"


def check_template(template: str) -> None:
    """Raise ConfigError unless the template holds `{table}`, known placeholders and legal text only."""
    try:
        pieces = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(f"topic template {template!r}: {error}") from error
    for text, placeholder, spec, conversion in pieces:
        if not _LEGAL_TEXT.fullmatch(text):
            raise ConfigError(
                f"topic template {template!r}: Kafka allows letters, digits, '.', '_' and '-' only"
            )
        if placeholder is not None and (placeholder not in PLACEHOLDERS or spec or conversion):
            known = ", ".join("{" + known_name + "}" for known_name in sorted(PLACEHOLDERS))
            raise ConfigError(f"topic template {template!r}: {{{placeholder}}} is not one of {known}")
    if not any(placeholder == "table" for _, placeholder, _, _ in pieces):
        raise ConfigError(
            f"topic template {template!r}: {{table}} is missing, so all tables would share one topic"
        )


def _prefix(name: str) -> str:
    return ".".join(escape(part) for part in name.split("."))
