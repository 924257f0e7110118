"""What the daemon waits for now: one collection for log, /status and metrics.

In: parts that begin to wait and end it, looks that find out who holds them up.  Out: `Wait`s that have lasted.
Invariant: a wait is shown once it has lasted for `SHOWN_AFTER_S`, with the blockers of the last look and never with
older ones; a wait that was in the log is in it a second time when it has ended. May be called from any thread.
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
from cdcd.waits import Blocker, Kind, Seen, Wait, held_by

SHOWN_AFTER_S = 3.0
LOOK_INTERVAL_S = 10.0
SAID_AGAIN_AFTER_S = 300.0
OTHER_BLOCKERS_AFTER_S = 30.0
"""A line in the log for other blockers comes no more often: transactions may come and go by the second."""
TURN_INTERVAL_S = 1.0
Look = Callable[[], tuple[Blocker, ...]]
_LOG = structlog.stdlib.get_logger("cdcd.waits")


@dataclass(eq=False, slots=True)
class Note:
    """A wait that may last. `since_s` is None while nothing is waited for (`may_wait`)."""

    kind: Kind
    what: str
    since_s: float | None
    look: Look | None = None
    blockers: tuple[Blocker, ...] = ()
    looked_s: float = 0.0
    said_s: float | None = None
    said: frozenset[str] = frozenset()
    looking: asyncio.Future[None] | None = field(default=None, repr=False)


class Waits:
    """All waits of the process."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._notes: list[Note] = []
        self._retrying: Note | None = None
        self.looks: dict[Kind, Look] = {}
        """Who finds out, by kind, who holds cdcd up: blocking, called in a thread."""

    # --- in ----------------------------------------------------------------------------------------------

    def begin(self, kind: Kind, what: str = "") -> Note:
        """Something is waited for from now on."""
        return self._add(Note(kind, what, self._clock(), self.looks.get(kind)))

    def end(self, note: Note | None) -> None:
        """It is waited for no more; may be called again."""
        if note is None:
            return
        with self._lock:
            if note not in self._notes:
                return
            self._notes.remove(note)
        self._say_ended(note)

    @contextlib.contextmanager
    def on(self, kind: Kind, what: str = "") -> Iterator[None]:
        """Wait for this inside the block."""
        note = self.begin(kind, what)
        try:
            yield
        finally:
            self.end(note)

    def may_wait(self, kind: Kind = "lock", what: str = "") -> Note:
        """Something may be waited for: `seen` says whether it is."""
        return self._add(Note(kind, what, None))

    def retrying(self, kind: Kind, what: str = "") -> None:
        """A session has ended for want of this, and another will try: one wait, however often it is tried."""
        if self._retrying is not None and self._retrying.kind == kind:
            self._retrying.what, self._retrying.look = what, self.looks.get(kind)
            return
        self.stop_retrying()
        self._retrying = self.begin(kind, what)

    def stop_retrying(self, *kinds: Kind) -> None:
        """What sessions have ended for is there again, if it is of these kinds; of whatever kind without any."""
        if self._retrying is not None and (not kinds or self._retrying.kind in kinds):
            self.end(self._retrying)
            self._retrying = None

    @contextlib.contextmanager
    def watching(
        self, kind: Kind, what: str = "", *, is_waiting: bool = False
    ) -> Iterator[Callable[[Seen | None], None]]:
        """Yield what takes the looks at a statement of the block, which waits only while they say so.

        `is_waiting`: it waits in any case, and the looks say for whom.
        """
        note = self._add(Note(kind, what, self._clock() if is_waiting else None))
        try:
            yield lambda seen: self.seen(note, seen, is_waiting=is_waiting)
        finally:
            self.end(note)

    def seen(self, note: Note, seen: Seen | None, *, is_waiting: bool = False) -> None:
        """A look at who holds it up has found this; None: nobody."""
        if seen is None and not is_waiting:
            if note.since_s is not None:
                self._say_ended(note)
            note.since_s, note.blockers, note.said_s = None, (), None
            return
        note.since_s = note.since_s or self._clock()
        if seen is None:
            note.blockers = ()
            return
        if not is_waiting:
            note.kind, note.what = seen.kind, seen.what or note.what
        note.blockers = seen.blockers

    # --- out ---------------------------------------------------------------------------------------------

    def shown(self) -> list[Wait]:
        """Return the waits that have lasted, the oldest first."""
        now_s = self._clock()
        with self._lock:
            notes = list(self._notes)
        waits = [
            Wait(note.kind, note.what, note.since_s, note.blockers)
            for note in notes
            if note.since_s is not None and now_s - note.since_s >= SHOWN_AFTER_S
        ]
        return sorted(waits, key=lambda wait: wait.since_s)

    def page(self) -> list[dict[str, Any]]:
        """Return what /status shows."""
        now_s = self._clock()
        return [wait.page(now_s) for wait in self.shown()]

    async def watch(self) -> None:
        """Look and log until cancelled."""
        while True:
            self.turn()
            await asyncio.sleep(TURN_INTERVAL_S)

    def turn(self) -> None:
        """Begin the looks that are due; log what is new. On the loop."""
        now_s = self._clock()
        with self._lock:
            notes = list(self._notes)
        for note in notes:
            if note.since_s is None or now_s - note.since_s < SHOWN_AFTER_S:
                continue
            is_first_look = note.look is not None and not note.looked_s
            self._look(note, now_s)
            if not is_first_look:  # the line that says that it waits says for whom, too
                self._say(note, now_s)

    # --- inside ------------------------------------------------------------------------------------------

    def _add(self, note: Note) -> Note:
        with self._lock:
            self._notes.append(note)
        return note

    def _look(self, note: Note, now_s: float) -> None:
        is_looking = note.looking is not None and not note.looking.done()
        if note.look is None or is_looking or now_s - note.looked_s < LOOK_INTERVAL_S:
            return
        note.looked_s = now_s
        note.looking = asyncio.ensure_future(self._looked(note, note.look))

    async def _looked(self, note: Note, look: Look) -> None:
        try:
            note.blockers = await in_thread(look)
        except CdcdError as error:
            note.blockers = ()
            _LOG.debug("blockers_unknown", kind=note.kind, error=str(error))
        except Exception:  # noqa: BLE001 - a defect in a look must not end the waits
            note.blockers = ()
            _LOG.exception("blocker_query_failed")

    def _say(self, note: Note, now_s: float) -> None:
        if note.since_s is None:
            return
        blockers = frozenset(blocker.who for blocker in note.blockers)
        since_said_s = None if note.said_s is None else now_s - note.said_s
        is_new = since_said_s is None or (blockers != note.said and since_said_s >= OTHER_BLOCKERS_AFTER_S)
        if not is_new and since_said_s is not None and since_said_s < SAID_AGAIN_AFTER_S:
            return
        wait = Wait(note.kind, note.what, note.since_s, note.blockers)
        _LOG.warning(
            "waiting",
            kind=note.kind,
            waits_for=wait.waits_for,
            held_by=held_by(note.blockers),
            seconds=round(now_s - note.since_s, 1),
            ends_when=wait.ends_when,
        )
        note.said_s, note.said = now_s, blockers

    def _say_ended(self, note: Note) -> None:
        if note.said_s is not None and note.since_s is not None:
            seconds = round(self._clock() - note.since_s, 1)
            _LOG.info("wait_ended", kind=note.kind, what=note.what, seconds=seconds)
