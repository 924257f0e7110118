"""The times between a reader's sight of an LSN and the answer to those who waited for it."""

from __future__ import annotations

import pytest

from cdcd.errors import StackError
from tests.bench.waiters import Wait, Waited, beyond_durable_ms

SEEN = Waited(durable_lsns=[100, 200, 300], durable_at_s=[1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("wait", "late_ms"),
    [
        pytest.param(Wait(200, 0.0, 2.5), 500.0, id="durable with this record"),
        pytest.param(Wait(101, 0.0, 2.5), 500.0, id="durable with the next record"),
        pytest.param(Wait(100, 1.5, 1.75), 250.0, id="asked after it was durable"),
        pytest.param(Wait(300, 0.0, 2.875), -125.0, id="answered before the reader had it"),
    ],
)
def test_the_time_is_from_the_later_of_reader_and_request(wait: Wait, late_ms: float) -> None:
    assert beyond_durable_ms([wait], SEEN) == [late_ms]


def test_an_answer_that_no_reader_confirms_is_an_error() -> None:
    with pytest.raises(StackError, match="no reader saw"):
        beyond_durable_ms([Wait(301, 0.0, 9.0)], SEEN)
