"""Say what the partitions of published tables leave out of the WAL, when it is seen first and when it is over.

In: looks at the catalog, at the start and at intervals.  Out: lines of the log.
Invariant: what is seen again is not said again; what is gone and comes back is.
Must not: halt: a change that does not name its row does that, if one comes (F78).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import structlog

from cdcd.schema.policy import Policy
from cdcd.source.partitions import Root, Shortfall, roots_among, shortfalls
from cdcd.source.publication_diff import Published

_LOG = structlog.stdlib.get_logger("cdcd.publication")
_OPERATIONS = frozenset({"update", "delete"})


class PartitionMonitor:
    """One for the process. `look` is called in a thread, `report` on the loop."""

    def __init__(self, policy_of: Callable[[str], Policy]) -> None:
        self._policy_of = policy_of
        self._known: frozenset[Shortfall] = frozenset()

    def look(self, connection: Any, published: Published) -> list[Shortfall]:
        """Return what is missing now. Blocking; raises Source errors."""
        relids = {
            relid
            for publication in published.values()
            if publication.via_root and _OPERATIONS & set(publication.operations.split(", "))
            for relid in publication.tables
        }
        roots = [self._with_key(root) for root in roots_among(connection, relids)]
        return shortfalls(connection, roots)

    def report(self, found: Collection[Shortfall]) -> None:
        """Log what is new, and what is over."""
        now = frozenset(found)
        for one in sorted(now - self._known, key=lambda one: (one.table, one.message)):
            _LOG.warning("partition_identity", table=one.table, detail=one.message, hint=one.hint)
        still = {one.table for one in now}
        for table in sorted({one.table for one in self._known} - still):
            _LOG.info("partition_identity_complete", table=table)
        self._known = now

    def _with_key(self, root: Root) -> Root:
        return root if root.key else replace(root, key=self._policy_of(root.name).key_columns)
