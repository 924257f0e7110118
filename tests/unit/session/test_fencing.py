"""Who has ended the producer: the table of cases. The real thing is in tests/faults/test_fault_25_two_daemons.py."""

from __future__ import annotations

import pytest

from cdcd.errors import CdcdError, SinkFenced, TransactionExpired
from cdcd.session.fencing import Evidence, fenced_by


@pytest.mark.parametrize(
    ("age_s", "is_held", "has_written", "cls"),
    [
        # Younger than its timeout: the coordinator has not given it up, so somebody took the id over.
        (0.0, None, None, SinkFenced),
        (800.0, False, False, SinkFenced),
        # Old enough: whoever is there tells.
        (900.0, True, False, SinkFenced),
        (900.0, False, True, SinkFenced),
        (900.0, True, True, SinkFenced),
        (900.0, None, True, SinkFenced),
        (5000.0, False, False, TransactionExpired),
        # Not to be found out: the next session looks at the slot before it fences anyone.
        (900.0, None, None, TransactionExpired),
        (900.0, False, None, TransactionExpired),
    ],
)
def test_who_it_was(
    age_s: float, is_held: bool | None, has_written: bool | None, cls: type[CdcdError]
) -> None:
    """F69."""
    assert fenced_by(Evidence(age_s, 900.0, is_held, has_written)) is cls
