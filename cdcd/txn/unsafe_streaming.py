"""Decide when a streamed transaction may be decoded with outdated catalog entries, or its rollbacks not be tracked.

In: rollbacks of subtransactions.  Out: orphan subxids, UnsafeStreaming.
Invariant: the tracked subtransactions are limited in number.
Must not: read rows.
"""

from __future__ import annotations

from cdcd.errors import UnsafeStreaming
from cdcd.pgoutput import messages
from cdcd.txn.open_transactions import OpenTransaction

SUBTRANSACTIONS_LIMIT = 100_000
"""The most subtransactions of open streams that are tracked, here and in the stores, in about 10 MB."""


class OrphanSubxids(set[int]):
    """Subtransactions whose rollback was received while their transaction was not open."""

    def note(self, xid: int, *, is_limited: bool) -> None:
        """Note an orphan subxid. Their number is limited: the server may never send more of the transaction."""
        if is_limited and xid not in self and len(self) >= SUBTRANSACTIONS_LIMIT:
            raise UnsafeStreaming(
                "too many transactions have a rolled-back subtransaction for cdcd to track", xid=xid
            )
        self.add(xid)


def is_later(stream: OpenTransaction, abort: messages.StreamAbort, sent_at_pg_us: int) -> bool:
    """Return whether the rollback happened after the last segment was sent, so that it did not affect its decoding.

    Only protocol version 4 sends the time of a rollback. With a replication origin it is the origin's time: by
    another clock, or an arbitrary value (pg_replication_origin_xact_setup).
    """
    if abort.abort_pg_us is None or stream.origin is not None:
        return False
    return stream.stopped_at_pg_us < abort.abort_pg_us <= sent_at_pg_us
