"""How long the complete transactions of an open Kafka transaction wait for what may join them.

In: whether the stream is in a backlog, what readers see, whether the last group had company.
Out: one frozen `WaitPolicy`, which the group obeys.
Must not: do I/O, read the clock.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BACKLOG", "JOINING", "LATE_POSITION", "NO_WAIT", "WaitPolicy", "wait_policy"]


@dataclass(frozen=True, slots=True)
class WaitPolicy:
    """Microseconds to wait, counted from the first record of the group. 0: not at all.

    `linger_us`: for more rows, up to `group.LINGER_MAX_ROWS`; in a backlog a commit costs as much as a thousand rows.
    `join_us`: for what still joins, but not for a part of a transaction, which would hold the complete ones back for
    as long as it comes in.
    `position_us`: where rows are seen as they are written: likewise, and the position is committed then whatever
    waits.
    """

    linger_us: int = 0
    join_us: int = 0
    position_us: int = 0

    @property
    def is_brief(self) -> bool:
        """Whether no part of a transaction may join the complete ones."""
        return self.join_us > 0 or self.position_us > 0


NO_WAIT = WaitPolicy()
BACKLOG = WaitPolicy(linger_us=100_000)
"""Some thousand rows at the rates at which it is waited for: a commit costs the broker some milliseconds."""
JOINING = WaitPolicy(join_us=2_000)
"""Partitions join a Kafka transaction by its first rows, which wait as long for that before they are sent: what comes
meanwhile goes with them, instead of waiting for this transaction and its own."""
LATE_POSITION = WaitPolicy(position_us=50_000)
"""Where rows are seen as they are written, their position can wait: writing it costs as much as some of them."""


def wait_policy(*, is_backlog: bool, is_at_least_once: bool, is_busy: bool) -> WaitPolicy:
    """Return what the next groups wait for.

    `is_at_least_once`: rows are seen as they are written. `is_busy`: several transactions came together last time, so
    something is to be expected while partitions join.
    """
    if is_backlog:
        return BACKLOG
    if is_at_least_once:
        return LATE_POSITION
    return JOINING if is_busy else NO_WAIT
