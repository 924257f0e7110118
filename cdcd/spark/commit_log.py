"""The commit log of a mirror's target: one record for each version, created under the next number.

    <target>/_cdcd/commit-<number>.json    <target>/_cdcd/latest.json    <target>/_data/<topic>/<unique>.parquet
    of the formats delta and iceberg also <target>/<schema.table>/part-<unique>.parquet, with the log of the table

In: the storage of a target; the next version.  Out: versions.
Invariant: a version takes effect when its record is created, which succeeds for one writer only; the files that a
record names are complete and durable before. `latest.json` has the number of the newest complete record, or of an
earlier one, and each writer replaces the one that it knows: a writer that was taken over publishes nothing, however
late. A file that a version no longer names, and the version itself, can be read for `retain_s` more.
Must not: know Spark or Kafka.
"""

from __future__ import annotations

import json
import math
import re
import time
import uuid
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

from cdcd.errors import SparkReadError, StorageConflict, StorageError
from cdcd.spark.storage import Storage, StoredFile, Target, Version, open_storage
from cdcd.spark.versions import (
    TargetVersion,
    is_complete_record,
    record_of,
    version_after,
    without_expired,
)

__all__ = [
    "DATA",
    "FOLDER",
    "TargetWriter",
    "find_version",
    "has_version",
    "is_of_a_mirror",
    "newer_versions",
    "oldest_version",
    "read_latest",
    "read_version",
    "sweep",
    "take_over",
]

FOLDER = "_cdcd"
LATEST = f"{FOLDER}/latest.json"
DATA = "_data"
"""The folder of the tables' files. Spark, pyarrow and others ignore such a name in a folder that they read: some rows
are replaced by later files, so a reader without the record must not find them."""
MAX_BYTES = 256 << 20
MOST_REPLACED = 100_000
"""With more replaced files, the oldest are removed before `retain_s` is over: complete records have them all."""
RECORDS_PER_BASE = 64
"""A reader reads so many records at most."""
AHEAD = 8
"""The records that a reader of a bucket requests at the same time."""
_RECORD = re.compile(rf"{FOLDER}/commit-(\d{{20}})\.json")
_FILE = re.compile(r"(\d{4,}|delta|history)-[0-9a-f]{32}\.parquet(\.[0-9a-f]{32})?")
_PART = re.compile(r"part-[0-9a-f]{32}\.parquet")
_TEMPORARY = re.compile(rf"{FOLDER}/(commit-\d{{20}}|latest)\.json\.[0-9a-f]{{32}}")
_TEMPORARY_OF_TABLE = re.compile(
    r"(.+)/(part-[0-9a-f]{32}\.parquet|metadata/(version-hint\.text|v\d{1,18}\.metadata\.json"
    r"|(manifest|snap)-\d{1,18}-[0-9a-f]{32}\.avro))\.[0-9a-f]{32}"
)
"""What a crash leaves in a local folder has 32 more digits."""
_BEFORE_LOG = "manifest.json"
"""The file that had the tables in formats 1 to 5."""


def path_of(number: int) -> str:
    """Return the path of the record of a version."""
    return f"{FOLDER}/commit-{number:020d}.json"


# --- read ----------------------------------------------------------------------------------------------------


def has_version(target: Target) -> bool:
    """Return whether the target has a version. Raises SparkReadError for a target of an earlier format."""
    return _first_number(open_storage(target)) is not None


def read_latest(target: Target) -> TargetVersion | None:
    """Return the newest version, None if there is none. Raises SparkReadError for an unknown format, StorageError."""
    storage = open_storage(target)
    tried = None
    while (first := _first_number(storage)) is not None:
        version = None
        for version in _versions_from(storage, first):  # noqa: B007 - the last one
            pass
        if version is not None:
            return version
        if first == tried:  # else it was removed since, and latest.json names a later one
            raise SparkReadError(
                "a record of the target is missing",
                hint="restore it from a backup of the target",
                target=storage.uri,
                file=path_of(first),
            )
        tried = first
    return None


