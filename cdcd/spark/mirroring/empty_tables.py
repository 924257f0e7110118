"""Tables of which no row was ever in the topics: their columns, by the newest schemas of their topics.

In: a connection; the topics that a mirror has already.  Out: entries without rows.
Invariant: a topic that has, or had, a record is not an empty table: its columns come with its records. A topic counts
only once two checks found it empty, because cdcd makes it shortly before it begins to copy a table, and says so.
Must not: read records, change a target.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, field

from cdcd.errors import MirrorInconsistent, RegistryRefused, SparkReadError
from cdcd.spark.clients.connection import Connection
from cdcd.spark.clients.kafka import Cluster
from cdcd.spark.decoding.schemas import NotASchema, access_of, foreign_schema, schema_by_id, topic_versions
from cdcd.spark.mirroring.retries import LOGIN
from cdcd.spark.source.prefix_topics import topics_of
from cdcd.spark.tables.plan import with_fields
from cdcd.spark.tables.same_columns import continued_columns, relid_of
from cdcd.spark.target.versions import TableEntry

__all__ = ["EmptyTables", "described"]

_OF_SUBJECT = {"kind", "error_code"}
"""What an error of one subject has: the kind of a schema that is not Avro, or the registry's own code."""
log = logging.getLogger("cdcd.spark.mirror")


@dataclass
class EmptyTables:
    """Looks for empty tables among the topics of a connection. `only`: these topics; empty: all of the prefix."""

    cluster: Cluster
    connection: Connection
    only: frozenset[str] = frozenset()
    _seen: set[str] = field(default_factory=set)
    """The topics that the last check found empty."""
    _left_out: set[str] = field(default_factory=set)
    """The topics whose columns a mirror cannot have; their first record parks the table."""
    _refused: set[str] = field(default_factory=set)
    """The topics whose schemas the registry refuses to this user."""

    def look(self, known: Collection[str]) -> list[TableEntry]:
        """Return the tables that this check and the last one found empty, without known ones. Raises Sink errors."""
        prefix = self.connection.prefix
        found = {
            topic: partitions
            for topic, partitions in topics_of(self.cluster, prefix).items()
            if topic not in known
            and topic not in (f"{prefix}.message", f"{prefix}.transaction")
            and (not self.only or topic in self.only)
        }
        if not found:
            self._seen = set()
            return []
        places = [(topic, number) for topic, numbers in found.items() for number in numbers]
        begun = {topic for (topic, _), end in self.cluster.high_watermarks(places).items() if end > 0}
        before, self._seen = self._seen, set(found) - begun
        found_twice = sorted((self._seen & before) - self._left_out)
        entries = (self._described(topic) for topic in found_twice)
        return [entry for entry in entries if entry is not None]

    def leave_out(self, topic: str, reason: object) -> None:
        """Leave a topic out from now on, and say why."""
        self._left_out.add(topic)
        log.warning("%s: the table has no row yet, and is not in the mirror: %s", topic, reason)

    def _described(self, topic: str) -> TableEntry | None:
        try:
            return described(self.connection, topic)
        except (MirrorInconsistent, SparkReadError) as error:
            self.leave_out(topic, error)
        except RegistryRefused as error:
            if error.context.get("status") in LOGIN:
                self._note_refused(topic, error)
            elif error.context.keys() & _OF_SUBJECT:
                self.leave_out(topic, error)
            else:  # it is no registry, or not reached
                raise
        return None

    def _note_refused(self, topic: str, error: RegistryRefused) -> None:
        """Say once that the registry refuses a subject. The next look asks again: a right may be granted."""
        if topic not in self._refused:
            self._refused.add(topic)
            log.warning(
                "%s: the table has no row yet, and is left out of the mirror until then: %s", topic, error
            )


def described(connection: Connection, topic: str) -> TableEntry | None:
    """Return the entry of a table without rows; None if its topic has no schemas under the daemon's default names.

    Raises SparkReadError, MirrorInconsistent for a schema that is none of a table's rows.
    """
    access = access_of(connection)
    versions = topic_versions(access, topic)
    if not versions.values:
        return None
    number = versions.values[-1].schema_id
    try:
        schemas = {number: schema_by_id(access, number)}
    except NotASchema as error:
        raise foreign_schema(error, topic=topic, schema_id=number) from error
    if not isinstance(schemas[number], dict) or "fields" not in schemas[number]:
        raise SparkReadError("a value schema is not an envelope", topic=topic)
    entry = TableEntry(topic, keyed=True if versions.keys else None, relid=relid_of(schemas[number]))
    return with_fields(entry, [number], schemas, continued_columns(entry, [number], schemas))
