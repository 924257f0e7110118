"""Refuse copies whose state the progress record has no room for.

In: the state that a command would make.  Out: SnapshotRefused if it is too large.
Why: a record that the broker does not take halts cdcd, and a signal would halt it again after each restart.
Must not: change the state.
"""

from __future__ import annotations

from cdcd.errors import SnapshotRefused
from cdcd.model import CopyState
from cdcd.sink.copy_record import size_of

MAX_STATE_BYTES = 512 * 1024
"""Of all copies. Brokers take records of 1 MB by default, and the states grow while rows are copied."""
_HINT = (
    "start fewer tables at a time, or with a shorter condition: each progress record has the condition and the "
    "partitions of each table that is being copied"
)


def refuse_large(copy: CopyState) -> None:
    """Raise SnapshotRefused if the copies of this state take too much of the progress record."""
    if (size_bytes := size_of(copy)) > MAX_STATE_BYTES:
        raise SnapshotRefused(
            "the tables that are being copied would take too much of the progress record",
            hint=_HINT,
            size_bytes=size_bytes,
            limit_bytes=MAX_STATE_BYTES,
        )
