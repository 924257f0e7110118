"""Detect that secrets and certificates of the Kafka clients were changed on disk.

In: the files that the configuration names.  Out: the files whose content has changed since their last use.
Invariant: a change counts once two successive checks have read the same content and every file exists, because a
certificate and its key may be replaced one after the other. Contents are compared by hash, and neither stored nor
logged.
Must not: talk to Kafka, decide when a new client is made.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import structlog

from cdcd.config import Config
from cdcd.monitoring.status import Status
from cdcd.pipeline.writer import Writer
from cdcd.threads import in_thread

_LOG = structlog.stdlib.get_logger("cdcd.session")
CHECK_INTERVAL_S = 10.0

Fingerprints = Mapping[Path, bytes]


def fingerprints(files: Iterable[Path]) -> Fingerprints:
    """Return the hash of each file's content, without unreadable files. A folder counts with all its files."""
    found = {}
    for file in files:
        try:
            parts = sorted(file.iterdir()) if file.is_dir() else [file]
            hashed = hashlib.sha256()
            for part in parts:
                if part.is_file():
                    hashed.update(hashlib.sha256(part.read_bytes()).digest())
            if file.exists():
                found[file] = hashed.digest()
        except OSError:
            continue  # the client that uses the file reports why
    return found


def changes(known: Fingerprints, before: Fingerprints, now: Fingerprints) -> tuple[Path, ...]:
    """Return the files whose content differs from `known` and was the same in both checks."""
    if now != before or not known.keys() <= now.keys():
        return ()
    return tuple(file for file, seen in now.items() if seen != known.get(file))


class Rotation:
    """The hashes of the files at their last use. Created before the files are read for the first time."""

    def __init__(self, config: Config) -> None:
        self._files = config.sink_files
        self._known = self._before = fingerprints(self._files)

    def check(self) -> tuple[Path, ...]:
        """Return the files that have changed since their last use; their new content counts as used from now on."""
        now = fingerprints(self._files)
        found = changes(self._known, self._before, now)
        self._before = now
        if found:
            self._known = now
        return found

    async def changed(self) -> tuple[Path, ...]:
        """Wait until files have changed; return them."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            if files := await in_thread(self.check):
                return files

    async def keep(self, writer: Writer, renew: Callable[[], None], status: Status) -> None:
        """Renew the clients whenever their files have changed, without ending the session."""
        while True:
            files = await self.changed()
            await writer.between_groups(renew)
            status.metrics.producer_rebuilt("files")
            _LOG.info("producer_rebuilt", files=[str(file) for file in files])
