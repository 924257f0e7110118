"""Bound the number of server crashes at one position of the stream, for the sake of all users of the server.

In: the error of a session, the server of the next session.  Out: the options to leave out, or ServerCrashed.
A crash of the server ends all of its sessions. The next session makes the server decode the same changes; if they
caused the crash, the server crashes again. A crash shows in the server's statistics, which are reset after a crash
and not after a clean restart.
Invariant: the count restarts whenever anything of the stream becomes durable.
Must not: confirm or skip anything.
"""

from __future__ import annotations

from cdcd.errors import ServerCrashed, SourceUnavailable
from cdcd.lsn import INVALID_LSN, Lsn
from cdcd.source.identity import ServerIdentity

TRIES_WITH_OPTIONS = 2
"""Crashes at one position after which streaming and binary, which may be the cause, are left out."""
TRIES = 3
"""Crashes at one position after which cdcd halts."""
_OPTIONS = ("streaming", "binary")


class ServerCrashes:
    """The crashes at one position; one object for the process."""

    def __init__(self) -> None:
        self._crashes = 0
        self._durable_lsn = INVALID_LSN
        self._lost_since_us: int | None = None

    def ended(self, error: Exception, asked_us: int, durable_lsn: Lsn, *, has_advanced: bool) -> None:
        """Count a session that asked for the stream, at `asked_us` by the server's clock (Unix epoch)."""
        if has_advanced or durable_lsn > self._durable_lsn:
            self._crashes = 0
        self._durable_lsn = durable_lsn
        if isinstance(error, SourceUnavailable):
            self._lost_since_us = asked_us
        else:
            self.forget()

    def forget(self) -> None:
        """Reset the count."""
        self._crashes, self._lost_since_us = 0, None

    def options_to_leave_out(self, server: ServerIdentity) -> tuple[str, ...]:
        """Return the options that the next session leaves out. Raises ServerCrashed."""
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
