"""Write the versions of a mirror's target: each record under the next number.

In: the storage of a target; the next version.  Out: the version as it was published.
Invariant: the files that a record names are complete and durable before. Each writer replaces the `latest.json` that
it knows: a writer that was taken over publishes nothing, however late. What no reader may need any more is removed.
Must not: know Spark or Kafka.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cdcd.errors import StorageConflict, StorageError
from cdcd.spark.storage.uri import Target, Version, open_storage
from cdcd.spark.target.commit_log import LATEST, MAX_BYTES, number_in, path_of, read_latest
from cdcd.spark.target.unneeded_files import Removals
from cdcd.spark.target.versions import TargetVersion, record_of, without_expired

__all__ = ["MOST_REPLACED", "RECORDS_PER_BASE", "TargetWriter", "take_over"]

MOST_REPLACED = 100_000
"""With more replaced files, the oldest are removed before `retain_s` is over: complete records have them all."""
RECORDS_PER_BASE = 64
"""The maximum number of records that a reader reads."""


class TargetWriter:
    """Publishes the successors of a version. `version`: the last one, None before the first."""

    def __init__(self, target: Target, version: TargetVersion | None) -> None:
        self._storage = open_storage(target)
        self.version = version
        self._hint: Version | None = None
        self._removals = Removals(self._storage)

    def publish(
        self,
        version: TargetVersion,
        *,
        is_complete: bool = False,
        until_s: float = math.inf,
        unnamed: Iterable[str] = (),
    ) -> TargetVersion:
        """Publish a version with the next number, and remove what no reader may need any more; return it.

        An error of the removal is logged, and it is tried again with a later version.
        `until_s`: nothing that was replaced at this time (Unix epoch), or later, is removed. `unnamed`: files that no
        version names, and that are removed after the retention, as if this version replaced them.
        Raises StorageConflict if another writer has published one since; then nothing of this one is visible.
        """
        before, now_s = self.version, time.time()
        if before is None or before.number - before.base + 1 >= RECORDS_PER_BASE:
            is_complete = True
        if before is not None and before.published_s < now_s - before.retain_s / 2:
            self._check_latest(before.number)  # records after this one may be removed already
        until_s = min(until_s, self.due_s(version, now_s))
        next_one = _successor(before, version, now_s, until_s, unnamed, is_complete=is_complete)
        data = record_of(next_one, None if is_complete else before)
        self._create(path_of(next_one.number), data)
        self.version = next_one
        if is_complete:
            self._write_latest(next_one.number)
        self._remove_expired(before)
        return self.version

    def due_s(self, version: TargetVersion, now_s: float) -> float:
        """Return the time (Unix epoch) before which a file was replaced that no reader may need any more."""
        replaced = () if self.version is None else self.version.replaced
        return max(now_s - version.retain_s, _time_of_most(replaced))

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
            if found is not None and number_in(found) > number:
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
        if stored is not None and number_in(stored) > number:
            raise self._conflict()
        return None if stored is None else stored.version

    def _conflict(self) -> StorageConflict:
        return StorageConflict("another mirror has taken over the target", target=self._storage.uri)

    def _remove_expired(self, before: TargetVersion | None) -> None:
        version = self.version
        assert version is not None
        if before is None:
            return
        remaining = {path for path, _ in version.replaced}
        expired = [path for path, _ in before.replaced if path not in remaining]
        first = version.complete[0][0]
        oldest = before.complete[0][0] if before.complete else first
        records = [path_of(number) for number in range(oldest, first)]
        self._removals.run([*records, *expired], lambda: self._check_latest(version.number))


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
    until_s = max(until_s, 0.0)  # JSON has no infinite numbers
    if before is not None:
        replaced, complete = before.replaced, before.complete
        until_s = max(until_s, before.retained_from_s)
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
