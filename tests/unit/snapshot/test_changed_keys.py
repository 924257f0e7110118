"""The changes that make rows of a chunk outdated; tests/property/test_incremental_snapshot.py has their orders."""

from __future__ import annotations

from random import Random

from cdcd.model import Record
from cdcd.snapshot.changed_keys import ChangedKeys
from cdcd.snapshot.visibility import Snapshot

EARLY = Snapshot.parse("10:10:")
MIDDLE = Snapshot.parse("10:20:10,12")
LATE = Snapshot.parse("30:30:")


def tracker(max_bytes: int = 1 << 20) -> ChangedKeys:
    changed = ChangedKeys(max_bytes)
    changed.refuse_until_visible(())
    return changed


def rows(*keys: bytes) -> list[Record]:
    return [Record("topic", 0, key, b"row of " + key) for key in keys]


def emitted(changed: ChangedKeys, snapshot: Snapshot, *keys: bytes) -> list[bytes | None] | None:
    found = changed.filter(snapshot, rows(*keys))
    return None if found is None else [record.key for record in found.records]


def test_rows_that_an_invisible_transaction_has_changed_are_dropped() -> None:
    changed = tracker()
    changed.note(11, [b"seen"])
    changed.note(12, [b"old", b"new"])
    assert emitted(changed, MIDDLE, b"a", b"seen", b"old", b"new") == [b"a", b"seen"]
    assert emitted(changed, LATE, b"seen", b"old") == [b"seen", b"old"]


def test_a_truncate_that_the_chunk_does_not_see_makes_all_of_its_rows_outdated() -> None:
    changed = tracker()
    changed.note_truncate(12)
    assert emitted(changed, MIDDLE, b"a", b"b") == []
    assert emitted(changed, LATE, b"a") == [b"a"]


def test_dropped_rows_whose_change_lacks_values_are_read_again() -> None:
    """F46: readers have the change, and not the unchanged large values."""
    changed = tracker()
    changed.note(12, [b"a", b"b", b"c"], {b"a": ("1", "x"), b"c": ("3", "z")})
    found = changed.filter(MIDDLE, rows(b"a", b"b"))
    assert found is not None
    assert found.read_again == {b"a": ("1", "x")}


def test_a_requested_row_that_is_not_visible_yet_is_still_to_be_read() -> None:
    changed = tracker()
    changed.note(12, [b"old", b"new"], {b"new": ("2",)})
    found = changed.filter(MIDDLE, [], requested=[b"new", b"other"])
    assert found is not None
    assert found.read_again == {b"new": ("2",)}
    found = changed.filter(LATE, [], requested=[b"new"])
    assert found is not None
    assert found.read_again == {}


def test_no_chunk_is_used_before_the_running_transactions_are_known() -> None:
    assert not ChangedKeys(1 << 20).may_use(LATE)


def test_transactions_from_before_the_tracking_have_to_be_visible() -> None:
    """F36: such a transaction may have been streamed before, and be invisible; its xid may be above xmax."""
    changed = ChangedKeys(1 << 20)
    changed.refuse_until_visible([12, 20])
    assert not changed.may_use(MIDDLE)
    assert changed.may_use(LATE)
    changed.settle([20])
    assert not changed.may_use(MIDDLE)
    changed.committed(12)
    assert changed.may_use(MIDDLE)


def test_what_a_snapshot_sees_is_forgotten_and_older_snapshots_are_refused() -> None:
    changed = tracker()
    changed.note(11, [b"a"])
    changed.note(12, [b"b"], {b"b": ("2",)})
    changed.forget(MIDDLE)
    assert emitted(changed, MIDDLE, b"a", b"b") == [b"a"]
    assert emitted(changed, EARLY, b"c") is None
    changed.forget(LATE)
    assert changed.size_bytes == 0


def test_at_the_limit_chunks_are_refused_until_the_dropped_changes_are_visible() -> None:
    changed = tracker(max_bytes=2000)
    for xid in range(10, 16):
        changed.note(xid, [b"key %d" % xid])
    assert changed.size_bytes <= 2000
    assert emitted(changed, MIDDLE, b"a") is None
    assert emitted(changed, Snapshot.parse("14:20:14"), b"a") is not None, "the last ones are tracked"
    changed.note(16, [b"z" * 5000])
    assert changed.size_bytes == 0
    assert emitted(changed, Snapshot.parse("16:20:16"), b"a") is None
    assert emitted(changed, Snapshot.parse("20:30:20"), b"a") == [b"a"]
    changed.forget(LATE)
    assert changed.may_use(LATE)


def test_a_transaction_that_is_not_tracked_has_to_be_visible() -> None:
    changed = tracker()
    for xid in (4, (1 << 32) - 5, 7):
        changed.note_untracked(xid)
    ahead = 1 << 32
    assert not changed.may_use(Snapshot.parse(f"{ahead + 7}:{ahead + 9}:{ahead + 7}"))
    assert not changed.may_use(Snapshot.parse(f"{ahead - 5}:{ahead + 9}:{ahead - 5}"))
    assert changed.may_use(Snapshot.parse(f"{ahead - 6}:{ahead + 9}:{ahead - 6},{ahead + 8}"))


def test_the_estimate_of_the_memory_is_that_of_the_tracked_changes() -> None:
    """No change is counted twice, or still counted after it was forgotten."""
    random, changed = Random(1), tracker()
    for _ in range(500):
        keys = [b"%d" % random.randrange(20) for _ in range(3)]
        changed.note(random.randrange(10, 20), keys, {keys[0]: (keys[0].decode(), "grüße")})
    assert changed.size_bytes < 10 * (500 + 20 * (130 + 250 + 30))
    changed.forget(MIDDLE)
    assert changed.size_bytes > 0
    changed.forget(LATE)
    assert changed.size_bytes == 0
