"""The markers of a snapshot's rows, in the order in which the rows leave."""

from __future__ import annotations

import random

from cdcd.frame_layout import HEADER
from cdcd.model import RowBatch, SnapshotMarker
from cdcd.snapshot.markers import Marked, MarkedRows, RowMarkers, TableComplete


def frame(number: int) -> bytes:
    payload = b"I%d" % number
    return HEADER.pack(len(payload), 1) + payload


def frames_in(batch: RowBatch) -> list[bytes]:
    rest, found = batch.frames, []
    while rest:
        end = HEADER.size + HEADER.unpack_from(rest)[0]
        found.append(rest[:end])
        rest = rest[end:]
    assert len(found) == batch.count
    return found


def added(markers: RowMarkers, relid: int, numbers: list[int]) -> list[Marked]:
    frames = [frame(number) for number in numbers]
    joined = b"".join(frames)
    return markers.add(relid, RowBatch(joined, len(frames)), len(joined) - len(frames[-1]))


def shown(marked: list[Marked]) -> list[tuple[int, str, list[bytes]] | int]:
    return [
        (one.relid, str(one.marker), frames_in(one.batch)) if isinstance(one, MarkedRows) else one.relid
        for one in marked
    ]


def test_two_tables_one_after_the_other() -> None:
    markers = RowMarkers()
    assert shown(added(markers, 1, [1, 2, 3, 4])) == [
        (1, "first", [frame(1)]),
        (1, "true", [frame(2), frame(3)]),
    ]
    assert markers.end(1) == []
    assert shown(added(markers, 2, [5, 6])) == [
        (1, "last_in_data_collection", [frame(4)]),
        1,
        (2, "first_in_data_collection", [frame(5)]),
    ]
    assert markers.end(2) == []
    assert shown(markers.finish()) == [(2, "last", [frame(6)]), 2]


def test_the_only_row_of_a_table() -> None:
    markers = RowMarkers()
    for relid in (1, 2, 3):
        marked = [*added(markers, relid, [relid]), *markers.end(relid)]
        if relid > 1:
            name = "first" if relid == 2 else "last_in_data_collection"
            assert shown(marked) == [(relid - 1, name, [frame(relid - 1)]), relid - 1]
    assert shown(markers.finish()) == [(3, "last", [frame(3)]), 3]


def test_the_only_row_of_all_is_the_last_one() -> None:
    markers = RowMarkers()
    assert markers.end(1) == [TableComplete(1)]
    assert added(markers, 2, [1]) == []
    assert markers.end(2) == []
    assert markers.end(3) == [TableComplete(3)]
    assert shown(markers.finish()) == [(2, "last", [frame(1)]), 2]
    assert markers.finish() == []


def test_any_interleaving_keeps_each_row_once_in_order_with_one_marker_of_each_kind() -> None:
    for seed in range(300):
        chance = random.Random(seed)
        left = {relid: list(range(chance.randrange(6))) for relid in range(1, chance.randrange(2, 6))}
        rows = {relid: list(numbers) for relid, numbers in left.items()}
        markers, out = RowMarkers(), list[Marked]()
        while left:
            relid = chance.choice(list(left))
            if not left[relid]:
                del left[relid]
                out += markers.end(relid)
                continue
            count = chance.randint(1, len(left[relid]))
            out += added(markers, relid, left[relid][:count])
            del left[relid][:count]
        out += markers.finish()
        flat = [
            (one.relid, one.marker, one_frame)
            for one in out
            if isinstance(one, MarkedRows)
            for one_frame in frames_in(one.batch)
        ]
        assert sorted(one.relid for one in out if isinstance(one, TableComplete)) == sorted(rows)
        for relid, numbers in rows.items():
            assert [found for of, _, found in flat if of == relid] == [frame(number) for number in numbers]
            complete = next(at for at, one in enumerate(out) if one == TableComplete(relid))
            assert all(one.relid != relid for one in out[complete + 1 :])
        assert [marker for _, marker, _ in flat] == _expected([relid for relid, _, _ in flat])


def _expected(relids: list[int]) -> list[SnapshotMarker]:
    """Return the markers of rows of these tables."""
    found = []
    for at, relid in enumerate(relids):
        marker = SnapshotMarker.INNER
        if relid not in relids[:at]:
            marker = SnapshotMarker.FIRST_OF_TABLE
        if relid not in relids[at + 1 :]:
            marker = SnapshotMarker.LAST_OF_TABLE
        if at == 0:
            marker = SnapshotMarker.FIRST
        if at == len(relids) - 1:
            marker = SnapshotMarker.LAST
        found.append(marker)
    return found
