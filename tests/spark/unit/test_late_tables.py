"""A mirror that gets more topics: until they have all commits that the others have, their tables are loading."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from cdcd.spark.clients.connection import Connection
from cdcd.spark.mirroring.batch_source import MirrorSource
from cdcd.spark.source import progress_log
from cdcd.spark.source.cuts import Commit, Offsets, loading_of, of_topics
from cdcd.spark.source.late_topics import late_after
from cdcd.spark.source.source_position import SlotPosition, SourcePosition, has_reached
from cdcd.spark.tables.next_version import next_version, with_position
from cdcd.spark.target.versions import TableEntry, TargetVersion
from tests.support.nightly import nightly_except
from tests.support.planned import PREFIX, Planned, PlannedTopic, T, U, V, X

ALL = (T, U, V, X)


class Mirror:
    """The versions of a mirror, without rows: a table is there when records of its topic were read."""

    def __init__(self, kafka: Planned) -> None:
        kafka.topics = {topic: PlannedTopic(topic, 1000) for topic in ALL}
        self.version = TargetVersion(PREFIX, 4)

    def run(self, *topics: str, max_rows: int = 1000, stop_after: int = 1000) -> list[TargetVersion]:
        """Start the mirror, and run it to the newest commit, or for some batches; return the versions."""
        options = {"maxRows": str(max_rows)} | ({"topics": ",".join(topics)} if topics else {})
        source = MirrorSource(None, Connection("127.0.0.1:1", PREFIX), self.version, options, 0)  # type: ignore[arg-type]
        source.begin(ends_now=True)
        found = []
        while len(found) < stop_after and source.advance():
            self._apply(source)
            found.append(self.version)
        if len(found) < stop_after:
            self.version = with_position(self.version, self.version, source.position)
        source.close()
        return found

    def _apply(self, source: MirrorSource) -> None:
        before, version = self.version, next_version(self.version, source.end, {}, {}, [])
        changed = [
            one for one in of_topics(version.offsets) if version.offsets[one] != before.offsets.get(one)
        ]
        tables = {topic: TableEntry(topic) for topic in changed} | dict(version.tables)
        dropped = {topic: one for topic, one in before.dropped.items() if topic not in tables}
        loading = tuple(sorted(loading_of(source.end) - dropped.keys()))
        version = replace(version, tables=tables, dropped=dropped, loading=loading, number=version.number + 1)
        self.version = with_position(version, before, source.position)

    def drop(self, topic: str) -> None:
        """Drop a table; its next record is the beginning of a copy."""
        tables = {name: one for name, one in self.version.tables.items() if name != topic}
        loading = tuple(name for name in self.version.loading if name != topic)
        dropped = {topic: TableEntry(topic)}
        self.version = replace(self.version, tables=tables, loading=loading, dropped=dropped)


@pytest.fixture
def mirror(kafka: Planned) -> Mirror:
    return Mirror(kafka)


def both(kafka: Planned, lsns: range, first: int = 0) -> None:
    """Write commits with a row of T and a row of U each."""
    for number, lsn in enumerate(lsns, first + 1):
        kafka.progress(lsn, {T: number, U: number})


def shown(versions: list[TargetVersion]) -> Iterator[tuple[int, int, int, tuple[str, ...]]]:
    for one in versions:
        yield one.end_lsn, one.offsets[T]["0"], one.offsets.get(U, {}).get("0", 0), one.loading


@pytest.mark.parametrize("topics", [(T, U), ()])
def test_a_table_of_an_added_topic_is_loading_until_it_is_as_of_the_others_commit(
    kafka: Planned, mirror: Mirror, topics: tuple[str, ...]
) -> None:
    """The position remains that of the others, which have all commits up to there."""
    both(kafka, range(100, 1100, 100))
    mirror.run(T)
    found = mirror.run(*topics, max_rows=3)
    assert list(shown(found)) == [(1008, 10, n, (U,)) for n in (3, 6, 9)] + [(1008, 10, 10, ())]
    assert {one.commit_us for one in found} == {1_000_000_000}
    assert not mirror.version.left


def test_it_is_loading_after_a_restart_in_between(kafka: Planned, mirror: Mirror) -> None:
    both(kafka, range(100, 1100, 100))
    mirror.run(T)
    mirror.run(T, U, max_rows=3, stop_after=1)
    assert mirror.version.loading == (U,)
    both(kafka, range(1100, 1300, 100), first=10)
    assert list(shown(mirror.run(T, U, max_rows=4))) == [
        (1008, 10, 7, (U,)),
        (1008, 10, 10, ()),
        (1208, 12, 12, ()),
    ]


def test_a_commit_larger_than_a_batch_does_not_end_a_mirror_that_starts_before_it(
    kafka: Planned, mirror: Mirror
) -> None:
    kafka.progress(100, {T: 1, U: 1})
    kafka.progress(200, {T: 2, U: 100})
    kafka.progress(300, {T: 3, U: 101})
    mirror.run(T)
    mirror.run(T, U, max_rows=1, stop_after=1)
    found = mirror.run(T, U, max_rows=1)
    assert list(shown(found)) == [(308, 3, 100, (U,)), (308, 3, 101, ())]


def test_so_it_is_if_the_others_have_changed_earlier_only(kafka: Planned, mirror: Mirror) -> None:
    """The position is that of an idle mirror, and is not lower afterwards."""
    kafka.progress(100, {T: 1})
    both_later = range(200, 600, 100)
    for number, lsn in enumerate(both_later, 1):
        kafka.progress(lsn, {U: number})
    mirror.run(T)
    assert mirror.version.end_lsn == 508
    found = mirror.run(T, U, max_rows=2)
    assert list(shown(found)) == [(508, 1, 2, (U,)), (508, 1, 4, ())]


def test_a_dropped_table_that_was_left_out_for_a_time_is_loading_when_it_is_mirrored_again(
    kafka: Planned, mirror: Mirror
) -> None:
    both(kafka, range(100, 300, 100))
    mirror.run()
    mirror.drop(U)
    both(kafka, range(300, 800, 100), first=2)
    mirror.run(T)
    found = mirror.run(T, U, max_rows=2)
    assert list(shown(found)) == [(708, 7, 4, (U,)), (708, 7, 6, (U,)), (708, 7, 7, ())]


def test_a_mirror_that_an_earlier_version_has_left_so_is_loading(kafka: Planned, mirror: Mirror) -> None:
    both(kafka, range(100, 1100, 100))
    mirror.run(T)
    torn = {T: {"0": 10}, U: {"0": 3}}
    position = {"s": SlotPosition(308, "7", 1)}
    tables = {topic: TableEntry(topic) for topic in torn}
    mirror.version = replace(mirror.version, offsets=torn, positions=position, end_lsn=308, tables=tables)
    found = mirror.run(T, U, max_rows=4)
    assert list(shown(found)) == [(308, 10, 7, (U,)), (1008, 10, 10, ())]


@pytest.mark.parametrize("read_offsets", [1, 8, 1000])
def test_a_long_backlog_has_no_late_table_if_no_topic_was_added(
    kafka: Planned, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, read_offsets: int
) -> None:
    """Not all of its records are read at once, and a new table is one of them."""
    monkeypatch.setattr(progress_log, "READ_OFFSETS", read_offsets)
    both(kafka, range(100, 500, 100))
    mirror.run()
    for number in range(1, 30):
        kafka.progress(500 + number, {U: 4 + number, V: number})
    found = mirror.run(max_rows=2)
    assert [one.end_lsn for one in found] == [509 + number for number in range(29)]
    assert not any(one.loading for one in found)


@pytest.mark.parametrize("read_offsets", [1, 8, 1000])
def test_it_has_one_if_a_topic_was_added(
    kafka: Planned, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, read_offsets: int
) -> None:
    """Also while no commit of the others is read: their last position decides."""
    monkeypatch.setattr(progress_log, "READ_OFFSETS", read_offsets)
    for number in range(1, 31):
        kafka.progress(100 + number, {U: number})
    both(kafka, range(200, 500, 100), first=30)
    mirror.run(T)
    found = mirror.run(T, U, max_rows=2)
    assert [one.loading for one in found] == [(U,)] * (len(found) - 1) + [()]
    assert {one.end_lsn for one in found} == {408}


def test_a_new_snapshot_after_the_version_has_no_late_table(kafka: Planned, mirror: Mirror) -> None:
    """Its position is lower than that before it, and is the mirror's."""
    both(kafka, range(100, 300, 100))
    kafka.progress(400, {T: 3}, end_lsn=600)
    mirror.run()
    kafka.progress(700, {T: 5, V: 2}, end_lsn=300, snapshot=[T, V])
    kafka.progress(700, {T: 6, V: 3}, end_lsn=300, snapshot=[T, V])
    found = mirror.run(max_rows=1)
    assert [(one.end_lsn, one.loading) for one in found] == [(300, (T, V)), (300, (T, V))]


