"""The 64-bit transaction id for a 32-bit xid."""

from __future__ import annotations

import pytest

from cdcd.source.subtransactions import with_epoch

EPOCH = 1 << 32


@pytest.mark.parametrize(
    ("xid", "ended", "expected"),
    [
        (990, 1000, 990),
        (1001, 1000, 1001),
        (990, EPOCH + 1000, EPOCH + 990),
        (1001, EPOCH + 1000, EPOCH + 1001),
        (EPOCH - 5, 3 * EPOCH + 1000, 3 * EPOCH - 5),
        (5, 3 * EPOCH - 1000, 3 * EPOCH + 5),
        (EPOCH - 5, 1000, 0),
    ],
)
def test_an_xid_is_the_nearest_of_its_32_bits(xid: int, ended: int, expected: int) -> None:
    assert with_epoch(xid, ended) == expected
