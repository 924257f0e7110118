"""What has become of the tables that records were written of: renamed, replaced, taken out of the publication.

Comes in: a configuration, what is kept of the topics, a connection.  Goes out: findings; what the daemon would halt
at is a failure, the rest a warning.
Invariant: the daemon's own comparison with what it keeps in Kafka, so both say the same.
Must not: change what is kept.
"""

from __future__ import annotations

from typing import Any

from cdcd.config import Config
from cdcd.errors import PublicationChanged
from cdcd.findings import Finding
from cdcd.monitoring.publication_monitor import UNPUBLISHED_TABLE_HINT, diff, hint_of, what_halts
from cdcd.sink.names import topic_of_table
from cdcd.sink.topic_identity import TopicIdentities
from cdcd.source.publication_diff import Change, load, published_oids, read_published
from cdcd.source.unpublished_tables import unpublished, with_topic


def compared(config: Config, identities: TopicIdentities, connection: Any) -> list[Finding]:
    """Return what is otherwise than when records were last written. Raises Source errors, ProgressUnreadable."""
    names = config.source_settings().publications
    now = read_published(connection, names)
    not_published = unpublished(connection, published_oids(now), names)
    before = load(identities.published) if identities.published else {}
    found = diff(connection, {name: before[name] for name in names if name in before}, now, not_published)
    findings = [_finding(change, config) for change in found if change.kind != "table_gone"]
    reported = {change.sql for change in found}
    for one in with_topic(
        not_published, topic_of_table(config.sink.topics.template, config.name), identities.with_records()
    ):
        sql = one.added_to(names[0])
        if sql not in reported:
            message = "is not published, and the topic of its name holds records"
            findings.append(Finding("warn", f"table {one.name}", message, f"{sql}\n{UNPUBLISHED_TABLE_HINT}"))
    return findings


def _finding(change: Change, config: Config) -> Finding:
    error = what_halts([change], at_removal=config.source.publication.table_removed == "halt")
    subject = f"table {change.table}" if change.table else f"publication {change.publication}"
    hint = "\n".join(line for line in (change.sql, hint_of(change)) if line)
    if error is None:
        return Finding("warn", subject, change.description, hint)
    return Finding("fail", subject, change.description, hint or PublicationChanged.hint, error)