def test_progress_records_that_were_compacted_make_no_late_table(kafka: Planned, mirror: Mirror) -> None:
    """Their sum is one commit, of which a mirror with the same topics has a part."""
    kafka.progress(100, {T: 500, U: 1000})
    both(kafka, range(200, 500, 100), first=500)
    mirror.run(T, U)
    for number in range(600, 620):
        kafka.progress(number, {T: number, V: number})
    kafka.topics[T].end, kafka.topics[U].end, kafka.topics[V].end = 619, 1000, 619
    kafka.compact(["s"], 20)
    found = mirror.run(T, U, max_rows=1)
    assert not any(one.loading for one in found)
    assert [one.end_lsn for one in found] == sorted({one.end_lsn for one in found})
    assert mirror.version.end_lsn == 627


def at(system: str, timeline: int, end_lsn: int) -> SourcePosition:
    return SourcePosition(end_lsn, 0, {"s": SlotPosition(end_lsn, system, timeline)})


@pytest.mark.parametrize(
    ("position", "is_reached"),
    [
        (at("7", 2, 900), True),
        (at("7", 2, 901), True),
        (at("7", 2, 899), False),
        (at("7", 3, 500), True),
        (at("7", 1, 1000), False),
        (at("8", 2, 1000), False),
        (at("", 0, 900), True),
        (SourcePosition(0, 0, {"t": SlotPosition(1000, "7", 2)}), False),
        (SourcePosition(0, 0, {"t": SlotPosition(1000, "7", 2)}, frozenset({"s"})), True),
    ],
)
def test_a_position_that_was_reached_before(position: SourcePosition, is_reached: bool) -> None:
    assert has_reached(position, at("7", 2, 900)) is is_reached


