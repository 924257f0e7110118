"""Remove files that no version of a mirror's target names any more.

In: the storage of a target, the paths.  Out: the target without them, or a line in the log.
Invariant: no row depends on a removal, so an error of it ends nothing, and delays nothing again and again. It is
tried again later, at the latest by the next start, which finds all such files (`left_files`).
Must not: remove a file that a version names.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from cdcd.errors import CdcdError, StorageConflict
from cdcd.spark.storage.uri import Storage

__all__ = ["Removals", "remove_unneeded"]

REMOVE_AGAIN_S = 60.0
"""The time after a failed removal until the next one."""
MOST_LEFT = 100_000
"""The most paths that wait for it. The next start removes the files of the others."""
AT_ONCE = 1_000
"""The most paths of one call of the storage: an error of one of them ends the call."""
FAILING_S = 1.0
"""For how long the paths after one that cannot be removed are tried."""
log = logging.getLogger("cdcd.spark.mirror")


def remove_unneeded(target: Storage, paths: Iterable[str]) -> None:
    """Remove files that were written in vain; log an error."""
    _, error = _removed(target, paths)
    if error is not None:
        log.warning("files without use could not be removed; the next start removes them: %s", error)


class Removals:
    """The removals of one writer."""

    def __init__(self, target: Storage) -> None:
        self._target = target
        self._left: list[str] = []
        self._from_s = float("-inf")

    def run(self, paths: Iterable[str], check_owner: Callable[[], object]) -> None:
        """Remove these files, and those of removals that failed; log an error.

        `check_owner`: is called before; raises StorageConflict if another mirror has taken over the target.
        """
        self._left = [*self._left, *paths][-MOST_LEFT:]
        if not self._left or time.monotonic() < self._from_s:
            return
        try:
            check_owner()
            self._left, error = _removed(self._target, self._left)
        except StorageConflict:
            raise
        except CdcdError as failed:
            error = failed
        if error is not None:
            log.warning("replaced files could not be removed; this is tried again: %s", error)
            self._from_s = time.monotonic() + REMOVE_AGAIN_S


def _removed(target: Storage, paths: Iterable[str]) -> tuple[list[str], CdcdError | None]:
    """Remove files. Return those that are not known to be removed, what failed last, and the first error.

    A path that cannot be removed does not keep the others, which may be those of other tables.
    """
    left, failed = list(paths), list[str]()
    first: CdcdError | None = None
    until_s = time.monotonic() + FAILING_S
    while left and (first is None or time.monotonic() < until_s):
        some, left = left[:AT_ONCE], left[AT_ONCE:]
        try:
            target.delete(some)
        except StorageConflict:
            raise
        except CdcdError as error:
            first = first or error
            named = {error.context.get("file")} & set(some)  # empty: unknown which one it was
            failed += [one for one in some if one in named or not named]
            left += [one for one in some if named and one not in named]
    return left + failed, first
