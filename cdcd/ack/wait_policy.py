"""How long the complete transactions of an open Kafka transaction wait for others to join.

In: whether the stream has a backlog, whether readers see rows before the commit, whether the last group was busy.
Out: one frozen `WaitPolicy`, which the group applies.
Must not: do I/O, read the clock.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BACKLOG", "JOINING", "LATE_POSITION", "NO_WAIT", "WaitPolicy", "wait_policy"]


@dataclass(frozen=True, slots=True)
class WaitPolicy:
    """Microseconds to wait, counted from the first record of the group. 0: no wait.

    `linger_us`: for more rows, up to `group.LINGER_MAX_ROWS`; in a backlog a commit costs as much as a thousand rows.
    `join_us`: for more complete transactions, but not for a part of a transaction, which would delay the complete
    ones until all of it is received.
    `position_us`: as `join_us`, if readers see rows before the commit; afterwards the position is committed even if
    chunks wait.
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
"""Some thousand rows at the rates of a backlog: a commit costs the broker some milliseconds."""
JOINING = WaitPolicy(join_us=2_000)
"""The first rows of a Kafka transaction add their partitions to it and are not sent before that. Transactions that
arrive in the meantime join it, instead of waiting for its commit and then for their own."""
LATE_POSITION = WaitPolicy(position_us=50_000)
"""If readers see rows before the commit, the position can wait: writing it costs as much as several rows."""


def wait_policy(*, is_backlog: bool, is_at_least_once: bool, is_busy: bool) -> WaitPolicy:
    """Return the policy of the next groups.

    `is_at_least_once`: readers see rows before the commit. `is_busy`: the last group had several transactions, so
    more are to be expected while partitions are added.
    """
    if is_backlog:
        return BACKLOG
    if is_at_least_once:
        return LATE_POSITION
    return JOINING if is_busy else NO_WAIT
