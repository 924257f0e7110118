"""Prepared, undecided transactions, for the metrics and /status (F33).

In: the assembler's prepared transactions, per batch; the server's clock.  Out: two gauges and a part of /status.
Invariant: without a stream, or without two_phase, cdcd does not see prepared transactions: their number is unknown,
not 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cdcd.lsn import format_lsn
from cdcd.model import POSTGRES_EPOCH_US
from cdcd.ops.metrics import Metrics
from cdcd.txn.open_transactions import OldestPrepared

__all__ = ["PreparedStatus"]


class PreparedStatus:
    """One for the process."""

    def __init__(self, metrics: Metrics, server_us: Callable[[], int]) -> None:
        self._metrics = metrics
        self._server_us = server_us
        self._oldest_prepared: OldestPrepared | None = None
        self._may_be_lost = 0
        self._is_known = False
        self.is_seen = False
        """Whether the stream has two_phase."""

    def show(self, oldest_prepared: OldestPrepared | None, may_be_lost: int) -> None:
        """Show the stream's prepared transactions; `may_be_lost`: the number prepared before cdcd owned the slot."""
        self._oldest_prepared, self._may_be_lost, self._is_known = oldest_prepared, may_be_lost, self.is_seen
        if not self._is_known:
            self._metrics.prepared_transactions(None)
        elif oldest_prepared is None:
            self._metrics.prepared_transactions(0)
        else:
            self._metrics.prepared_transactions(oldest_prepared.count, lambda: self._age_s(oldest_prepared))

    def forget(self) -> None:
        """Reset to unknown: the stream is closed, and the next one sends its open transactions again."""
        self._is_known = self.is_seen = False
        self._oldest_prepared = None
        self._metrics.prepared_transactions(None)

    def page(self) -> dict[str, Any] | None:
        """Return the part of /status."""
        if not self._is_known:
            return None
        if self._oldest_prepared is None:
            return {"transactions": 0, "may_be_lost": self._may_be_lost}
        return {
            "transactions": self._oldest_prepared.count,
            "oldest_lsn": format_lsn(self._oldest_prepared.oldest_lsn),
            "oldest_age_s": round(self._age_s(self._oldest_prepared), 1),
            "may_be_lost": self._may_be_lost,
        }

    def _age_s(self, oldest_prepared: OldestPrepared) -> float:
        return max(0.0, (self._server_us() - oldest_prepared.oldest_pg_us - POSTGRES_EPOCH_US) / 1e6)