def test_a_topic_is_late_only_where_a_later_commit_is_there() -> None:
    commits = [Commit("0/1", {"a": {"0": n}, "b": {"0": n}}, slot="s") for n in (1, 2, 3)]
    assert late_after({"a": {"0": 3}, "b": {"0": 1}}, {}, commits).topics == {"b"}
    assert late_after({"a": {"0": 3}, "b": {"0": 1}}, {"a": {"0": 1}}, commits[1:]).topics == {"b"}
    assert late_after({"a": {"0": 1}, "b": {"0": 1}}, {}, commits).topics == frozenset()
    assert late_after({"a": {"0": 3}, "b": {"0": 3}}, {}, commits).is_last
    assert not late_after({"a": {"0": 3}, "b": {"0": 2}}, {}, commits).is_last


@pytest.mark.parametrize("seed", nightly_except(range(60), *range(12)))
def test_the_tables_that_are_not_loading_are_as_of_one_commit(
    seed: int, kafka: Planned, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics are added, one is dropped, left out and added again, and the mirror stops between any two batches."""
    dice = random.Random(seed)
    monkeypatch.setattr(progress_log, "READ_OFFSETS", dice.choice([1, 6, 20, 1000]))
    sums: list[tuple[int, Offsets]] = [(0, {})]
    ends: dict[str, int] = {}
    slot_of = dict.fromkeys(ALL, "a") if seed % 2 else {T: "a", U: "a", V: "b", X: "b"}
    read = [T]
    for _ in range(12):
        for _ in range(dice.randint(0, 6)):
            lsn = 10 * len(sums)
            slot = dice.choice(sorted(set(slot_of.values())))
            named = [topic for topic in ALL if slot_of[topic] == slot and dice.random() < 0.4]
            ends |= {topic: ends.get(topic, 0) + dice.randint(1, 3) for topic in named}
            kafka.progress(lsn, {topic: ends[topic] for topic in named}, slot)
            sums.append((lsn, {topic: {"0": end} for topic, end in ends.items()}))
        for topic in ALL:
            kafka.topics[topic].end = ends.get(topic, 0)
        if seed % 3 == 2 and kafka.log and dice.random() < 0.3:  # the last record of each slot remains
            last = {one.name: one.place for one in kafka.log}
            kafka.compact(sorted(set(slot_of.values())), dice.randint(0, min(last.values())))
        if topic := next((one for one in ALL if one not in read and dice.random() < 0.3), ""):
            read.append(topic)
        elif len(read) > 1 and dice.random() < 0.15:
            mirror.drop(read.pop())
            mirror.version = replace(mirror.version, dropped={})
        before = mirror.version
        for version in mirror.run(*read, max_rows=dice.randint(1, 6), stop_after=dice.choice([1, 2, 99])):
            whole = version.tables.keys() - set(version.loading)
            assert any(
                all(version.offsets.get(topic, {}) == one.get(topic, {}) for topic in whole)
                for _, one in sums
            )
            assert before.end_lsn <= version.end_lsn
            before = version
