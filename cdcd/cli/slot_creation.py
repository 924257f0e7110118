"""Make a slot for a command: say on standard error whom PostgreSQL waits for, and end at Ctrl-C.

Comes in: source settings.  Goes out: the slot, with the connection that made it.
Invariant: who is interrupted leaves no slot, and no session that would make one later.
Must not: wait longer than `TIMEOUT_S`; who waits for more runs the daemon.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from concurrent.futures import Future, TimeoutError

from cdcd.cli.output import say
from cdcd.source.identity import ServerIdentity
from cdcd.source.settings import SourceSettings
from cdcd.source.slot import CANCEL_TIMEOUT_S, CreatedSlot, create_slot
from cdcd.waits import Seen, held_by

TIMEOUT_S = 300.0


def create_slot_reporting_waits(
    settings: SourceSettings, expected: ServerIdentity | None = None
) -> CreatedSlot:
    """Create the slot without a snapshot. Raises as `create_slot`, and KeyboardInterrupt."""
    given_up = threading.Event()
    made: Future[CreatedSlot] = Future()
    report = BlockerReport()

    def make() -> None:
        try:
            slot = create_slot(
                settings,
                export_snapshot=False,
                timeout_s=TIMEOUT_S,
                given_up=given_up,
                expected=expected,
                report=report,
            )
            made.set_result(slot)
        except BaseException as error:  # noqa: BLE001 - handed to who waits
            made.set_exception(error)

    threading.Thread(target=make, daemon=True).start()
    try:
        return made.result()  # libpq would not let a signal through
    except KeyboardInterrupt:
        given_up.set()
        with contextlib.suppress(TimeoutError):
            made.exception(CANCEL_TIMEOUT_S)
        raise


class BlockerReport:
    """Says on standard error whom the creation of a slot waits for, once for each set of blockers."""

    def __init__(self) -> None:
        self._said = ""

    def __call__(self, seen: Seen | None) -> None:
        """Take what a look has found."""
        text = "" if seen is None else held_by(seen.blockers)
        if text and text != self._said:
            say([f"cdcd: waiting for transactions to end that are open now: {text}; Ctrl-C ends"], sys.stderr)
        self._said = text
