"""Crashes of the server at one place of the stream: they are not repeated for ever, for all of its users.

In: what a session ended with, the server that the next one meets.  Out: the options to leave out, or ServerCrashed.
A server that crashes ends all of its sessions; what it has to decode comes again, and where that made it crash it
crashes again. Whether it crashed shows in its statistics: they begin again after a crash, and not after a clean
restart.
Invariant: only crashes count between which nothing of the stream became durable.
Must not: confirm or skip anything.
"""

from __future__ import annotations

from cdcd.errors import ServerCrashed, SourceUnavailable
from cdcd.lsn import INVALID_LSN, Lsn
from cdcd.source.identity import ServerIdentity

TRIES_WITH_OPTIONS = 2
"""So often the server may crash before streaming and binary are left out, of which one may be the reason."""
TRIES = 3
"""So often it may crash at one place altogether."""
_OPTIONS = ("streaming", "binary")


class ServerCrashes:
    """Outlives the sessions of a daemon."""

    def __init__(self) -> None:
        self._crashes = 0
        self._durable_lsn = INVALID_LSN
        self._lost_since_us: int | None = None

    def ended(self, error: Exception, asked_us: int, durable_lsn: Lsn, *, has_advanced: bool) -> None:
        """Take note of a session that asked for the stream, at `asked_us` by the server's clock (Unix epoch)."""
        if has_advanced or durable_lsn > self._durable_lsn:
            self._crashes = 0
        self._durable_lsn = durable_lsn
        if isinstance(error, SourceUnavailable):
            self._lost_since_us = asked_us
        else:
            self.forget()

    def forget(self) -> None:
        """Begin to count again."""
        self._crashes, self._lost_since_us = 0, None

    def options_to_leave_out(self, server: ServerIdentity) -> tuple[str, ...]:
        """Return what the next session does without. Raises ServerCrashed."""
        if self._lost_since_us is not None:
            has_crashed = (
                server.statistics_since_us is not None and server.statistics_since_us > self._lost_since_us
            )
            self._crashes = self._crashes + 1 if has_crashed else 0
            self._lost_since_us = None
        if self._crashes >= TRIES:
            raise ServerCrashed(
                f"the server crashed {self._crashes} times while it decoded from the same position",
                start_lsn=self._durable_lsn,
            )
        return _OPTIONS if self._crashes >= TRIES_WITH_OPTIONS else ()
