"""Create a slot for a command: show the blocking transactions on standard error, and end at Ctrl-C.

Comes in: source settings.  Goes out: the slot, with the connection that created it.
Invariant: an interrupted command leaves no slot, and no session that would create one later.
Must not: wait longer than `TIMEOUT_S`; only the daemon waits longer.
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
from cdcd.waits import WaitCause, held_by

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
        except BaseException as error:  # noqa: BLE001 - passed to the waiting thread
            made.set_exception(error)

    threading.Thread(target=make, daemon=True).start()
    try:
        return made.result()  # a signal does not interrupt a wait inside libpq
    except KeyboardInterrupt:
        given_up.set()
        with contextlib.suppress(TimeoutError):
            made.exception(CANCEL_TIMEOUT_S)
        raise


class BlockerReport:
    """Prints the transactions that block the creation of a slot to standard error, once for each set of blockers."""

    def __init__(self) -> None:
        self._said = ""

    def __call__(self, seen: WaitCause | None) -> None:
        """Print the blockers that a query has found, if they differ from the last ones."""
        text = "" if seen is None else held_by(seen.blockers)
        if text and text != self._said:
            say([f"cdcd: waiting for the end of open transactions: {text}; Ctrl-C ends"], sys.stderr)
        self._said = text
