"""The files that a crash leaves in a mirror's target.

In: the storage of a target, its commit log.  Out: the target without them.
Invariant: a file that a retained version names remains, and so does a file that no mirror has made. None of a writer
that has taken over is removed (F80). An error of the removal ends nothing: the next start tries again.
Must not: know what is in a file.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Container

from cdcd.errors import StorageError
from cdcd.spark.storage.uri import Storage, Target, open_storage
from cdcd.spark.target.commit_log import DATA, FOLDER, LATEST, RECORD, read_latest
from cdcd.spark.target.target_writer import TargetWriter
from cdcd.spark.target.unneeded_files import remove_unneeded
from cdcd.spark.target.versions import TargetVersion

__all__ = ["has_files", "is_of_a_mirror", "sweep"]

log = logging.getLogger("cdcd.spark.mirror")
_FILE = re.compile(r"(\d{4,}|delta|history)-[0-9a-f]{32}\.parquet(\.[0-9a-f]{32})?")
_PART = re.compile(r"part-[0-9a-f]{32}\.parquet")
_TEMPORARY = re.compile(rf"{FOLDER}/(commit-\d{{20}}|latest)\.json\.[0-9a-f]{{32}}")
_TEMPORARY_OF_TABLE = re.compile(
    r"(.+)/(part-[0-9a-f]{32}\.parquet|metadata/(version-hint\.text|v\d{1,18}\.metadata\.json"
    r"|(manifest|snap)-\d{1,18}-[0-9a-f]{32}\.avro))\.[0-9a-f]{32}"
)
"""What a crash leaves in a local folder has 32 more digits."""


def sweep(target: Target, writer: TargetWriter | None = None) -> None:
    """Remove files left by a crash: files of a mirror that no retained version names.

    `writer`: only if it has published the newest version; raises StorageConflict otherwise. The files are listed
    before that is known, so that none of a writer that takes over afterwards is among them (F80). The rows of a table
    in an open format may have been visible to its other readers: a version of the writer has them removed after the
    retention; without a writer they are removed now. What cannot be listed or removed is logged.
    """
    storage = open_storage(target)
    version = read_latest(storage)
    try:
        listed = [path for folder in _folders_of(version) for path in storage.paths(folder)]
    except StorageError as error:
        log.warning("files that a crash has left could not be removed; the next start tries again: %s", error)
        return
    version = read_latest(storage) if writer is None else writer.own_latest()
    named = (version.files() | {path for path, _ in version.replaced}) if version else set()
    first = version.complete[0][0] if version else 0
    last = version.number if version else 0
    open_folders = _open_folders(version)
    left = [path for path in listed if path not in named and not _is_retained(path, first, last)]
    parts = [path for path in left if _is_part(path, open_folders)]
    others = [path for path in left if is_of_a_mirror(path) or _is_temporary(path, open_folders)]
    if writer is not None and version is not None and parts:
        writer.publish(version, unnamed=parts, until_s=-math.inf)
        parts = []
    remove_unneeded(storage, [*others, *parts])


def has_files(target: Storage, version: TargetVersion, topic: str) -> bool:
    """Return whether the storage has all files with rows of a table; in doubt it has not."""
    folders = (f"{DATA}/{topic}", version.folder_of(topic))
    try:
        listed = {path for folder in folders for path in target.paths(folder)}
    except StorageError as error:
        log.warning("%s: its files could not be listed: %s", topic, error)
        return False
    entry = version.tables[topic]
    return listed.issuperset(one.path for one in (*entry.files, *entry.deltas, *entry.incomplete))


def _folders_of(version: TargetVersion | None) -> list[str]:
    return [FOLDER, DATA, *_open_folders(version)]


def _open_folders(version: TargetVersion | None) -> set[str]:
    if version is None or version.table_format == "parquet":
        return set()
    return {version.folder_of(topic) for topic in (*version.tables, *version.dropped)}


def _is_part(path: str, folders: Container[str]) -> bool:
    """Return whether a mirror has written the file for a Delta or Iceberg table in one of these folders."""
    folder, _, name = path.rpartition("/")
    return folder in folders and _PART.fullmatch(name) is not None


def _is_temporary(path: str, folders: Container[str]) -> bool:
    """Return whether a crash has left the file in one of these folders, before it had its name."""
    found = _TEMPORARY_OF_TABLE.fullmatch(path)
    return found is not None and found[1] in folders


def _is_retained(path: str, first: int, last: int) -> bool:
    if path == LATEST:
        return True
    found = RECORD.fullmatch(path)
    return found is not None and first <= int(found[1]) <= last


def is_of_a_mirror(path: str) -> bool:
    """Return whether a mirror creates a file of this path in its target."""
    if path == LATEST or RECORD.fullmatch(path) or _TEMPORARY.fullmatch(path):
        return True
    folder, _, name = path.rpartition("/")
    in_data = folder.removeprefix(f"{DATA}/")
    return folder.startswith(f"{DATA}/") and "/" not in in_data and _FILE.fullmatch(name) is not None
