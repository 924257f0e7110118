"""The outcomes of an interrupted `cdcd verify --state`, and files that replace others at once.

In: a folder, what the outcomes depend on.  Out: the outcomes that still hold.
Invariant: an outcome is taken over only from a run with the same server, configuration, options and version, at most
`MOST_AGE_S` before; a table that could not be compared is compared again. No text of a key is stored.
Must not: be readable by others: the hash of a small key tells the key to whoever tries all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cdcd.verify.outcome import EQUAL, UNKNOWN, CannotTell, DifferentRow, TableOutcome
from cdcd.verify.topic_log import STATE

__all__ = ["MOST_AGE_S", "StoredOutcomes", "has_entries", "only_run", "remove_entries", "replace_file"]

MOST_AGE_S = 86_400.0
_FORMAT = 1
_NO_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Of file systems that cannot lock a folder, such as NFS."""
_NAME = "outcomes.json"


class StoredOutcomes:
    """The outcomes of the tables that a run with this `identity` has finished. Raises OSError.

    `has_keys`: rows that differ have the texts of their keys, so that their tables are not stored.
    `window`: the window of the sample, None if no run of this identity was interrupted.
    """

    def __init__(
        self,
        folder: Path,
        identity: Mapping[str, object],
        *,
        has_keys: bool,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._has_keys, self._clock = folder / _NAME, has_keys, clock
        self._identity = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        self._tables: list[dict[str, Any]] = []
        self.window: int | None = None
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            self._read(json.loads(self._path.read_text()))

    def _read(self, document: Any) -> None:
        if (document["format"], document["identity"]) != (_FORMAT, self._identity):
            return
        now_s = self._clock()
        held = [one for one in document["tables"] if 0 <= now_s - one["finished_s"] <= MOST_AGE_S]
        for one in held:
            _outcome(one)
        self.window, self._tables = int(document["window"]), held

    def outcomes(self) -> list[TableOutcome]:
        """Return the outcomes that hold."""
        return [_outcome(one) for one in self._tables]

    def begin(self, window: int) -> None:
        """Store the window of the sample, so that the next run reads the same keys."""
        self.window = window
        self._store()

    def add(self, outcome: TableOutcome) -> None:
        """Store the outcome of a table, if it is one to take over."""
        if outcome.state == UNKNOWN or (self._has_keys and outcome.state != EQUAL):
            return
        self._tables.append({"finished_s": self._clock(), "outcome": dataclasses.asdict(outcome)})
        self._store()

    def end(self, *, is_known: bool) -> None:
        """Forget the outcomes of a run that reached all tables; the window remains where some are not known."""
        self._tables = []
        if is_known:
            self._path.unlink(missing_ok=True)
        else:
            self._store()

    def _store(self) -> None:
        document = {
            "format": _FORMAT,
            "identity": self._identity,
            "window": self.window,
            "tables": self._tables,
        }
        replace_file(self._path, json.dumps(document), 0o600)


def _outcome(stored: Mapping[str, Any]) -> TableOutcome:
    fields = stored["outcome"]
    rows = [DifferentRow(**{**row, "columns": tuple(row["columns"])}) for row in fields["rows"]]
    return TableOutcome(**{**fields, "rows": rows})


@contextlib.contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Lock the folder in the block, as far as its file system can. Raises CannotTell if another run has it."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(number, folder)
        yield
    finally:
        os.close(number)


def _lock(number: int, folder: Path) -> None:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CannotTell(f"another run of `cdcd verify` uses the folder {folder} (--state)") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def has_entries(folder: Path) -> bool:
    """Return whether another run can continue to read the records of a table from its folder."""
    return (folder / STATE).exists()


def remove_entries(folder: Path) -> None:
    """Remove the folders of all tables."""
    for path in folder.iterdir():
        if path.name.isdecimal():
            shutil.rmtree(path, ignore_errors=True)


def replace_file(path: Path, text: str, mode: int) -> None:
    """Write a file under a name of its own, then give it its name. Raises OSError."""
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(number, "w") as file:
            os.fchmod(number, mode)
            file.write(text)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
