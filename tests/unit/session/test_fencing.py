"""The cause of a fenced producer: a table of cases. tests/faults/test_fault_25_two_daemons.py uses real servers."""

from __future__ import annotations

import pytest

from cdcd.errors import CdcdError, SinkFenced, TransactionExpired
from cdcd.session.fencing import Evidence, fenced_by


@pytest.mark.parametrize(
    ("age_s", "is_held", "has_written", "cls"),
    [
        # Younger than its timeout: the coordinator did not abort it, so another producer took the id over.
        (0.0, None, None, SinkFenced),
        (800.0, False, False, SinkFenced),
        # Older: another daemon that holds the slot or has written decides.
        (900.0, True, False, SinkFenced),
        (900.0, False, True, SinkFenced),
        (900.0, True, True, SinkFenced),
        (900.0, None, True, SinkFenced),
        (5000.0, False, False, TransactionExpired),
        # Unknown: the next session checks the slot before it fences anyone.
        (900.0, None, None, TransactionExpired),
        (900.0, False, None, TransactionExpired),
    ],
)
def test_the_error_of_a_fenced_producer(
    age_s: float, is_held: bool | None, has_written: bool | None, cls: type[CdcdError]
) -> None:
    """F69."""
    assert fenced_by(Evidence(age_s, 900.0, is_held, has_written)) is cls
