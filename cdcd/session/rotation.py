"""Notice that secrets and certificates of Kafka's clients were changed on disk.

In: the files that the configuration names.  Out: those that hold something else than when they were last used.
Invariant: a change counts once two looks, one after the other, have seen the same and every file is there, because
whoever changes a certificate and its key may do so one after the other. Contents are compared by hash and are
neither kept nor told.
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
LOOK_INTERVAL_S = 10.0

Fingerprints = Mapping[Path, bytes]


def fingerprints(files: Iterable[Path]) -> Fingerprints:
    """Return what each file holds, hashed; one that cannot be read is left out. A folder is all of its files."""
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
            continue  # who uses it says so, and why
    return found


def changes(known: Fingerprints, before: Fingerprints, now: Fingerprints) -> tuple[Path, ...]:
    """Return the files that are settled as something else than what is known of them."""
    if now != before or not known.keys() <= now.keys():
        return ()
    return tuple(file for file, seen in now.items() if seen != known.get(file))


class Rotation:
    """The files as they were when they were last used. Made before they are read for the first time."""

    def __init__(self, config: Config) -> None:
        self._files = config.sink_files
        self._known = self._before = fingerprints(self._files)

    def look(self) -> tuple[Path, ...]:
        """Return what has changed since it was last used; from now on that is known."""
        now = fingerprints(self._files)
        found = changes(self._known, self._before, now)
        self._before = now
        if found:
            self._known = now
        return found

    async def changed(self) -> tuple[Path, ...]:
        """Wait until something has changed; return what."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            if files := await in_thread(self.look):
                return files

    async def keep(self, writer: Writer, renew: Callable[[], None], status: Status) -> None:
        """Go on with new clients, and without ending the session, whenever what they read from files has changed."""
        while True:
            files = await self.changed()
            await writer.between_groups(renew)
            status.metrics.producer_rebuilt("files")
            _LOG.info("producer_rebuilt", files=[str(file) for file in files])
