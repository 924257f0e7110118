"""Both sides of one table are compared, and the rows that differ are found: without servers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.snapshot.visibility import Snapshot
from cdcd.verify.fold import BucketSum, bucket_of
from cdcd.verify.hashes import column_constant, hash64, key_id
from cdcd.verify.outcome import DIFFERS, EQUAL, UNKNOWN, CannotTell, TableOutcome
from cdcd.verify.records import _PLACE as PLACE
from cdcd.verify.records import ALL_KEYS, POSITION, ROW, Found
from cdcd.verify.source_sql import Part
from cdcd.verify.spill import SpillFolder
from cdcd.verify.verification import Options, Verification
from cdcd.verify.visible import View
from tests.unit.verify.test_verify_verification import Server, opened_table

VIEW = View(Snapshot.parse("100:100:"), 1000)


def row_of(key: str, value: str = "") -> tuple[bytes, int]:
    """Return the hashes of a row: those of its key, and that of its only column."""
    hashed = key_id(key.encode())
    first = int.from_bytes(hashed[:8], "big")
    return hashed, hash64((value or key).encode(), first ^ column_constant(1))


class Rows(Server):
    """A source with these rows."""

    def __init__(self, rows: Sequence[tuple[bytes, int]]) -> None:
        super().__init__()
        self.held = [
            (bucket_of(key), struct.unpack(">qqq", key + struct.pack(">Q", value))) for key, value in rows
        ]

    def rows(self, opened: Any, part: Part, buckets: Any, *, with_key: bool) -> list[list[tuple[Any, ...]]]:
        return [[row for bucket, row in self.held if bucket in buckets]]


Judge = Callable[..., TableOutcome]


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """Return what compares the source's rows with those of a topic. `unread`: topics that arose meanwhile."""

    def judge(
        theirs: Sequence[tuple[bytes, int]], ours: Sequence[tuple[bytes, int]], unread: Sequence[str] = ()
    ) -> TableOutcome:
        entries = b"".join(
            key + POSITION.pack(1, 500, 1, n) + PLACE.pack(ROW, 50, 0, 0, n) + struct.pack(">Q", value)
            for n, (key, value) in enumerate(ours)
        )
        files = SpillFolder(tmp_path, "topics", len(entries) // len(ours), 0)
        files.remove()
        files.append(entries)
        files.flush()
        log: Any = SimpleNamespace(
            files=files,
            found=Found(copied=POSITION.pack(1, 1, 0, 0)),
            topics=["t"],
            unread=lambda: list(unread),
        )
        log.topic_of = lambda place: ("t", place.partition, place.offset)
        opened = opened_table()
        opened.view, opened.parts = VIEW, (Part("a", None),)
        opened.compared = SimpleNamespace(columns=(SimpleNamespace(name="c"),), title="public.t", relid=7)
        sums: dict[int, BucketSum] = {}
        for key, value in theirs:
            one = sums.setdefault(bucket_of(key), BucketSum(0, [0]))
            one.rows, one.sums = one.rows + 1, [one.sums[0] + value]
        source: Any = Rows(theirs)
        compares = Verification(source, None, None, Options(tmp_path, ALL_KEYS), lambda *_: None)  # type: ignore[arg-type]
        monkeypatch.setattr(compares, "_refuse", lambda *_: None)
        return compares._judged(opened, log, sums, tmp_path, "")

    return judge


def test_equal_rows_are_equal(judged: Judge) -> None:
    rows = [row_of("a"), row_of("b")]
    outcome = judged(rows, rows)
    assert (outcome.state, outcome.rows_in_source, outcome.rows_in_topics) == (EQUAL, 2, 2)


@pytest.mark.parametrize("second", [row_of("a"), row_of("a", "other")], ids=["equal", "other value"])
def test_a_key_that_the_source_has_twice_is_not_equal(judged: Judge, second: tuple[bytes, int]) -> None:
    """A damaged index, such as after a change of the collation, lets PostgreSQL store a key again."""
    outcome = judged([row_of("a"), second, row_of("b")], [row_of("a"), row_of("b")])
    assert (outcome.state, outcome.different) == (UNKNOWN, 0)
    assert "1 keys in several rows" in outcome.reason
    assert "REINDEX" in outcome.reason


def test_other_rows_that_differ_are_named_where_a_key_is_there_twice(judged: Judge) -> None:
    outcome = judged([row_of("a"), row_of("a"), row_of("b")], [row_of("a"), row_of("b", "old")])
    assert (outcome.state, outcome.different, outcome.missing) == (DIFFERS, 1, 0)
    assert "REINDEX" in outcome.reason
    outcome = judged([row_of("a"), row_of("a"), row_of("b")], [row_of("b")])
    assert (outcome.state, outcome.different, outcome.missing) == (DIFFERS, 0, 1)


def test_rows_that_a_topic_may_have_that_was_not_read_are_no_difference(judged: Judge) -> None:
    """A broker may list a new topic late."""
    sides = [row_of("a"), row_of("b")], [row_of("a")]
    assert judged(*sides).state == DIFFERS
    with pytest.raises(CannotTell, match=r"topic t\.v2 is new"):
        judged(*sides, unread=["t.v2"])
