"""Report changes of the tables whose records were written: renamed, replaced, removed from the publication.

Comes in: a configuration, the stored topic identities, a connection.  Goes out: findings; a change at which the
daemon would halt is a failure, any other a warning.
Invariant: the comparison is the daemon's own, with the same stored data, so both report the same.
Must not: change the stored data.
"""

from __future__ import annotations

from typing import Any

from cdcd.config import Config
from cdcd.findings import Finding
from cdcd.monitoring.publication_monitor import UNPUBLISHED_TABLE_HINT, diff, hint_of, what_halts
from cdcd.sink.names import topic_of_table
from cdcd.sink.topic_identity import TopicIdentities
from cdcd.source.publication_diff import Change, load, published_oids, read_published
from cdcd.source.unpublished_tables import read_unpublished, with_topic


def compare_publication(config: Config, identities: TopicIdentities, connection: Any) -> list[Finding]:
    """Return the changes since records were last written. Raises Source errors, ProgressUnreadable."""
    names = config.source_settings().publications
    now = read_published(connection, names)
    not_published = read_unpublished(connection, published_oids(now), names)
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
    error = what_halts(
        [change],
        at_removal=config.source.publication.table_removed == "halt",
        at_addition=config.snapshot.new_tables_policy == "halt",
    )
    subject = f"table {change.table}" if change.table else f"publication {change.publication}"
    hint = "\n".join(line for line in (change.sql, hint_of(change)) if line)
    if error is None:
        return Finding("warn", subject, change.description, hint)
    return Finding("fail", subject, change.description, hint or error.advice, error)
