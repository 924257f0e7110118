"""The transactions that may have their commit record before the tracked part of the stream, and are not visible yet.

In: rows of the statements below, executed after the tracking began.  Out: xids for `ChangedKeys`.
Why: a transaction is committed in the WAL, and streamed, before it is visible; long before, with synchronous
replication (F36). If it was streamed before the tracking began, its changes are not tracked, and a chunk whose
snapshot does not see it would have older rows. Its session has the xid until it is visible. The list of a snapshot is
not enough: it lacks transactions from xmax on.
Invariant: a transaction counts as settled only if it had no commit record when the tracking began: its session was
seen idle afterwards, or has begun another statement, so it is not inside the commit.
Must not: do I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# Transactions of other databases cannot change the table. Each role may read backend_xid; without pg_read_all_stats
# `state` is null for sessions of other roles. Each execution needs its own transaction, as in autocommit: within one
# transaction pg_stat_activity returns the same rows again.
RUNNING = """
    SELECT a.backend_xid::text::int8, a.pid, a.state, a.state_change::text
    FROM pg_stat_activity a WHERE a.backend_xid IS NOT NULL AND (a.datname IS NULL OR a.datname = current_database())
    UNION ALL
    SELECT p.transaction::text::int8, NULL, NULL, NULL FROM pg_prepared_xacts p WHERE p.database = current_database()
"""
"""To be executed first once, and then at intervals until no transaction is left."""

_WAIT = "transactions that are committed but not visible yet, or long transactions"
_HIDDEN = ". The role may not see whether these sessions are idle, which need no wait: GRANT pg_read_all_stats to it"
_MOST_NAMED = 5
_IN_COMMIT = (None, "", "active", "fastpath function call", "disabled")


class RunningTransactions:
    """The transactions that were running when the tracking had begun. `rows`: of `RUNNING`."""

    def __init__(self, rows: Iterable[tuple[Any, ...]]) -> None:
        self._first = {xid: tuple(session) for xid, *session in rows}
        self._left = set(self._first) - self._settled(self._first)
        self._running = set(self._first)

    @property
    def xids(self) -> frozenset[int]:
        """The transactions that may be inside their commit, until they are visible or settled."""
        return frozenset(self._left)

    @property
    def reason(self) -> str:
        """What a copy waits for, with the sessions that still run."""
        left = [self._first[xid] for xid in sorted(self._left & self._running)]
        pids = sorted(pid for pid, *_ in left if pid is not None)
        names = [f"session {pid}" for pid in pids[:_MOST_NAMED]]
        names += [f"{len(pids) - _MOST_NAMED} more sessions"] if len(pids) > _MOST_NAMED else []
        names += ["a prepared transaction"] if len(pids) < len(left) else []
        hidden = any(pid is not None and state is None for pid, state, _ in left)
        return _WAIT + (f": {', '.join(names)}" if names else "") + (_HIDDEN if hidden else "")

    def settled(self, rows: Iterable[tuple[Any, ...]]) -> frozenset[int]:
        """Return the transactions that later rows of `RUNNING` show to be outside their commit."""
        now = {xid: tuple(session) for xid, *session in rows}
        self._running = set(now)
        found = {
            xid
            for xid in self._left
            if xid in now and self._first[xid] != now[xid] and self._first[xid][0] == now[xid][0]
        }
        found |= self._left & self._settled(now)
        self._left -= found
        return frozenset(found)

    @staticmethod
    def _settled(rows: dict[int, tuple[Any, ...]]) -> set[int]:
        return {xid for xid, (pid, state, _) in rows.items() if pid is not None and state not in _IN_COMMIT}
