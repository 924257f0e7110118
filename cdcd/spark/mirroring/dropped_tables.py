"""Drop a table from a mirror, also while the mirror runs.

In: a target, the name of a table.  Out: a version without the table.
Invariant: the version is published as the next one of the mirror that writes there, under that writer's id: a mirror
that runs finds it at its next version, which conflicts, and starts again from it. So nothing is lost, and no lock is
needed. The files are removed after the retention, like all files that a version does not have any more. A Delta or
Iceberg table retains its rows until the mirror starts, which empties it: its readers see no row less than the mirror
has.
Must not: take over the target; remove a file.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace

from cdcd.errors import SparkReadError, StorageConflict
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.source.table_options import topics_of
from cdcd.spark.storage.uri import Target, open_storage
from cdcd.spark.target.target_writer import TargetWriter
from cdcd.spark.target.versions import TableEntry, TargetVersion

__all__ = ["drop_table"]

ATTEMPTS = 20
"""A mirror that runs may publish a version at the same time; then the table is dropped from that one."""
log = logging.getLogger("cdcd.spark.mirror")


def drop_table(target: Target, table: str, *, target_options: Mapping[str, str] | None = None) -> int:
    """Drop a table from a mirror; return the number of the first version without it.

    It is mirrored again from the beginning of its next copy on (`cdcd snapshot start --recopy`), or from a TRUNCATE.
    Raises SparkReadError without such a table, StorageConflict while other writers are always faster.
    """
    storage = open_storage(target, target_options)
    for attempt in range(1, ATTEMPTS + 1):
        before = read_mirror(storage).version
        topic = _topic(before, table, storage.uri)
        try:
            without = without_table(before, topic)
            return TargetWriter(storage, before).publish(without, until_s=-math.inf).number
        except StorageConflict:
            if attempt == ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def _topic(version: TargetVersion, table: str, target: str) -> str:
    found = topics_of([table], version.prefix, version.tables, target=target)
    if len(found) > 1:
        raise SparkReadError("several tables have such a name", hint="name one of them", table=table)
    return found[0]


def without_table(version: TargetVersion, topic: str) -> TargetVersion:
    """Return the version without a table. What is left of it says which of its changes are left out."""
    entry = version.tables[topic]
    left = TableEntry(
        topic,
        keyed=entry.keyed,
        fields=entry.fields,
        table_version=entry.table_version,
        next_number=entry.next_number,
        applied=entry.applied,
        relid=entry.relid,
        former=entry.former,
    )
    return replace(
        version,
        tables={name: one for name, one in version.tables.items() if name != topic},
        dropped={**version.dropped, topic: left},
        loading=tuple(name for name in version.loading if name != topic),
    )
