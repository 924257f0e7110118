"""The commit log of a mirror's target: one record for each version, created under the next number.

    <target>/_cdcd/commit-<number>.json    <target>/_cdcd/latest.json    <target>/_data/<topic>/<unique>.parquet
    of the formats delta and iceberg also <target>/<schema.table>/part-<unique>.parquet, with the log of the table

In: the storage of a target.  Out: versions: the newest one, or an earlier one by its number, an LSN, a time.
Invariant: a version takes effect when its record is created, which succeeds for one writer only (`target_writer`).
`latest.json` has the number of the newest complete record, or of an earlier one. A file that a version no longer
names, and the version itself, can be read for `retain_s` more.
Must not: know Spark or Kafka; write.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from cdcd.errors import SparkReadError
from cdcd.lsn import end_of_commits, format_lsn
from cdcd.spark.storage.uri import Storage, StoredFile, Target, open_storage
from cdcd.spark.target.reached import held_in, reached_lsn
from cdcd.spark.target.versions import TargetVersion, is_complete_record, version_after

__all__ = [
    "DATA",
    "FOLDER",
    "LATEST",
    "MAX_BYTES",
    "RECORD",
    "find_version",
    "has_version",
    "newer_versions",
    "no_mirror",
    "number_in",
    "oldest_version",
    "path_of",
    "read_latest",
    "read_version",
]

FOLDER = "_cdcd"
LATEST = f"{FOLDER}/latest.json"
DATA = "_data"
"""The folder of the tables' files. Spark, pyarrow and others ignore such a name in a folder that they read: some rows
are replaced by later files, so a reader without the record must not find them."""
MAX_BYTES = 256 << 20
AHEAD = 8
"""The records that a reader of a bucket requests at the same time."""
RECORD = re.compile(rf"{FOLDER}/commit-(\d{{20}})\.json")
_BEFORE_LOG = "manifest.json"
"""The file that had the tables in formats 1 to 5."""


def path_of(number: int) -> str:
    """Return the path of the record of a version."""
    return f"{FOLDER}/commit-{number:020d}.json"


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
                hint="restore the record from a backup of the target",
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
    if stored is not None and number_in(stored) > last.number:
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
        raise SparkReadError(
            "the target has no such version",
            hint="correct the number, or omit the position for the newest version",
            target=storage.uri,
            version=number,
            newest=None if latest is None else latest.number,
        )
    oldest = _oldest(storage, latest)
    if number < oldest.number:
        raise _expired(storage, oldest)
    return _at(storage, latest, number)


def find_version(target: Target, *, lsn: int | None = None, time_us: int | None = None) -> TargetVersion:
    """Return the first version with all commits up to an LSN, or the last one without a commit after a time.

    The LSN is in the history of the source that the newest version has (`reached.held_in`).
    Raises SparkReadError if it is not retained, or not published yet.
    """
    storage = open_storage(target)
    latest = read_latest(storage)
    if latest is None:
        raise no_mirror(storage)
    if lsn is not None:
        return _first_with(storage, latest, end_of_commits(lsn))
    assert time_us is not None
    return _last_until(storage, latest, time_us)


def oldest_version(target: Target) -> TargetVersion:
    """Return the oldest version that can be read. Raises SparkReadError if there is none."""
    storage = open_storage(target)
    latest = read_latest(storage)
    if latest is None:
        raise no_mirror(storage)
    return _oldest(storage, latest)


def _first_with(storage: Storage, latest: TargetVersion, lsn: int) -> TargetVersion:
    if reached_lsn(latest) < lsn:
        raise SparkReadError(
            "the mirror has not reached this LSN yet",
            hint="wait for it",
            target=storage.uri,
            lsn=format_lsn(lsn),
        )
    low, high = _oldest(storage, latest), latest
    if held_in(low, latest) >= lsn:
        if low.number > 1 and held_in(low, latest) > lsn:
            raise _expired(storage, low)
        return low
    while high.number - low.number > 1:
        middle = _at(storage, latest, (low.number + high.number) // 2)
        low, high = (low, middle) if held_in(middle, latest) >= lsn else (middle, high)
    return high


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


def no_mirror(storage: Storage) -> SparkReadError:
    """Return the error of a target without a version."""
    return SparkReadError(
        "there is no mirror",
        hint="correct the target, or start the mirror: "
        "`python -m cdcd.spark mirror --config FILE --target TARGET`",
        target=storage.uri,
    )


def _expired(storage: Storage, oldest: TargetVersion) -> SparkReadError:
    return SparkReadError(
        "the version is not retained any more",
        hint="choose a later version; raise the option retain of the mirror to keep versions for longer",
        target=storage.uri,
        oldest_lsn=format_lsn(oldest.end_lsn or oldest.commit_lsn),
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
        return number_in(stored)
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
    numbers = [int(found[1]) for path in storage.paths(FOLDER) if (found := RECORD.fullmatch(path))]
    if not numbers:
        return None
    if 1 in numbers:
        return 1
    if (stored := storage.read_versioned(LATEST, max_bytes=1024)) is not None:  # it was made since
        return number_in(stored)
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


def number_in(stored: StoredFile) -> int:
    """Return the number in latest.json. Raises SparkReadError for another content."""
    try:
        return int(json.loads(stored.data)["number"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise SparkReadError(
            "a file of the target is not readable",
            hint='restore the file from a backup, or write {"number": N} into it: N is that of a complete record',
            file=LATEST,
        ) from error
