"""Watch what the publications publish, and tell whoever has to know (F39, F42, F72).

In: looks at the publications, at intervals.  Out: a line in the log and a count for each change; an error where the
stream must not go on.
Invariant: no change is silent. A publication that was dropped, or made again, halts: changes in between may be
missing. A table taken out halts where that is wanted. Looks of sessions that come and go are one row: what changes
between two sessions is told as well.
Must not: say that something is missing which PostgreSQL has not left out: it judges each change by the publication
as it was then (F42).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from cdcd.errors import CdcdError, PublicationChanged, PublicationMissing, ServerInternal, SourceUnavailable
from cdcd.ops.metrics import Metrics
from cdcd.source.publication import missing_publications
from cdcd.source.published import Change, Published, changes, read_published, still_there

_LOG = structlog.stdlib.get_logger("cdcd.publication")
_LOCK_NOT_AVAILABLE = "55P03"
_HINTS = {
    "table_removed": "its changes from there on are not in the stream; put it back, and what was missed needs a new "
    "snapshot",
    "table_readded": "its changes in between are not in the stream; they need a new snapshot",
    "table_added": "its rows from before are not in the stream (F42)",
    "columns": "changes from there on come with the columns of the new list (F42)",
    "rows": "changes from there on are filtered by the new filter (F42)",
    "options": "changes from there on are published so (F42)",
}


class PublicationWatch:
    """One for the process. `look` is called in the monitor's thread, `tell` on the loop."""

    def __init__(
        self,
        names: tuple[str, ...],
        metrics: Metrics,
        found: Callable[[CdcdError], None],
        *,
        halts_at_removal: bool,
    ) -> None:
        self._names = names
        self._metrics = metrics
        self._found = found
        self._halts_at_removal = halts_at_removal
        self._last: Published | None = None

    @property
    def has_looked(self) -> bool:
        """Whether there is something to compare with."""
        return self._last is not None

    def look(self, connection: Any) -> tuple[list[str], list[Change]]:
        """Return the publications that are missing, and what has changed. Blocking; raises Source errors.

        While a published table is locked nothing is compared: the next look sees what has come of it.
        """
        missing = missing_publications(connection, self._names)
        try:
            now = read_published(connection, self._names)
        except (SourceUnavailable, ServerInternal) as error:
            if isinstance(error, ServerInternal) or error.context.get("sqlstate") == _LOCK_NOT_AVAILABLE:
                return missing, []  # a table that goes while the server lists them is an internal error there
            raise
        if self._last is None:
            self._last = now
            return missing, []
        found = changes(self._last, now, still_there(connection, self._last, now))
        self._last = now
        return missing, found

    def tell(self, missing: list[str], found: list[Change]) -> None:
        """Log and count what was found; hand on what has to end the session."""
        for change in found:
            self._say(change)
        if missing:
            self._found(_missing(missing))
        halting = [change for change in found if self._is_halting(change)]
        if halting:
            self._found(_changed(halting))

    def _say(self, change: Change) -> None:
        self._metrics.source.publication_changed(change.kind)
        say = _LOG.info if change.kind == "table_gone" else _LOG.warning
        say("publication_changed", change=change.kind, said=change.said, hint=_HINTS.get(change.kind, ""))

    def _is_halting(self, change: Change) -> bool:
        is_removal = change.kind in ("table_removed", "table_readded")
        return change.kind == "recreated" or (is_removal and self._halts_at_removal)


def _missing(names: list[str]) -> CdcdError:
    return PublicationMissing(
        f"publication was dropped: {', '.join(names)}",
        hint="create it again; what was changed meanwhile is not in the stream (F42)",
    )


def _changed(found: list[Change]) -> CdcdError:
    return PublicationChanged("; ".join(change.said for change in found))
