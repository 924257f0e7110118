"""Log partitions of published tables whose replica identity is incomplete, when found and when corrected.

In: queries of the catalog, at the start and at intervals.  Out: lines of the log.
Invariant: the same shortfall is logged once, until it is gone and returns.
Must not: halt: only a change without its row's identity does that (F78).
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
    """One for the process. `query` is called in a thread, `report` on the loop."""

    def __init__(self, policy_of: Callable[[str], Policy]) -> None:
        self._policy_of = policy_of
        self._known: frozenset[Shortfall] = frozenset()

    def query(self, connection: Any, published: Published) -> list[Shortfall]:
        """Return the present shortfalls. Blocking; raises Source errors."""
        relids = {
            relid
            for publication in published.values()
            if publication.via_root and _OPERATIONS & set(publication.operations.split(", "))
            for relid in publication.tables
        }
        roots = [self._with_key(root) for root in roots_among(connection, relids)]
        return shortfalls(connection, roots)

    def report(self, found: Collection[Shortfall]) -> None:
        """Log new shortfalls, and tables whose shortfalls are gone."""
        now = frozenset(found)
        for one in sorted(now - self._known, key=lambda one: (one.table, one.message)):
            _LOG.warning("partition_identity", table=one.table, reason=one.message, hint=one.hint)
        still = {one.table for one in now}
        for table in sorted({one.table for one in self._known} - still):
            _LOG.info("partition_identity_complete", table=table)
        self._known = now

    def _with_key(self, root: Root) -> Root:
        return root if root.key else replace(root, key=self._policy_of(root.name).key_columns)
