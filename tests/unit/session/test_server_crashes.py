"""How many crashes of the server at one position are retried, and what does not count as a crash."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdcd.errors import KeyChanged, ServerCrashed, SourceUnavailable
from cdcd.lsn import Lsn
from cdcd.session.server_crashes import ServerCrashes
from cdcd.source.identity import ServerIdentity

SERVER = ServerIdentity(
    "7", 1, "shop", 180_000, Lsn(1_500), in_recovery=False, clock_us=50, statistics_since_us=10
)
LOST = SourceUnavailable("the server closed the connection")


def crash(crashes: ServerCrashes, number: int, durable_lsn: int = 100, *, has_advanced: bool = False) -> None:
    """End a session by a lost connection."""
    crashes.ended(LOST, number * 100, Lsn(durable_lsn), has_advanced=has_advanced)


def after(number: int) -> ServerIdentity:
    """Return the server's identity after that crash, with new statistics."""
    return replace(SERVER, statistics_since_us=number * 100 + 50)


def test_the_third_crash_at_one_place_is_believed_and_the_second_costs_the_options() -> None:
    crashes = ServerCrashes()
    assert crashes.options_to_leave_out(SERVER) == ()
    crash(crashes, 1, has_advanced=True)
    assert crashes.options_to_leave_out(after(1)) == ()
    crash(crashes, 2)
    assert crashes.options_to_leave_out(after(2)) == ("streaming", "binary")
    crash(crashes, 3)
    with pytest.raises(ServerCrashed, match="3 times"):
        crashes.options_to_leave_out(after(3))


def test_a_session_that_did_not_reach_the_stream_counts_as_none() -> None:
    """A session that queries the server and fails, and the next one that queries it again, see one crash."""
    crashes = ServerCrashes()
    for number in (1, 2):
        crash(crashes, number)
        for _ in range(3):
            left_out = crashes.options_to_leave_out(after(number))
    assert left_out == ("streaming", "binary")


@pytest.mark.parametrize("how", ["advanced", "farther", "another error", "no crash", "unknown", "forgotten"])
def test_progress_in_between_resets_the_count(how: str) -> None:
    crashes = ServerCrashes()
    for number in (1, 2):
        crash(crashes, number)
        crashes.options_to_leave_out(after(number))
    between = after(3)
    if how == "another error":
        crashes.ended(KeyChanged("another key"), 300, Lsn(100), has_advanced=False)
    elif how == "forgotten":
        crashes.forget()
    else:
        crash(crashes, 3, 101 if how == "farther" else 100, has_advanced=how == "advanced")
    if how == "no crash":
        between = after(2)  # the connection broke for another reason
    elif how == "unknown":
        between = replace(SERVER, statistics_since_us=None)
    assert crashes.options_to_leave_out(between) == ()
