"""The back-off between retries."""

from __future__ import annotations

import pytest

from cdcd.process.backoff import CAP_S, FIRST_S, delay_s


@pytest.mark.parametrize(
    ("tries", "whole_s"), [(1, FIRST_S), (2, 0.5), (4, 2.0), (8, CAP_S), (10_000, CAP_S)]
)
def test_a_pause_is_between_half_and_the_whole_of_its_step(tries: int, whole_s: float) -> None:
    assert delay_s(tries, 0.0) == whole_s / 2
    assert delay_s(tries, 0.5) == whole_s * 0.75
    assert delay_s(tries, 1.0) == whole_s


def test_all_pauses_together_outlast_a_server_that_frees_a_slot_after_its_timeout() -> None:
    """F74: a frozen client's slot stays active for `wal_sender_timeout`; ten retries take more than a minute."""
    assert sum(delay_s(tries, 0.0) for tries in range(1, 11)) > 60
