"""What has become of the tables that records were written of: renamed, replaced, taken out of the publication.

Comes in: a configuration.  Goes out: findings; what the daemon would halt at is a failure, the rest a warning.
Invariant: the daemon's own comparison with what it keeps in Kafka, so both say the same.
Must not: change what is kept.
"""

from __future__ import annotations

import contextlib

from cdcd.cli.beginning import stored_position
from cdcd.cli.published import asking_settings
from cdcd.config import Config
from cdcd.findings import Finding
from cdcd.runtime.publication_watch import TAKEN_HINT, halts, hint_of
from cdcd.sink.kept_topics import KeptTopics
from cdcd.sink.names import topic_of_table
from cdcd.sink.reader import read_kept_topics
from cdcd.source.connection import connect_sql, fetch
from cdcd.source.names import taken, unpublished
from cdcd.source.publication import LOCK_PATIENCE_MS
from cdcd.source.published import Change, changes, load, published_oids, read_published


def renamed_tables(config: Config) -> list[Finding]:
    """Return what is otherwise than when records were last written. Raises Source and Sink errors."""
    stored = stored_position(config)
    if stored is None or stored.phase == "snapshot":
        return []
    kept = read_kept_topics(asking_settings(config), stored.topics_at)
    return _compared(config, kept)


def _compared(config: Config, kept: KeptTopics) -> list[Finding]:
    names = config.source_settings().publications
    with contextlib.closing(connect_sql(config.source_settings())) as connection:
        fetch(connection, "SELECT set_config('lock_timeout', %s, false)", (str(LOCK_PATIENCE_MS),))
        now = read_published(connection, names)
        standing = unpublished(connection, published_oids(now))
    before = load(kept.published) if kept.published else {}
    found = changes({name: before[name] for name in names if name in before}, now, standing)
    findings = [_finding(change, config) for change in found if change.kind != "table_gone"]
    told = {change.sql for change in found}
    for one in taken(standing, topic_of_table(config.sink.topics.template, config.name), kept.names()):
        sql = one.added_to(names[0])
        if sql not in told:
            message = "is not published, and the topic of its name holds records"
            findings.append(Finding("warn", f"table {one.name}", message, f"{sql}\n{TAKEN_HINT}"))
    return findings


def _finding(change: Change, config: Config) -> Finding:
    is_halt = halts(change, halts_at_removal=config.source.publication.table_removed == "halt")
    subject = f"table {change.table}" if change.table else f"publication {change.publication}"
    mend = "\n".join(line for line in (change.sql, hint_of(change)) if line)
    return Finding("fail" if is_halt else "warn", subject, change.said, mend)