def newer_versions(target: Target, version: TargetVersion) -> Iterator[TargetVersion]:
    """Yield the versions after this one. Raises SparkReadError if the records of some are removed already."""
    storage, last = open_storage(target), version
    for last in _versions_from(storage, version.number + 1, version):
        yield last
    stored = storage.read_versioned(LATEST, max_bytes=1024)
    if stored is not None and _number_in(stored) > last.number:
        raise SparkReadError(
            "the versions after this one are not retained any more",
            hint="open the mirror again",
            target=storage.uri,
            version=last.number,
        )


def read_version(target: Target, number: int) -> TargetVersion:
    """Return a version by its number. Raises SparkReadError if it is not retained, or not published yet."""
    storage = open_storage(target)
    latest = read_latest(storage)
    if latest is None or number > latest.number:
        raise SparkReadError("the target has no such version", target=storage.uri, version=number)
    oldest = _oldest(storage, latest)
    if number < oldest.number:
        raise _expired(storage, oldest)
    return _at(storage, latest, number)


def find_version(target: Target, *, lsn: int | None = None, time_us: int | None = None) -> TargetVersion:
    """Return the first version with all commits up to an LSN, or the last one without a commit after a time.

    Raises SparkReadError if it is not retained, or not published yet.
    """
    storage = open_storage(target)
    latest = read_latest(storage)
    if latest is None:
        raise SparkReadError("there is no mirror", target=storage.uri)
    if lsn is not None:
        return _first_with(storage, latest, lsn)
    assert time_us is not None
    return _last_until(storage, latest, time_us)


def oldest_version(target: Target) -> TargetVersion:
    """Return the oldest version that can be read. Raises SparkReadError if there is none."""
    storage = open_storage(target)
    latest = read_latest(storage)
    if latest is None:
        raise SparkReadError("there is no mirror", target=storage.uri)
    return _oldest(storage, latest)


