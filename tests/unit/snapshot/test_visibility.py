"""Which transactions of the stream a snapshot sees (F36)."""

from __future__ import annotations

from random import Random

import pytest

from cdcd.errors import ProtocolError
from cdcd.snapshot.visibility import Snapshot, is_later_xid

EPOCH = 1 << 32


def test_a_snapshot_sees_what_had_ended() -> None:
    snapshot = Snapshot.parse("10:20:10,14,15")
    assert [xid for xid in range(3, 30) if not snapshot.sees(xid)] == [10, 14, 15, *range(20, 30)]


def test_a_snapshot_without_running_transactions() -> None:
    snapshot = Snapshot.parse("3:3:")
    assert not snapshot.sees(3)
    assert Snapshot.parse("4:4:").sees(3)


def test_xids_have_the_epoch_that_is_nearest_to_the_snapshot() -> None:
    """An xid of the stream has 32 bits, those of a snapshot 64."""
    snapshot = Snapshot.parse(f"{5 * EPOCH - 2}:{5 * EPOCH + 10}:{5 * EPOCH - 2},{5 * EPOCH + 4}")
    assert not snapshot.sees(EPOCH - 2)
    assert snapshot.sees(EPOCH - 1)
    assert snapshot.sees(3)
    assert not snapshot.sees(4)
    assert not snapshot.sees(10)
    assert not snapshot.sees(10 + (1 << 31) - 1)
    assert snapshot.sees(10 + (1 << 31))


@pytest.mark.parametrize("xid", [-1, 0, 1, 2, EPOCH, EPOCH + 700])
def test_a_number_that_is_no_xid_is_an_error(xid: int) -> None:
    with pytest.raises(ProtocolError):
        Snapshot.parse(f"{EPOCH + 700}:{EPOCH + 700}:").sees(xid)


def test_an_xid_from_before_the_first_is_an_error() -> None:
    with pytest.raises(ProtocolError):
        Snapshot.parse("700:700:").sees(EPOCH - 1)


@pytest.mark.parametrize(
    "text",
    [
        "", "10", "10:20", "10:20:15:", " 10:20:", "10:20:\n", "a:20:", "10:20:,", "10:20:15,", "10:20:15,,16",
        "20:10:", "2:10:", "10:20:9", "10:20:20", "10:20:16,15", "10:20:15,15", "-1:20:", "٣:٥:", f"10:{1 << 63}:",
        f"10:20:{15:021}", f"{'1' * 21}:20:", "10:20:" + "15," * 4_000_000,
    ],
)  # fmt: skip
def test_a_malformed_text_is_an_error_without_its_content(text: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        Snapshot.parse(text)
    assert "15" not in str(caught.value)


def test_as_many_transactions_as_a_server_can_run() -> None:
    listed = range(10, 10 + (1 << 19))
    text = f"10:{listed[-1] + 1}:{','.join(map(str, listed))}"
    assert not Snapshot.parse(text).sees(listed[-1])


def test_the_comparisons_of_snapshots_agree_with_the_single_xids() -> None:
    random = Random(0)

    def drawn() -> Snapshot:
        xmin = random.randrange(5, 12)
        xmax = random.randrange(xmin, 16)
        listed = [xid for xid in range(xmin, xmax) if random.random() < 0.4]
        return Snapshot(listed[0] if listed else xmax, xmax, frozenset(listed))

    outcomes = set()
    for _ in range(3000):
        one, other = drawn(), drawn()
        seen, seen_by_other = ({xid for xid in range(3, 20) if each.sees(xid)} for each in (one, other))
        assert one.includes(other) is (seen >= seen_by_other)
        first = random.randrange(3, 18)
        last = random.randrange(first, 19)
        assert one.sees_all(first, last) is (seen >= set(range(first, last + 1)))
        outcomes.add((one.includes(other), one.sees_all(first, last)))
    assert len(outcomes) == 4


def test_the_order_of_xids_is_that_of_postgresql() -> None:
    assert is_later_xid(4, EPOCH - 1)
    assert not is_later_xid(EPOCH - 1, 4)
    assert not is_later_xid(7, 7)
    assert is_later_xid(8, 7)
