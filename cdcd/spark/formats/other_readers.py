"""Do other readers of a Delta or Iceberg table find the files that the mirror's version names?

In: a version of a mirror, one of its tables.  Out: why they may find other rows, "" if there is no reason.
Invariant: a commit of a mirror after its version is no reason: it is of a batch whose version is published next, or
was not, or of a merge. Without the library of the format nothing is known, and that is no reason either.
Must not: read rows, change anything.
"""

from __future__ import annotations

from importlib.util import find_spec

from cdcd.errors import CdcdError
from cdcd.spark.formats.log_by_format import log_of
from cdcd.spark.storage.uri import Storage
from cdcd.spark.target.versions import TableEntry, TargetVersion

__all__ = ["other_rows"]

_LIBRARIES = {"delta": "deltalake", "iceberg": "pyiceberg"}


def other_rows(target: Storage, version: TargetVersion, entry: TableEntry) -> str:
    """Return why readers of the newest version of a table's format may find other rows than those of the mirror."""
    library = _LIBRARIES.get(version.table_format)
    if entry.table_version is None or library is None or find_spec(library) is None:
        return ""
    try:
        log = log_of(version.table_format)(target, version.folder_of(entry.topic), version.retain_s)
        return log.other_rows(entry.table_version, entry.files)
    except CdcdError as error:
        return f"the log of the {version.table_format.capitalize()} table cannot be read: {error.message}"
