"""What a crash of the host leaves in the log of a Delta table, and other damage of it.

In: the storage of a target, the table's folder; which version the mirror names.  Out: a log without files that are
not readable and not needed, or TableLogUnreadable.
Invariant: a file is removed only if its bytes were read and are not a commit or checkpoint; a checkpoint also if its
commit is removed or missing. A commit is removed only if no version of the mirror names it, or a later one; a
checkpoint only if none names it, or if the commits have what it had. The owner of the target is checked before.
Must not: take an error of the storage, or a lack of memory, for damage.
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

    def remove_commits(self, named: int, check_owner: Callable[[], object], *, is_opened: bool) -> bool:
        """Remove what a crash of the host has left later than the named version; return whether it did.

        These are the newest commits if they are not readable, and the checkpoints after all that remain, from which
        delta-rs takes a version without its commit. `is_opened`: delta-rs opens the newest version; then a commit
        is removed only if it is empty or no JSON. The commits are removed last: a crash before that leaves what the
        next start finds.
        """
        commits, checkpoints = self._commits(), self._by_version(_CHECKPOINT)
        torn = []
        for number in sorted((one for one in commits if one > named), reverse=True):
            if self._is_commit(commits[number], are_actions=not is_opened):
                break
            log.warning("%s: version %d of its log was not readable, and was removed", self.folder, number)
            torn.append(number)
        newest = max([named, *(commits.keys() - set(torn))])
        later = [number for number in checkpoints if number > newest]
        if not torn and not later:
            return False
        hint = self._hint(checkpoints.keys() - set(later))
        check_owner()
        for some in ([hint] if hint else [], _paths(checkpoints, later), _paths(commits, torn)):
            self.target.delete(some)
        return True

    def newest(self) -> int:
        """Return the newest version of which there is a commit or a checkpoint, -1: none."""
        return max([*self._commits(), *self._by_version(_CHECKPOINT)], default=-1)

    def refuse_commits(self) -> None:
        """Raise TableLogUnreadable if a commit is not readable, or if there is none."""
        commits = self._commits()
        newest = sorted(commits, reverse=True)[:_MOST_LOOKED_AT]
        broken = next((number for number in newest if not self._is_commit(commits[number])), None)
        if broken is not None or not commits:
            raise self.unreadable(None if broken is None else commits[broken][0])

    def remove_checkpoints(self, version: int | None, check_owner: Callable[[], object]) -> None:
        """Remove the checkpoints that a reader of a version, None: of the newest one, finds and cannot read.

        Raises TableLogUnreadable if the commits from there on, or since a checkpoint before, are not complete.
        """
        commits, checkpoints = self._commits(), self._by_version(_CHECKPOINT)
        newest = max([*commits, *checkpoints]) if version is None else version
        broken, first = [], 0
        for number in sorted((one for one in checkpoints if one <= newest), reverse=True):
            if self._is_checkpoint(checkpoints[number]):
                first = number + 1
                break
            broken += checkpoints[number]
        hint = self._hint(checkpoints.keys())
        for number in range(first, newest + 1):
            if number not in commits:
                raise self.unreadable(broken[0] if broken else hint or self._path(f"{number:020d}.json"))
        if not broken and hint is None:
            return
        check_owner()
        for path in broken:
            log.warning(
                "%s was not readable, and was removed: the log has all commits since the checkpoint before",
                path,
            )
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

    def _is_commit(self, paths: Iterable[str], *, are_actions: bool = True) -> bool:
        return all(_is_json(self.target.read(path), are_actions=are_actions) for path in paths)

    def _is_checkpoint(self, paths: list[str]) -> bool:
        found = _CHECKPOINT.fullmatch(paths[0].rpartition("/")[2])
        assert found is not None
        has_all = found[2] is None or len(paths) == int(found[2])
        return has_all and all(
            _is_json(data) if path.endswith(".json") else _is_parquet(data)
            for path, data in ((path, self.target.read(path)) for path in paths)
        )

    def unreadable(self, path: str | None = None) -> TableLogUnreadable:
        """Return the error for a file of the log, None: for the log as a whole."""
        return TableLogUnreadable(
            "the log of a Delta table of the target is damaged",
            target=self.target.uri,
            table=self.folder,
            file=path or f"{self.folder}/{LOG}",
        )


def _paths(found: Paths, numbers: Iterable[int]) -> list[str]:
    return [path for number in numbers for path in found[number]]


def _is_json(data: bytes, *, are_actions: bool = True) -> bool:
    """Return whether bytes have JSON in each line; if they have to be actions, an object of objects or nulls."""
    try:
        lines = [json.loads(line) for line in data.splitlines() if line.strip()]
    except ValueError:
        return False
    return bool(lines) and not (are_actions and not all(map(_is_action, lines)))


def _is_action(line: object) -> bool:
    return isinstance(line, dict) and all(of is None or isinstance(of, dict) for of in line.values())


def _is_parquet(data: bytes) -> bool:
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        for number in range(file.num_row_groups):
            file.read_row_group(number)
    except MemoryError:  # Arrow's is an ArrowException
        raise
    except (pa.ArrowException, OSError):
        return False
    return True
