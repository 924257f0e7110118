"""What a crash of the host leaves in the log of a Delta table, and other damage of it.

In: the storage of a target, the table's folder; which version the mirror names.  Out: a log without files that are
not readable and not needed, or TableLogUnreadable.
Invariant: a file is removed only if its bytes were read and are no commit or checkpoint. A commit is removed only if
no version of the mirror names it, or a later one; a checkpoint only if the commits have what it had. The owner of the
target is checked before.
Must not: take an error of the storage for damage.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from cdcd.errors import TableLogUnreadable
from cdcd.spark.formats.delta_access import LOG
from cdcd.spark.storage.uri import Storage

__all__ = ["DeltaDamage"]

log = logging.getLogger("cdcd.spark.mirror")
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.(?:\d{10}\.(\d{10})\.|[0-9a-f-]{36}\.)?(?:parquet|json)")
"""Its version, and the number of its files, if it has several."""
_LAST = "_last_checkpoint"
_MOST_LOOKED_AT = 200
"""The most commits of a damaged log that are read to find the one that is not readable."""
Paths = Mapping[int, list[str]]
"""The paths of files by the version in their names."""


@dataclass(frozen=True, slots=True)
class DeltaDamage:
    """Finds and removes what is not readable in the log of one Delta table."""

    target: Storage
    folder: str

    def remove_commits(self, named: int, check_owner: Callable[[], object]) -> bool:
        """Remove the newest commits that are not readable, later than the named version; return whether it did.

        A crash of the host leaves such a commit, of which nothing is needed.
        """
        commits = self._commits()
        left = []
        for number in sorted((one for one in commits if one > named), reverse=True):
            if self._is_commit(commits[number]):
                break
            log.warning("%s: version %d of its log is not readable, and removed", self.folder, number)
            left += commits[number]
        if left:
            check_owner()
            self.target.delete(left)
        return bool(left)

    def refuse_commits(self) -> None:
        """Raise TableLogUnreadable if a commit is not readable, or if there is none."""
        commits = self._commits()
        newest = sorted(commits, reverse=True)[:_MOST_LOOKED_AT]
        broken = next((number for number in newest if not self._is_commit(commits[number])), None)
        if broken is not None or not commits:
            raise self._unreadable(None if broken is None else commits[broken][0])

    def remove_checkpoints(self, version: int | None, check_owner: Callable[[], object]) -> None:
        """Remove the checkpoints that a reader of a version, None: of the newest one, finds and cannot read.

        Raises TableLogUnreadable if the commits from there on, or since a checkpoint before, are not complete.
        """
        commits, checkpoints = self._commits(), self._by_version(_CHECKPOINT)
        newest = max(commits) if version is None else version
        broken, first = [], 0
        for number in sorted((one for one in checkpoints if one <= newest), reverse=True):
            if self._is_checkpoint(checkpoints[number]):
                first = number + 1
                break
            broken += checkpoints[number]
        hint = self._hint(checkpoints.keys())
        for number in range(first, newest + 1):
            if number not in commits:
                raise self._unreadable(broken[0] if broken else hint or self._path(f"{number:020d}.json"))
        if not broken and hint is None:
            return
        check_owner()
        for path in broken:
            log.warning("%s is not readable, and removed: the log has all commits since the one before", path)
        self.target.delete([self._path(_LAST), *broken])

    def _hint(self, known: Iterable[int]) -> str | None:
        """Return the path of the file that names the last checkpoint, if there is no such one."""
        path = self._path(_LAST)
        stored = self.target.read_versioned(path)
        try:
            return None if stored is None or json.loads(stored.data)["version"] in known else path
        except (ValueError, TypeError, KeyError):
            return path

    def _path(self, name: str) -> str:
        return f"{self.folder}/{LOG}/{name}"

    def _commits(self) -> Paths:
        return self._by_version(_COMMIT)

    def _by_version(self, pattern: re.Pattern[str]) -> Paths:
        found: dict[int, list[str]] = {}
        for path in self.target.paths(f"{self.folder}/{LOG}"):
            name = pattern.fullmatch(path.rpartition("/")[2])
            if name is not None:
                found.setdefault(int(name[1]), []).append(path)
        return found

    def _is_commit(self, paths: Iterable[str]) -> bool:
        return all(_is_json(self.target.read(path)) for path in paths)

    def _is_checkpoint(self, paths: list[str]) -> bool:
        found = _CHECKPOINT.fullmatch(paths[0].rpartition("/")[2])
        assert found is not None
        has_all = found[2] is None or len(paths) == int(found[2])
        return has_all and all(
            _is_json(data) if path.endswith(".json") else _is_parquet(data)
            for path, data in ((path, self.target.read(path)) for path in paths)
        )

    def _unreadable(self, path: str | None) -> TableLogUnreadable:
        """Return the error for a file of the log, None: for the log as a whole."""
        return TableLogUnreadable(
            "the log of a Delta table of the target is damaged",
            target=self.target.uri,
            table=self.folder,
            file=path or f"{self.folder}/{LOG}",
        )


def _is_json(data: bytes) -> bool:
    """Return whether bytes are actions: a JSON object of objects in each line."""
    try:
        actions = [json.loads(line) for line in data.splitlines() if line.strip()]
    except ValueError:
        return False
    are_objects = all(isinstance(one, dict) for one in actions)
    return (
        bool(actions) and are_objects and all(isinstance(of, dict) for one in actions for of in one.values())
    )


def _is_parquet(data: bytes) -> bool:
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        for number in range(file.num_row_groups):
            file.read_row_group(number)
    except (pa.ArrowException, OSError):
        return False
    return True
