"""Show whether the daemon's own sessions on the server, or its queries of the publications, are blocked.

In: the monitor's connection, at each of its turns.  Out: waits, with the blocking sessions.
Invariant: the result of the last query is shown, and nothing while no query succeeds.
Must not: wait for a lock.
"""

from __future__ import annotations

import contextlib
from typing import Any

from cdcd.monitoring.publication_monitor import Comparison
from cdcd.monitoring.status import Status
from cdcd.source.blockers import BackendGone, blockers_of, table_lockers
from cdcd.waits import WaitCause


class BlockedSessions:
    """One for the process. `query` is called in the monitor's thread, `report` on the loop."""

    def __init__(self, status: Status) -> None:
        self._status = status
        self._session = status.waits.may_wait()
        self._publications = status.waits.may_wait()

    def query(self, connection: Any, comparison: Comparison) -> tuple[WaitCause | None, WaitCause | None]:
        """Return what blocks a session with the slot (a catalog lock, a standby), and what blocked `comparison`."""
        locked = None
        if comparison.now is None and not comparison.missing and (lockers := table_lockers(connection)):
            locked = WaitCause("lock", "the published tables, to compare the publication", lockers)
        # The pid of a lost session may be another session's by now, or belong to another server.
        for pid in tuple(self._status.own_pids) if self._status.health.is_source_streaming else ():
            with contextlib.suppress(BackendGone):
                if (seen := blockers_of(connection, pid)) is not None:
                    return seen, locked
        return None, locked

    def report(self, session: WaitCause | None, publications: WaitCause | None) -> None:
        """Show the results of `query`; None: nothing is blocked, or that is not known any more."""
        self._status.waits.seen(self._session, session)
        self._status.waits.seen(self._publications, publications)
