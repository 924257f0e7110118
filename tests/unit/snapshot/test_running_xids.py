"""Which transactions may be inside their commit (F36); test_snapshot_visibility.py has real ones."""

from __future__ import annotations

import pytest

from cdcd.snapshot.running_xids import RunningTransactions


@pytest.mark.parametrize("state", ["idle in transaction", "idle in transaction (aborted)", "idle"])
def test_an_idle_session_is_not_inside_its_commit(state: str) -> None:
    assert RunningTransactions([(7, 100, state, "12:00")]).xids == frozenset()


@pytest.mark.parametrize("state", ["active", "fastpath function call", "disabled", "", None])
def test_any_other_session_may_be_inside_its_commit(state: str | None) -> None:
    assert RunningTransactions([(7, 100, state, "12:00")]).xids == {7}


@pytest.mark.parametrize(
    ("later", "is_settled"),
    [
        ((7, 100, "active", "12:00"), False),
        ((7, 100, "active", "12:01"), True),
        ((7, 100, "idle in transaction", "12:01"), True),
        ((7, 200, "active", "12:01"), False),  # not the session that was seen first
        ((7, None, None, None), False),  # prepared since
        ((8, 100, "active", "12:01"), False),  # gone: visible, or rolled back
    ],
)
def test_another_statement_in_the_same_transaction_settles_it(
    later: tuple[int, int | None, str | None, str | None], is_settled: bool
) -> None:
    running = RunningTransactions([(7, 100, "active", "12:00")])
    assert running.settled([later]) == (frozenset({7}) if is_settled else frozenset())
    assert running.xids == (frozenset() if is_settled else {7})
    assert running.settled([later]) == frozenset(), "reported once"


def test_a_prepared_transaction_is_never_settled() -> None:
    running = RunningTransactions([(7, None, None, None)])
    assert running.settled([(7, None, None, None)]) == frozenset()
    assert running.xids == {7}


def test_a_copy_says_for_which_sessions_it_waits() -> None:
    """A role that may not see states waits for idle sessions, too: it is told how to end that."""
    rows = [(7 + pid, pid, "active", "12:00") for pid in range(100, 107)]
    running = RunningTransactions([*rows, (8, None, None, None), (9, 99, "idle in transaction", "12:00")])
    assert running.reason.endswith(
        ": session 100, session 101, session 102, session 103, session 104, 2 more sessions, a prepared transaction"
    )
    hidden = RunningTransactions([(7, 100, None, None)])
    assert "session 100. The role may not see" in hidden.reason
    assert "pg_read_all_stats" in hidden.reason
    hidden.settled([])
    assert "session" not in hidden.reason, "it has ended"
