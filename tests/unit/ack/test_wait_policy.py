"""The wait policy of the next groups follows from the stream's rate, the delivery and the last group."""

from __future__ import annotations

import dataclasses

import pytest

from cdcd.ack.wait_policy import BACKLOG, JOINING, LATE_POSITION, NO_WAIT, WaitPolicy, wait_policy


@pytest.mark.parametrize(
    ("is_backlog", "is_at_least_once", "is_busy", "expected"),
    [
        (True, False, False, BACKLOG),
        (True, False, True, BACKLOG),
        (True, True, False, BACKLOG),
        (True, True, True, BACKLOG),
        (False, True, False, LATE_POSITION),
        (False, True, True, LATE_POSITION),
        (False, False, True, JOINING),
        (False, False, False, NO_WAIT),
    ],
)
def test_what_the_next_groups_wait_for(
    is_backlog: bool, is_at_least_once: bool, is_busy: bool, expected: WaitPolicy
) -> None:
    found = wait_policy(is_backlog=is_backlog, is_at_least_once=is_at_least_once, is_busy=is_busy)
    assert found is expected


@pytest.mark.parametrize("policy", [NO_WAIT, BACKLOG, JOINING, LATE_POSITION])
def test_a_policy_waits_for_one_thing_and_is_frozen(policy: WaitPolicy) -> None:
    assert sum(value > 0 for value in dataclasses.astuple(policy)) <= 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.linger_us = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("policy", "is_brief"), [(NO_WAIT, False), (BACKLOG, False), (JOINING, True), (LATE_POSITION, True)]
)
def test_only_a_backlog_lets_a_part_of_a_transaction_join(policy: WaitPolicy, is_brief: bool) -> None:
    assert policy.is_brief is is_brief
