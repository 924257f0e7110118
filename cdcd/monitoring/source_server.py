"""Which server is the source, for whatever queries or writes over a connection of its own (F59).

In: the server of the stored position, the server that each session has decided to read.  Out: `check`.
Invariant: while a session runs, only its server and timeline are the source. Between sessions it is the system
identifier that was last the source, on the same timeline or a later one: a standby may have been promoted. An earlier
timeline is that of a former primary that still runs. Before anything is known, any server may be the source.
Must not: do I/O.
"""

from __future__ import annotations

from cdcd.errors import SourceUnavailable
from cdcd.monitoring.lag import ServerTimeline


class SourceServer:
    """One for the process; changed on the loop, read in any thread."""

    def __init__(self) -> None:
        self._last: ServerTimeline | None = None
        self.session: ServerTimeline | None = None
        """The server of the running session, None before it has decided where it begins."""
        self.sessions = 0
        """How many sessions have begun: a connection from before the last one may lead to a former server."""

    def begins(self) -> None:
        """Note that a session begins; it connects where source.dsn leads now."""
        self.sessions += 1

    def stored(self, of: ServerTimeline) -> None:
        """Take the server of the stored position."""
        self._last = of

    def decided(self, of: ServerTimeline) -> None:
        """Note the server that the session reads, now that it was compared with the stored position."""
        self.session = self._last = of

    def ends(self) -> None:
        """Note the end of the session."""
        self.session = None

    def is_source(self, of: ServerTimeline) -> bool:
        """Return whether this server is the source."""
        session, last = self.session, self._last
        if session is not None:
            return of == session
        return last is None or (
            of.system_identifier == last.system_identifier and of.timeline >= last.timeline
        )

    def check(self, of: ServerTimeline) -> None:
        """Raise SourceUnavailable for a server that is not the source."""
        if self.is_source(of):
            return
        raise SourceUnavailable(
            f"another server answers than the one that cdcd reads: {_shown(of)}, not "
            f"{_shown(self.session or self._last)}",
            hint="no action is needed while the server or its address changes: cdcd connects again. If this lasts, "
            "source.dsn leads to several servers: fence a former primary, and let the name lead to one server",
        )


def _shown(of: ServerTimeline | None) -> str:
    return "none" if of is None else f"system identifier {of.system_identifier} on timeline {of.timeline}"