def _first_with(storage: Storage, latest: TargetVersion, lsn: int) -> TargetVersion:
    if not _has(latest, lsn):
        raise SparkReadError(
            "the mirror has not reached this LSN yet", hint="wait for it", target=storage.uri, lsn=lsn
        )
    low, high = _oldest(storage, latest), latest
    if _has(low, lsn):
        if low.number > 1 and max(low.end_lsn, low.commit_lsn) > lsn:
            raise _expired(storage, low)
        return low
    while high.number - low.number > 1:
        middle = _at(storage, latest, (low.number + high.number) // 2)
        low, high = (low, middle) if _has(middle, lsn) else (middle, high)
    return high


def _has(version: TargetVersion, lsn: int) -> bool:
    return max(version.end_lsn, version.commit_lsn) >= lsn


def _last_until(storage: Storage, latest: TargetVersion, time_us: int) -> TargetVersion:
    low, high = _oldest(storage, latest), latest
    if latest.commit_us <= time_us:
        return _with_time(storage, latest)
    if low.commit_us > time_us:
        raise _expired(storage, low)
    while high.number - low.number > 1:
        middle = _at(storage, latest, (low.number + high.number) // 2)
        low, high = (middle, high) if middle.commit_us <= time_us else (low, middle)
    return _with_time(storage, low)


def _with_time(storage: Storage, version: TargetVersion) -> TargetVersion:
    """Return the version if the time of its last commit is known: those of a first snapshot have none."""
    if not version.commit_us:
        raise SparkReadError(
            "the mirror does not know what was committed at this time",
            hint="choose a later time, or an LSN",
            target=storage.uri,
        )
    return version


def _expired(storage: Storage, oldest: TargetVersion) -> SparkReadError:
    return SparkReadError(
        "the version is not retained any more",
        hint="choose a later one; the option retain of the mirror keeps versions for longer",
        target=storage.uri,
        oldest_lsn=oldest.end_lsn or oldest.commit_lsn,
    )


def _oldest(storage: Storage, latest: TargetVersion) -> TargetVersion:
    """Return the oldest version that can be read."""
    until_s = latest.retained_from_s
    records = [*latest.complete, (latest.number + 1, math.inf)]
    for (first, _), (_, ended_s) in pairwise(records):
        if ended_s < until_s:
            continue
        versions = _versions_from(storage, first)
        before = next(versions, None)
        for version in versions:
            if version.published_s >= until_s:
                break
            before = version
        if before is not None:
            return before
    return latest


def _at(storage: Storage, latest: TargetVersion, number: int) -> TargetVersion:
    first = max((one for one, _ in latest.complete if one <= number), default=None)
    if first is not None:
        for version in _versions_from(storage, first):
            if version.number == number:
                return version
    raise _expired(storage, _oldest(storage, latest))


def _first_number(storage: Storage) -> int | None:
    """Return the number of a complete record from which the newest version can be read."""
    stored = storage.read_versioned(LATEST, max_bytes=1024)
    if stored is not None:
        return _number_in(stored)
    if storage.exists(path_of(1)):  # a crash before latest.json
        return 1
    if storage.exists(_BEFORE_LOG):
        raise SparkReadError(
            "the target was written by an earlier version of cdcd",
            hint="mirror into an empty target; the topics have all rows",
            target=storage.uri,
            file=_BEFORE_LOG,
        )
    return _without_latest(storage)


def _without_latest(storage: Storage) -> int | None:
    """Return None for a target without records, and the first number of a mirror that has begun just now.

    Raises SparkReadError if there are records without latest.json: a new mirror would remove their files.
    """
    numbers = [int(found[1]) for path in storage.paths(FOLDER) if (found := _RECORD.fullmatch(path))]
    if not numbers:
        return None
    if 1 in numbers:
        return 1
    if (stored := storage.read_versioned(LATEST, max_bytes=1024)) is not None:  # it was made since
        return _number_in(stored)
    complete = (number for number in sorted(numbers, reverse=True) if _is_complete(storage, number))
    newest = next(complete, None)
    other = "" if newest is None else f', or write {{"number": {newest}}} into it: the newest complete record'
    raise SparkReadError(
        "the target has records of a mirror, but the file that names the newest one is missing",
        hint=f"restore the file from a backup of the target{other}",
        target=storage.uri,
        file=LATEST,
    )


def _is_complete(storage: Storage, number: int) -> bool:
    stored = storage.read_versioned(path_of(number), max_bytes=MAX_BYTES)
    return stored is not None and is_complete_record(stored.data)


def _number_in(stored: StoredFile) -> int:
    try:
        return int(json.loads(stored.data)["number"])
    except (ValueError, TypeError, KeyError) as error:
        raise SparkReadError(
            "a file of the target is not readable",
            hint='restore it from a backup, or write {"number": N} into it: N of a record that is complete',
            file=LATEST,
        ) from error


def _versions_from(
    storage: Storage, number: int, before: TargetVersion | None = None
) -> Iterator[TargetVersion]:
    """Yield the versions from a record on, in order."""
    for data in _records_from(storage, number):
        before = version_after(before, data, file=path_of(number))
        number += 1
        yield before


def _records_from(storage: Storage, number: int) -> Iterator[bytes]:
    """Yield the records from a number on, until one is missing."""
    if storage.folder is not None:
        while (stored := storage.read_versioned(path_of(number), max_bytes=MAX_BYTES)) is not None:
            yield stored.data
            number += 1
        return
    with ThreadPoolExecutor(AHEAD, "cdcd-records") as pool:
        while True:
            numbers = range(number, number + AHEAD)
            for found in pool.map(
                lambda one: storage.read_versioned(path_of(one), max_bytes=MAX_BYTES), numbers
            ):
                if found is None:
                    return
                yield found.data
            number += AHEAD


# --- write ---------------------------------------------------------------------------------------------------


class TargetWriter:
    """Publishes the successors of a version. `version`: the last one, None before the first."""

    def __init__(self, target: Target, version: TargetVersion | None) -> None:
        self._storage = open_storage(target)
        self.version = version
        self._hint: Version | None = None

    def publish(
        self,
        version: TargetVersion,
        *,
        is_complete: bool = False,
        until_s: float = math.inf,
        unnamed: Iterable[str] = (),
    ) -> TargetVersion:
        """Publish a version with the next number, and remove what no reader may need any more; return it.

        `until_s`: nothing that was replaced at this time (Unix epoch), or later, is removed. `unnamed`: files that no
        version names, and that are removed after the retention, as if this version replaced them.
        Raises StorageConflict if another writer has published one since; then nothing of this one is visible.
        """
        before, now_s = self.version, time.time()
        if before is None or before.number - before.base + 1 >= RECORDS_PER_BASE:
            is_complete = True
        if before is not None and before.published_s < now_s - before.retain_s / 2:
            self._check_latest(before.number)  # records after this one may be removed already
        until_s = min(until_s, now_s - version.retain_s)
        next_one = _successor(before, version, now_s, until_s, unnamed, is_complete=is_complete)
        data = record_of(next_one, None if is_complete else before)
        self._create(path_of(next_one.number), data)
        self.version = next_one
        if is_complete:
            self._write_latest(next_one.number)
        self._remove_expired(before, now_s)
        return self.version

    def _create(self, path: str, data: bytes) -> None:
        try:
            self._storage.put_new(path, data)
        except StorageError:
            # The answer to a successful request may be lost, and its repetition fails then. The record has the
            # writer's random id, so that no other writer's is equal.
            found = self._storage.read_versioned(path, max_bytes=MAX_BYTES)
            if found is None:
                raise
            if found.data != data:
                raise self._conflict() from None

    def _write_latest(self, number: int) -> None:
        """Replace the number that this writer knows: an earlier writer's replacement fails from then on."""
        data = json.dumps({"number": number}).encode()
        if self._hint is None:
            self._hint = self._check_latest(number)
        try:
            if self._hint is None:
                self._hint = self._storage.put_new(LATEST, data)
            else:
                self._hint = self._storage.replace(LATEST, data, self._hint)
        except StorageError:
            found = self._storage.read_versioned(LATEST, max_bytes=1024)
            if found is not None and _number_in(found) > number:
                raise self._conflict() from None
            if found is None or found.data != data:
                raise
            self._hint = found.version

    def own_latest(self) -> TargetVersion:
        """Return the newest version. Raises StorageConflict if another process has published it.

        One that drops a table publishes under this writer's id.
        """
        newest, own = read_latest(self._storage), self.version
        if newest is None or own is None or (newest.writer, newest.number) != (own.writer, own.number):
            raise self._conflict()
        return newest

    def _check_latest(self, number: int) -> Version | None:
        """Return the version of latest.json, None if there is none. Raises StorageConflict for a higher number."""
        stored = self._storage.read_versioned(LATEST, max_bytes=1024)
        if stored is not None and _number_in(stored) > number:
            raise self._conflict()
        return None if stored is None else stored.version

    def _conflict(self) -> StorageConflict:
        return StorageConflict("another mirror has taken over the target", target=self._storage.uri)

    def _remove_expired(self, before: TargetVersion | None, now_s: float) -> None:
        version = self.version
        assert version is not None
        if before is None:
            return
        remaining = {path for path, _ in version.replaced}
        expired = [path for path, _ in before.replaced if path not in remaining]
        first = version.complete[0][0]
        oldest = before.complete[0][0] if before.complete else first
        records = [path_of(number) for number in range(oldest, first)]
        if expired or records:
            self._check_latest(version.number)
            self._storage.delete([*records, *expired])


def _successor(
    before: TargetVersion | None,
    version: TargetVersion,
    now_s: float,
    until_s: float,
    unnamed: Iterable[str],
    *,
    is_complete: bool,
) -> TargetVersion:
    """Return a version with the next number, and with what still exists of earlier ones."""
    number = 1 if before is None else before.number + 1
    replaced: tuple[tuple[str, float], ...] = ()
    complete: tuple[tuple[int, float], ...] = ()
    if before is not None:
        replaced, complete = before.replaced, before.complete
        until_s = max(until_s, before.retained_from_s, _time_of_most(replaced))
        gone = [*_gone(before, version), *unnamed]
        replaced = (*without_expired(replaced, until_s), *((path, now_s) for path in gone))
    if is_complete:
        complete = (*_retained_records(complete, until_s), (number, now_s))
    return replace(
        version,
        number=number,
        published_s=now_s,
        retained_from_s=until_s,
        complete=complete,
        replaced=replaced,
    )


def _time_of_most(replaced: Sequence[tuple[str, float]]) -> float:
    """Return a time since when at most `MOST_REPLACED` files were replaced."""
    return 0.0 if len(replaced) <= MOST_REPLACED else replaced[-MOST_REPLACED][1]


def _retained_records(
    complete: tuple[tuple[int, float], ...], until_s: float
) -> tuple[tuple[int, float], ...]:
    """Return the complete records from which versions are read that are retained."""
    old = [one for one in complete if one[1] < until_s]
    return complete[len(old) - 1 :] if old else complete


def _gone(before: TargetVersion, version: TargetVersion) -> list[str]:
    """Return the files that the version no longer has."""
    changed = [topic for topic, entry in before.tables.items() if version.tables.get(topic) is not entry]
    had = {path for topic in changed for path in before.tables[topic].paths}
    has = {path for topic in changed if topic in version.tables for path in version.tables[topic].paths}
    return sorted(had - has)


def take_over(target: Target, version: TargetVersion, writer_id: str | None = None) -> TargetWriter:
    """Publish a version again under a new writer's id, so that no earlier writer can publish; return its writer.

    No file is removed: tables in an open format may name some. `writer_id`: a random one that no writer has had;
    None: any. Raises StorageConflict if another writer takes over at the same time.
    """
    writer = TargetWriter(target, version if version.number else None)
    own = replace(version, writer=writer_id or uuid.uuid4().hex)
    writer.publish(own, is_complete=True, until_s=-math.inf)
    return writer


# --- clean up ------------------------------------------------------------------------------------------------


def remove_files(target: Target, paths: Iterable[str]) -> None:
    """Remove files below the target; ignore those that do not exist."""
    open_storage(target).delete(paths)


def sweep(target: Target, writer: TargetWriter | None = None) -> None:
    """Remove files left by a crash: files of a mirror that no retained version names.

    `writer`: only if it has published the newest version; raises StorageConflict otherwise. The files are listed
    before that is known, so that none of a writer that takes over afterwards is among them (F80). The rows of a table
    in an open format may have been visible to its other readers: a version of the writer has them removed after the
    retention; without a writer they are removed now.
    """
    storage = open_storage(target)
    version = read_latest(storage)
    listed = [path for folder in _folders_of(version) for path in storage.paths(folder)]
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
    remove_files(storage, [*others, *parts])


def _folders_of(version: TargetVersion | None) -> list[str]:
    return [FOLDER, DATA, *_open_folders(version)]


def _open_folders(version: TargetVersion | None) -> set[str]:
    if version is None or version.table_format == "parquet":
        return set()
    return {version.folder_of(topic) for topic in version.tables}


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
    found = _RECORD.fullmatch(path)
    return found is not None and first <= int(found[1]) <= last


def is_of_a_mirror(path: str) -> bool:
    """Return whether a mirror creates a file of this path in its target."""
    if path == LATEST or _RECORD.fullmatch(path) or _TEMPORARY.fullmatch(path):
        return True
    folder, _, name = path.rpartition("/")
    in_data = folder.removeprefix(f"{DATA}/")
    return folder.startswith(f"{DATA}/") and "/" not in in_data and _FILE.fullmatch(name) is not None
