"""The fold as of a snapshot, and the comparison by bucket and by row, without servers."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field

import pytest

from cdcd.snapshot.visibility import Snapshot
from cdcd.verify.fold import (
    Barriers,
    BucketSum,
    Difference,
    Fold,
    FoldedRow,
    add_row,
    bucket_of,
    compare_rows,
    is_equal,
    question_of,
)
from cdcd.verify.hashes import MISSING, UNCHANGED, key_id
from cdcd.verify.records import COPIED, DELETED, POSITION, ROW, UNKNOWN, UPDATED, Found, Place
from cdcd.verify.visible import View

PLACE = struct.Struct(">BIBIQ")
EVERYTHING = View(Snapshot(1000, 1000, frozenset()), 1 << 40)
NO_BARRIERS = Barriers(b"", b"", frozenset())
KEY = key_id(b"1")


def entry(
    key: bytes, lsn: int, kind: int, *hashes: int, xid: int = 0, tx_seq: int = 1, timeline: int = 1
) -> bytes:
    position = POSITION.pack(timeline, lsn, 0 if kind == COPIED else 1, tx_seq)
    return key + position + PLACE.pack(kind, xid, 0, 2, lsn) + struct.pack(f">{len(hashes)}Q", *hashes)


def position(lsn: int, tx_seq: int = 1) -> bytes:
    return POSITION.pack(1, lsn, 1, tx_seq)


def rows(*entries: bytes, view: View = EVERYTHING, barriers: Barriers = NO_BARRIERS) -> list[FoldedRow]:
    return list(Fold(barriers, view).rows(sorted(entries)))


def test_the_last_change_of_a_key_is_its_row() -> None:
    assert rows(entry(KEY, 20, ROW, 7), entry(KEY, 10, COPIED, 15)) == [FoldedRow(KEY, (7,), Place(0, 2, 20))]


def test_a_later_timeline_is_later_at_a_lower_lsn() -> None:
    (row,) = rows(entry(KEY, 20, ROW, 7), entry(KEY, 10, ROW, 15, timeline=2))
    assert row.hashes == (15,)


def test_a_deleted_row_has_no_hashes_and_the_place_of_its_delete() -> None:
    assert rows(entry(KEY, 10, ROW, 15), entry(KEY, 20, DELETED, MISSING)) == [
        FoldedRow(KEY, (), Place(0, 2, 20))
    ]


def test_an_unchanged_value_is_that_of_the_change_before() -> None:
    (row,) = rows(entry(KEY, 10, ROW, 15, 6), entry(KEY, 20, ROW, UNCHANGED, 8))
    assert row.hashes == (15, 8)


def test_an_unchanged_value_without_a_change_before_is_not_compared() -> None:
    (row,) = rows(entry(KEY, 20, ROW, UNCHANGED, 8))
    assert row.hashes == (MISSING, 8)


def test_an_update_that_lacks_the_record_before_it_is_unknown_until_a_whole_row() -> None:
    fold = Fold(NO_BARRIERS, EVERYTHING)
    first, second = entry(KEY, 20, UPDATED, UNCHANGED, 8), entry(KEY, 30, UPDATED, UNCHANGED, 9)
    assert [row.hashes for row in fold.rows([first, second])] == [None]
    assert [row.hashes for row in fold.rows([entry(KEY, 10, DELETED, MISSING, MISSING), first])] == [None]
    assert fold.incomplete == 2
    assert [row.hashes for row in fold.rows([first, entry(KEY, 40, UPDATED, 7, 9)])] == [(7, 9)]
    assert [row.hashes for row in fold.rows([entry(KEY, 15, COPIED, 6, 7), first])] == [(6, 8)]
    too_large = entry(KEY, 10, UNKNOWN, MISSING, MISSING)
    assert [row.hashes for row in fold.rows([too_large, first])] == [(MISSING, 8)]
    assert fold.incomplete == 2


def taken(
    *records: tuple[int, int, int], truncates: dict[bytes, set[tuple[int, int]]] | None = None
) -> Found:
    """Return what is found in records of the stream: topic, partition, LSN."""
    found = Found(truncates={at: (90, places) for at, places in (truncates or {}).items()})
    for topic, partition, lsn in records:
        found.take(Place(topic, partition, 0), position(lsn), is_ordered=True)
    return found


@pytest.mark.parametrize(
    ("places", "is_torn"),
    [
        ({(1, 0)}, True),  # partition 1 has a record from before
        ({(1, 0), (1, 1)}, False),  # partition 2 arose later, and topic 0 had ended
    ],
)
def test_a_truncate_is_in_all_partitions_that_its_topic_had(
    places: set[tuple[int, int]], is_torn: bool
) -> None:
    found = taken((0, 0, 5), (1, 0, 10), (1, 1, 11), (1, 2, 30), truncates={position(20): places})
    assert ("TRUNCATE" in question_of(found, Barriers.of(found, EVERYTHING))) is is_torn


@pytest.mark.parametrize(
    ("records", "is_unclear"),
    [
        (((0, 0, 10), (0, 1, 5), (0, 0, 20)), False),
        (((0, 0, 10), (0, 0, 10)), True),
        (((0, 0, 20), (0, 0, 10), (0, 0, 30)), True),
    ],
    ids=["another partition may be behind", "twice", "an older one later"],
)
def test_the_positions_in_a_partition_increase(
    records: tuple[tuple[int, int, int], ...], is_unclear: bool
) -> None:
    found = taken(*records)
    assert bool(question_of(found, NO_BARRIERS)) is is_unclear
    assert not question_of(
        taken(*records, truncates={position(50): {(0, 0), (0, 1)}}), Barriers(position(50), b"", frozenset())
    )


def test_copied_rows_have_no_order_and_a_stored_state_keeps_what_was_found() -> None:
    found = taken((0, 0, 10), (0, 0, 9))
    found.take(Place(0, 0, 0), position(3), is_ordered=False)
    again = Found()
    again.take_stored(found.as_stored())
    assert (again.firsts, again.lasts, again.disordered) == (
        {(0, 0): position(3)},
        {(0, 0): position(10)},
        position(9),
    )


def test_a_row_without_a_record_is_no_difference_if_the_table_was_not_copied() -> None:
    theirs = {key(1): (10, 20), key(2): (10, 20)}
    found = list(compare_rows([folded(1)], theirs, is_copied=False))
    assert [one.kind for one in found] == ["missing", "uncopied"]


def test_what_the_snapshot_does_not_see_does_not_count() -> None:
    view = View(Snapshot(100, 110, frozenset({105})), 1000)
    seen = [entry(KEY, 10, ROW, 11, xid=90), entry(KEY, 20, ROW, 12, xid=104)]
    unseen = [entry(KEY, 30, ROW, 13, xid=105), entry(KEY, 40, ROW, 14, xid=110)]
    after = [entry(KEY, 1000, ROW, 15, xid=91)]
    (row,) = rows(*seen, *unseen, *after, view=view)
    assert row.hashes == (12,)


def test_an_xid_of_long_ago_is_not_mistaken_for_one_of_now() -> None:
    view = View(Snapshot(1 << 32 | 100, 1 << 32 | 110, frozenset({1 << 32 | 105})), 1 << 40)
    (row,) = rows(entry(KEY, 10, ROW, 11, xid=105), view=view)
    assert row.hashes == (11,)


def test_a_truncate_empties_and_one_that_is_not_visible_does_not() -> None:
    view = View(Snapshot(100, 100, frozenset()), 1000)
    found = Found(truncates={position(20): (90, {(0, 0)}), position(40): (100, {(0, 0)})})
    barriers = Barriers.of(found, view)
    assert barriers == Barriers(position(20), position(40), frozenset({(0, 0)}))
    (row,) = rows(
        entry(KEY, 10, ROW, 11, xid=80),
        entry(key_id(b"2"), 30, ROW, 12, xid=95),
        view=view,
        barriers=barriers,
    )
    assert row.hashes == (12,)


def test_a_copied_row_that_was_read_after_an_invisible_change_does_not_count() -> None:
    view = View(Snapshot(100, 101, frozenset({100})), 1000)
    (row,) = rows(
        entry(KEY, 10, ROW, 11, xid=90),
        entry(KEY, 20, ROW, 12, xid=100),
        entry(KEY, 30, COPIED, 12),
        view=view,
    )
    assert row.hashes == (11,)


def test_a_row_whose_first_change_is_invisible_and_that_was_copied_is_not_known() -> None:
    view = View(Snapshot(100, 101, frozenset({100})), 1000)
    (row,) = rows(entry(KEY, 20, ROW, 12, xid=100), entry(KEY, 30, COPIED, 12), view=view)
    assert row.hashes is None


def test_copied_rows_after_the_snapshot_are_counted() -> None:
    fold = Fold(NO_BARRIERS, View(Snapshot(100, 100, frozenset()), 1000))
    assert list(fold.rows([entry(KEY, 2000, COPIED, 11)])) == []
    assert fold.skipped_copies == 1


def test_a_row_that_was_too_large_is_unknown_until_its_next_change() -> None:
    assert rows(entry(KEY, 10, ROW, 11), entry(KEY, 20, UNKNOWN, MISSING))[0].hashes is None
    assert rows(entry(KEY, 20, UNKNOWN, MISSING), entry(KEY, 30, ROW, 11))[0].hashes == (11,)


def test_an_entry_that_was_read_twice_counts_once() -> None:
    one = entry(KEY, 10, ROW, 15)
    assert rows(one, one) == rows(one)


# --- simulated commits


@dataclass
class World:
    """A server whose transactions become visible in another order than that of their commit records."""

    draw: random.Random
    entries: list[bytes] = field(default_factory=list)
    changes: dict[int, list[tuple[bytes, int | None]]] = field(default_factory=dict)

    def run(self) -> tuple[View, dict[bytes, int]]:
        """Return the view of a random snapshot, and the rows that it sees."""
        visible: list[int] = []
        hidden: list[int] = []  # committed in the WAL, not yet visible
        locked: dict[bytes, int] = {}
        lsn, snapshot_at = 100, self.draw.randrange(5, 40)
        for xid in range(100, 150):
            keys = [one for one in map(key, range(6)) if one not in locked and self.draw.random() < 0.4]
            lsn += 10
            self.changes[xid] = []
            for number, one in enumerate(keys, 1):
                value = None if self.draw.random() < 0.3 else self.draw.randrange(3, 1 << 40)
                kind = DELETED if value is None else ROW
                self.entries.append(entry(one, lsn, kind, value or MISSING, xid=xid, tx_seq=number))
                self.changes[xid].append((one, value))
                locked[one] = xid
            hidden.append(xid)
            while hidden and self.draw.random() < 0.6:
                done = hidden.pop(self.draw.randrange(len(hidden)))
                visible.append(done)
                locked = {one: by for one, by in locked.items() if by != done}
            if xid - 100 == snapshot_at:
                running = frozenset(hidden)
                view = View(Snapshot(min(running, default=xid + 1), xid + 1, running), lsn + 5)
                return view, self._rows(visible)
        raise AssertionError("the snapshot is within the run")

    def _rows(self, visible: list[int]) -> dict[bytes, int]:
        state: dict[bytes, int] = {}
        for xid in visible:
            for one, value in self.changes[xid]:
                if value is None:
                    state.pop(one, None)
                else:
                    state[one] = value
        return state


def key(number: int) -> bytes:
    return key_id(b"%d" % number)


def test_the_fold_is_what_a_snapshot_sees_in_any_order_of_commits() -> None:
    differs_from_the_prefix = 0
    for seed in range(300):
        world = World(random.Random(seed))
        view, expected = world.run()
        found = {row.key: row.hashes[0] for row in rows(*world.entries, view=view) if row.hashes}
        assert found == expected, seed
        prefix = View(Snapshot(1 << 20, 1 << 20, frozenset()), view.marker_lsn)
        by_lsn = {row.key: row.hashes[0] for row in rows(*world.entries, view=prefix) if row.hashes}
        differs_from_the_prefix += by_lsn != expected
    assert differs_from_the_prefix > 50  # by the LSN alone it would be wrong


# --- comparing


def buckets(*found: FoldedRow, width: int = 2) -> dict[int, BucketSum]:
    made: dict[int, BucketSum] = {}
    for row in found:
        add_row(made, row, width)
    return made


def folded(number: int, *hashes: int) -> FoldedRow:
    return FoldedRow(key(number), hashes, Place(0, 0, number))


def test_equal_sums_are_equal_and_any_other_hash_is_not() -> None:
    bucket = bucket_of(key(1))
    ours = buckets(folded(1, 10, 20))
    assert is_equal(ours[bucket], BucketSum(1, [10 - (1 << 64), 20]))
    assert not is_equal(ours[bucket], BucketSum(1, [10, 21]))
    assert not is_equal(ours[bucket], BucketSum(2, [10, 20]))
    assert not is_equal(ours[bucket], None)
    assert not is_equal(None, BucketSum(1, [10, 20]))
    assert is_equal(None, None)


def test_a_column_that_no_row_has_says_nothing_and_one_that_some_have_is_narrowed() -> None:
    bucket = bucket_of(key(1))
    assert is_equal(buckets(folded(1, 10, MISSING))[bucket], BucketSum(1, [10, 99]))
    assert not is_equal(
        buckets(folded(1, MISSING, MISSING))[bucket], BucketSum(1, [10, 99])
    )  # the keys decide
    some = buckets(folded(1, 10, MISSING), FoldedRow(key(1), (10, 5), Place(0, 0, 1)))
    assert not is_equal(some[bucket], BucketSum(2, [20, 5 + 99]))


def test_a_deleted_row_is_none_and_an_unknown_one_is_narrowed() -> None:
    assert buckets(FoldedRow(key(1), (), Place(0, 0, 1))) == {}
    unknown = buckets(FoldedRow(key(1), None, Place(0, 0, 1)))
    assert not is_equal(unknown[bucket_of(key(1))], BucketSum(1, [1, 2]))


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([folded(1, 10, 20)], {key(1): (10, 20)}, []),
        ([folded(1, 10, 20)], {key(1): (10, 21)}, [Difference("different", key(1), (1,), Place(0, 0, 1))]),
        ([folded(1, 10, MISSING)], {key(1): (10, 21)}, []),
        ([folded(1, 10, 20)], {}, [Difference("extra", key(1), (), Place(0, 0, 1))]),
        ([], {key(1): (10, 21)}, [Difference("missing", key(1))]),
        ([folded(1)], {key(1): (10, 21)}, [Difference("missing", key(1), (), Place(0, 0, 1))]),
        ([folded(1)], {}, []),
        ([FoldedRow(key(1), None, Place(0, 0, 1))], {key(1): (10, 21)}, []),
        ([FoldedRow(key(1), None, Place(0, 0, 1))], {}, []),
    ],
)
def test_rows(
    ours: list[FoldedRow], theirs: dict[bytes, tuple[int, ...]], expected: list[Difference]
) -> None:
    assert list(compare_rows(ours, theirs)) == expected
