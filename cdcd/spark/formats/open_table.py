"""One table of a mirror in an open format, as its writer has committed it last.

In: its log, what its commits change.  Out: its files and columns; the log without old versions.
Invariant: no row depends on the removal of old versions, so an error of it stops nothing.
Must not: write rows or commit.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from cdcd.errors import CdcdError
from cdcd.spark.formats.table_log import Part, TableLog
from cdcd.spark.storage.uri import Storage
from cdcd.spark.target.commit_log import oldest_version
from cdcd.spark.target.shape import Field
from cdcd.spark.target.versions import BucketFile, TableEntry

__all__ = ["OpenTable"]

CLEAN_EVERY = 100
"""The number of versions of a table, since the last removal, after which the oldest ones are removed."""
CLEAN_AGAIN = 10
"""The number of further versions after which a failed removal is tried again."""
log = logging.getLogger("cdcd.spark.mirror")


@dataclass
class OpenTable:
    """A table as this writer has committed it last."""

    log: TableLog
    files: tuple[BucketFile, ...] = ()
    fields: tuple[Field, ...] = ()
    named: int = -1
    """The version that the mirror names of a table that is not opened, -1: none."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """A merge in the background and a batch commit one after the other."""
    _clean_from: int = 0
    """The version from which on old ones may be removed, after an attempt that failed."""

    def replace(self, removed: Iterable[BucketFile], parts: Iterable[Part]) -> None:
        """Note the files that a commit has removed and added."""
        gone = set(removed)
        self.files = (*(one for one in self.files if one not in gone), *(one.file for one in parts))

    def cleaned(self, entry: TableEntry, target: Storage) -> TableEntry:
        """Remove old versions, if the last time is long ago; return the entry that says when it was.

        An error is tried again some versions later.
        """
        known = self.log.version
        if known is None or known != entry.table_version:
            return entry
        if known < max(entry.cleaned + CLEAN_EVERY, self._clean_from):
            return entry
        try:
            self.log.remove_old_versions(lambda: _first_named(target, entry.topic))
        except CdcdError as error:
            log.warning(
                "%s: old versions could not be removed; the removal is tried again: %s", entry.topic, error
            )
            self._clean_from = known + CLEAN_AGAIN
            return entry
        return replace(entry, cleaned=known)


def _first_named(target: Storage, topic: str) -> int:
    """Return the version of the table that the oldest readable version of the mirror names, 0: any."""
    oldest = oldest_version(target).tables.get(topic)
    return 0 if oldest is None or oldest.table_version is None else oldest.table_version
