"""The first offset of what a batch reads is known only if each commit in it says so."""

from __future__ import annotations

import pytest

from cdcd.sink.progress import FIRST_OFFSETS, dump_offsets
from cdcd.spark.source import first_offsets as reader
from cdcd.spark.source.cuts import Commit, commit_of_query, without_offsets
from cdcd.spark.source.first_offsets import earlier, first_between, first_offsets
from cdcd.spark.source.joined_commits import as_one, join_commits
from cdcd.spark.source.slots import complete_commits

T = "p.s.t"


def _commit(end: int, first: int | None, *, is_part: bool = False) -> Commit:
    firsts = None if first is None else {T: {"0": first}}
    return Commit("0/1", {T: {"0": end}}, is_part=is_part, firsts=firsts)


def test_the_reader_knows_the_daemons_header() -> None:
    assert reader.FIRST_OFFSETS == FIRST_OFFSETS
    found = first_offsets([("other", b"x"), (FIRST_OFFSETS, dump_offsets({T: {0: 7, 10: 8}}))])
    assert found == {T: {"0": 7, "10": 8}}


@pytest.mark.parametrize("headers", [None, [], [(FIRST_OFFSETS, None)], *([(FIRST_OFFSETS, one)] for one in (
    b"", b"[]", b'{"t": 1}', b'{"t": {"a": 1}}', b'{"t": {"0": null}}', b"\xff",
))])  # fmt: skip
def test_a_header_that_cannot_be_read_says_nothing(headers: list[tuple[str, bytes | None]] | None) -> None:
    assert first_offsets(headers) is None


def test_the_smaller_offset_of_both() -> None:
    assert earlier({T: {"0": 5, "1": 2}}, {T: {"0": 3, "2": 9}, "u": {"0": 1}}) == {
        T: {"0": 3, "1": 2, "2": 9},
        "u": {"0": 1},
    }
    assert earlier({}, None) is None


@pytest.mark.parametrize(
    ("commits", "first"),
    [
        ([_commit(10, 8), _commit(20, 11), _commit(30, 21), _commit(40, None)], 11),
        ([_commit(20, 15), _commit(30, 12)], 12),  # two producers at the same time
        ([_commit(20, None), _commit(30, 21)], None),
        ([_commit(20, 11)], None),  # the batch has more than these commits
        ([_commit(20, 11), Commit("0/1", {}), _commit(30, 21)], 11),
        ([join_commits([_commit(15, 11), _commit(20, 16)]), _commit(30, 21)], 11),
        ([join_commits([_commit(15, 11), Commit("0/1", {}), _commit(30, 16)])], 11),
        ([join_commits([_commit(15, 11), _commit(20, None)]), _commit(30, 21)], None),
        ([join_commits([_commit(15, None), _commit(20, 16)]), _commit(30, 21)], None),
        ([*complete_commits([_commit(20, 11, is_part=True), _commit(30, 21)])], 11),
        ([*complete_commits([_commit(20, None, is_part=True), _commit(30, 21)])], None),
        ([], None),
    ],
)
def test_the_first_offset_of_a_batch(commits: list[Commit], first: int | None) -> None:
    assert first_between(commits, T, 0, 10, 30) == first


def test_a_joined_commit_that_begins_before_a_batch_proves_nothing() -> None:
    """Its first offset is before the batch, so what Kafka has removed of the batch counts as lost."""
    joined = join_commits([_commit(10, 8), _commit(20, 11)])
    assert first_between([joined, _commit(30, 21)], T, 0, 10, 30) == 8


def test_commits_after_the_start_are_joined_apart_from_those_before() -> None:
    commits = [_commit(5, 0), _commit(10, 6), _commit(20, 11), _commit(30, 21)]
    before, after = as_one({T: {"0": 10}}, commits, rest=True)
    assert (before.offsets, after.offsets) == ({T: {"0": 10}}, {T: {"0": 30}})
    assert first_between([before, after], T, 0, 10, 30) == 11
    assert len(as_one({T: {"0": 10}}, commits)) == 3
    (both,) = as_one(None, commits, rest=True)
    assert both.firsts == {T: {"0": 0}}


def test_a_query_stores_first_offsets_of_its_own_topics_only() -> None:
    """A commit of a thousand tables costs a query of one of them as much as one of this table."""
    firsts = {f"p.s.{n}": {"0": 5} for n in range(1000)} | {T: {"0": 7}}
    offsets = {topic: {"0": 9} for topic in firsts}
    seen = commit_of_query(Commit("0/1", offsets, firsts=firsts), frozenset({T}), loading=False)
    assert seen.firsts == {T: {"0": 7}}
    assert seen.size == Commit("0/1", {T: {"0": 9}}).size + 1
    assert without_offsets(Commit("0/1", offsets, firsts=firsts), offsets.keys() - {T}).firsts == seen.firsts


def test_the_time_of_a_joined_commit_is_that_of_the_last_one_of_any_slot() -> None:
    commits = [Commit("0/1", {}, slot="a", commit_us=200), Commit("0/2", {}, slot="b", commit_us=50)]
    assert join_commits(commits).commit_us == 200
