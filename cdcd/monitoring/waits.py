"""The present waits of the daemon: one collection for log, /status and metrics.

In: the begin and the end of each wait, queries of its blockers.  Out: `Wait`s that have lasted.
Invariant: a wait is shown once it has lasted for `SHOWN_AFTER_S`, with the blockers of the last query and never with
older ones; the end of a logged wait is logged too. May be called from any thread.
Must not: end a wait, or block the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import structlog

from cdcd.errors import CdcdError
from cdcd.threads import in_thread
from cdcd.waits import Blocker, Wait, WaitCause, WaitKind, held_by

SHOWN_AFTER_S = 3.0
QUERY_INTERVAL_S = 10.0
LOGGED_AGAIN_AFTER_S = 300.0
OTHER_BLOCKERS_AFTER_S = 30.0
"""Other blockers of a wait are logged no more often than this: transactions may begin and end every second."""
TURN_INTERVAL_S = 1.0
BlockerQuery = Callable[[], tuple[Blocker, ...]]
_LOG = structlog.stdlib.get_logger("cdcd.waits")


@dataclass(eq=False, slots=True)
class WaitEntry:
    """A wait, or a possible one: `since_s` is None while nothing is waited for (`may_wait`)."""

    kind: WaitKind
    what: str
    since_s: float | None
    query: BlockerQuery | None = None
    blockers: tuple[Blocker, ...] = ()
    queried_s: float = 0.0
    logged_s: float | None = None
    logged_blockers: frozenset[str] = frozenset()
    running_query: asyncio.Future[None] | None = field(default=None, repr=False)


class Waits:
    """All waits of the process."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: list[WaitEntry] = []
        self._retrying: WaitEntry | None = None
        self.blocker_queries: dict[WaitKind, BlockerQuery] = {}
        """By kind, the query that returns the blockers of a wait: blocking, called in a thread."""

    # --- in ----------------------------------------------------------------------------------------------

    def begin(self, kind: WaitKind, what: str = "") -> WaitEntry:
        """Begin a wait."""
        return self._add(WaitEntry(kind, what, self._clock(), self.blocker_queries.get(kind)))

    def end(self, entry: WaitEntry | None) -> None:
        """End a wait; may be called again."""
        if entry is None:
            return
        with self._lock:
            if entry not in self._entries:
                return
            self._entries.remove(entry)
        self._log_end(entry)

    @contextlib.contextmanager
    def on(self, kind: WaitKind, what: str = "") -> Iterator[None]:
        """Show a wait for the duration of the block."""
        entry = self.begin(kind, what)
        try:
            yield
        finally:
            self.end(entry)

    def may_wait(self, kind: WaitKind = "lock", what: str = "") -> WaitEntry:
        """Add a possible wait; `seen` begins and ends it."""
        return self._add(WaitEntry(kind, what, None))

    def retrying(self, kind: WaitKind, what: str = "") -> None:
        """Show a wait between sessions for a missing server or slot: one wait, whatever the number of tries."""
        if self._retrying is not None and self._retrying.kind == kind:
            self._retrying.what, self._retrying.query = what, self.blocker_queries.get(kind)
            return
        self.stop_retrying()
        self._retrying = self.begin(kind, what)

    def stop_retrying(self, *kinds: WaitKind) -> None:
        """End the wait between sessions if it is of one of these kinds; without kinds, in any case."""
        if self._retrying is not None and (not kinds or self._retrying.kind in kinds):
            self.end(self._retrying)
            self._retrying = None

    @contextlib.contextmanager
    def watching(
        self, kind: WaitKind, what: str = "", *, is_waiting: bool = False
    ) -> Iterator[Callable[[WaitCause | None], None]]:
        """Yield a function that takes the blockers of the block's statement; it waits only while it has blockers.

        `is_waiting`: the statement waits in any case; the function only takes its blockers.
        """
        entry = self._add(WaitEntry(kind, what, self._clock() if is_waiting else None))
        try:
            yield lambda seen: self.seen(entry, seen, is_waiting=is_waiting)
        finally:
            self.end(entry)

    def seen(self, entry: WaitEntry, seen: WaitCause | None, *, is_waiting: bool = False) -> None:
        """Set the blockers of a wait; None: there are none."""
        if seen is None and not is_waiting:
            if entry.since_s is not None:
                self._log_end(entry)
            entry.since_s, entry.blockers, entry.logged_s = None, (), None
            return
        entry.since_s = entry.since_s or self._clock()
        if seen is None:
            entry.blockers = ()
            return
        if not is_waiting:
            entry.kind, entry.what = seen.kind, seen.what or entry.what
        entry.blockers = seen.blockers

    # --- out ---------------------------------------------------------------------------------------------

    def shown(self) -> list[Wait]:
        """Return the waits that have lasted, the oldest first."""
        now_s = self._clock()
        with self._lock:
            entries = list(self._entries)
        waits = [
            Wait(entry.kind, entry.what, entry.since_s, entry.blockers)
            for entry in entries
            if entry.since_s is not None and now_s - entry.since_s >= SHOWN_AFTER_S
        ]
        return sorted(waits, key=lambda wait: wait.since_s)

    def page(self) -> list[dict[str, Any]]:
        """Return the waits for /status."""
        now_s = self._clock()
        return [wait.page(now_s) for wait in self.shown()]

    async def watch(self) -> None:
        """Query blockers and log waits until cancelled."""
        while True:
            self.turn()
            await asyncio.sleep(TURN_INTERVAL_S)

    def turn(self) -> None:
        """Start the queries that are due; log new waits and blockers. Call on the loop."""
        now_s = self._clock()
        with self._lock:
            entries = list(self._entries)
        for entry in entries:
            if entry.since_s is None or now_s - entry.since_s < SHOWN_AFTER_S:
                continue
            is_first_query = entry.query is not None and not entry.queried_s
            self._start_query(entry, now_s)
            if not is_first_query:  # the first line of the log has to name the blockers too
                self._log_wait(entry, now_s)

    # --- inside ------------------------------------------------------------------------------------------

    def _add(self, entry: WaitEntry) -> WaitEntry:
        with self._lock:
            self._entries.append(entry)
        return entry

    def _start_query(self, entry: WaitEntry, now_s: float) -> None:
        is_running = entry.running_query is not None and not entry.running_query.done()
        if entry.query is None or is_running or now_s - entry.queried_s < QUERY_INTERVAL_S:
            return
        entry.queried_s = now_s
        entry.running_query = asyncio.ensure_future(self._run_query(entry, entry.query))

    async def _run_query(self, entry: WaitEntry, query: BlockerQuery) -> None:
        try:
            entry.blockers = await in_thread(query)
        except CdcdError as error:
            entry.blockers = ()
            _LOG.debug("blockers_unknown", kind=entry.kind, error=str(error))
        except Exception:  # noqa: BLE001 - a defect in a query must not end `watch`
            entry.blockers = ()
            _LOG.exception("blocker_query_failed")

    def _log_wait(self, entry: WaitEntry, now_s: float) -> None:
        if entry.since_s is None:
            return
        blockers = frozenset(blocker.who for blocker in entry.blockers)
        since_logged_s = None if entry.logged_s is None else now_s - entry.logged_s
        is_new = since_logged_s is None or (
            blockers != entry.logged_blockers and since_logged_s >= OTHER_BLOCKERS_AFTER_S
        )
        if not is_new and since_logged_s is not None and since_logged_s < LOGGED_AGAIN_AFTER_S:
            return
        wait = Wait(entry.kind, entry.what, entry.since_s, entry.blockers)
        _LOG.warning(
            "waiting",
            kind=entry.kind,
            waits_for=wait.waits_for,
            held_by=held_by(entry.blockers),
            seconds=round(now_s - entry.since_s, 1),
            ends_when=wait.ends_when,
        )
        entry.logged_s, entry.logged_blockers = now_s, blockers

    def _log_end(self, entry: WaitEntry) -> None:
        if entry.logged_s is not None and entry.since_s is not None:
            seconds = round(self._clock() - entry.since_s, 1)
            _LOG.info("wait_ended", kind=entry.kind, what=entry.what, seconds=seconds)
