"""Which commits a mirror has: LSNs of several timelines, servers and slots, by the positions of progress records."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cdcd.cli.daemon_port import Answer
from cdcd.cli.wait import wait_durable, wait_mirrored
from cdcd.config import load_config
from cdcd.config.sample import sample_yaml
from cdcd.errors import MirrorBehind, PositionUnavailable, SparkReadError
from cdcd.lsn import format_lsn
from cdcd.spark.__main__ import main
from cdcd.spark.mirroring import batches
from cdcd.spark.mirroring.batches import MirrorBatches
from cdcd.spark.reading.mirror import Mirror, read_mirror, wait
from cdcd.spark.source.source_position import JOINING, SlotPosition, SourcePosition, held_until
from cdcd.spark.storage.uri import open_storage
from cdcd.spark.tables.next_version import with_position
from cdcd.spark.target.reached import Wanted, held_in, missing
from cdcd.spark.target.target_writer import TargetWriter, take_over
from cdcd.spark.target.versions import TargetVersion
from tests.support.nightly import nightly_except
from tests.support.planned import Planned, PlannedTopic, Query, T, U, V, read

SWITCH = 0x4FFFF00
"""Where the promoted server has left timeline 1."""


class Following:
    """A mirror that notes the positions of a query, without rows."""

    def __init__(self, kafka: Planned, target: Path, **options: str) -> None:
        kafka.topics = {T: PlannedTopic("t", 100), U: PlannedTopic("u", 100), V: PlannedTopic("v", 100)}
        self.query = Query(loading="true", **options)
        self.target = target
        writer = take_over(target, TargetVersion("p", 4))
        self._mirror = MirrorBatches(open_storage(target), writer, lambda _: None)

    def follow(self) -> Mirror:
        """Read the new progress records, and return the mirror."""
        while self.query.batch():
            self._note()
        self._note()
        return read_mirror(self.target)

    def _note(self) -> None:
        assert self.query.reached is not None
        self._mirror.note_position(self.query.reader.position(self.query.reached))

    def is_reached(self, lsn: int, **of: Any) -> bool:
        """Return whether a wait for an LSN ends with the mirror as it is."""
        try:
            wait(self.target, lsn, timeout_s=0, **of)
        except MirrorBehind:
            return False
        return True


@pytest.fixture
def following(kafka: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Following:
    monkeypatch.setattr(batches, "IDLE_S", -1.0)
    return Following(kafka, tmp_path)


def idle_beyond_the_switch(kafka: Planned) -> None:
    """Write a commit, and then a position of the idle stream that the next timeline does not have."""
    kafka.progress(0x4000000, {T: 1})
    kafka.progress(0x4000000, {}, end_lsn=0x5000100)


def after_failover(kafka: Planned, end_lsn: int, lsn: int = 0x4000000, **given: Any) -> None:
    kafka.progress(lsn, given.pop("offsets", {}), end_lsn=end_lsn, timeline=2, began_lsn=SWITCH, **given)


def test_an_idle_position_of_the_former_timeline_has_no_commit_of_the_new_one(
    kafka: Planned, following: Following
) -> None:
    """F58: the promoted server uses the LSNs after the switch point again."""
    idle_beyond_the_switch(kafka)
    following.follow()
    assert following.is_reached(0x5000080), "on timeline 1"
    assert following.is_reached(0x5000080, timeline=1)
    assert not following.is_reached(0x5000080, timeline=2), "a commit on timeline 2, which cdcd has not read"
    after_failover(kafka, SWITCH)
    assert following.follow().end_lsn == SWITCH
    assert not following.is_reached(0x5000080)
    assert not following.is_reached(0x5000080, timeline=1)
    after_failover(kafka, 0x5000090, 0x5000060, offsets={T: 2})
    following.follow()
    assert following.is_reached(0x5000080)
    assert following.is_reached(0x5000080, timeline=2)
    assert not following.is_reached(0x5000080, timeline=3)
    assert not following.is_reached(0x5000080, system_identifier="8")


def test_a_version_of_the_former_timeline_is_found_up_to_the_switch_point_only(
    kafka: Planned, following: Following
) -> None:
    first = [following.follow()]
    for end_lsn in (0x4000008, 0x4500000, 0x5000100):
        kafka.progress(0x4000000, {T: 1}, end_lsn=end_lsn)
        first.append(following.follow())
    for end_lsn in (SWITCH, 0x5000090, 0x5000200):
        after_failover(kafka, end_lsn)
        first.append(following.follow())
    _, commit, idle, beyond, switched, later, _ = (one.at for one in first)

    def found(lsn: int) -> str:
        return read_mirror(following.target, at=lsn).at

    assert found(0x4000000) == commit
    assert found(0x4400000) == idle
    assert found(0x4FFFEFF) == beyond, "both timelines have it"
    assert found(SWITCH + 1) == found(0x5000080) == found(0x5000090) == later
    assert switched != later
    with pytest.raises(SparkReadError, match="not reached this LSN"):
        read_mirror(following.target, at=0x5000201)


def test_a_source_that_was_restored_or_moved_is_not_reached_by_the_positions_before(
    kafka: Planned, following: Following
) -> None:
    kafka.progress(0x9000, {T: 1})
    before = following.follow()
    kafka.progress(0x5000, {T: 2}, system="8")
    after = following.follow()
    assert after.end_lsn == 0x5008
    assert not following.is_reached(0x6000)
    assert read_mirror(following.target, at=0x5000).at == after.at != before.at
    kafka.progress(0x3000, {T: 3}, system="8")  # a copy on the same timeline
    assert following.follow().end_lsn == 0x3008
    assert not following.is_reached(0x5000)


def test_a_source_that_is_copied_again_is_not_reached_by_the_positions_before(
    kafka: Planned, following: Following
) -> None:
    """The position is unknown until the first snapshot of the new server is complete."""
    kafka.progress(0x9000, {T: 1})
    following.follow()
    kafka.progress(0, {T: 2}, system="8", snapshot=[T], end_lsn=0)
    assert following.follow().end_lsn == 0
    assert not following.is_reached(0x1000)
    kafka.progress(0x5000, {T: 3}, system="8")
    after = following.follow()
    assert read_mirror(following.target, at=0x4000).at == after.at


def test_with_two_slots_a_wait_is_for_each_or_for_the_one_that_is_named(
    kafka: Planned, following: Following
) -> None:
    kafka.progress(0x4000, {U: 1}, "b")
    kafka.progress(0x9000, {T: 5}, "a")
    following.follow()
    assert following.is_reached(0x4000)
    assert not following.is_reached(0x5000), "slot b may have a commit there"
    assert not following.is_reached(0x5000, slot="b")
    assert not following.is_reached(0x5000, slot="c")
    assert following.is_reached(0x5000, slot="a")
    with pytest.raises(SparkReadError, match="not reached this LSN"):
        read_mirror(following.target, at=0x5000)
    kafka.progress(0x5000, {U: 2}, "b")
    following.follow()
    assert following.is_reached(0x5000)
    assert read_mirror(following.target, at=0x5000).end_lsn == 0x5008


def test_a_slot_that_joins_has_no_commit_in_the_versions_before(kafka: Planned, following: Following) -> None:
    kafka.progress(0x3000, {T: 5}, "a")
    early = following.follow()
    kafka.progress(0x9000, {T: 6}, "a")
    following.follow()
    kafka.progress(0x4800, {}, "b", end_lsn=0x4800)
    kafka.progress(0x5000, {U: 1}, "b")
    joined = following.follow()
    assert joined.end_lsn == 0x5008
    assert read_mirror(following.target, at=0x3000).at == early.at
    assert read_mirror(following.target, at=0x4801).at == joined.at, "it has the rows of slot b"
    kafka.progress(0x8000, {U: 2}, "b")
    after = following.follow()
    assert read_mirror(following.target, at=0x7000).at == after.at


def test_a_slot_whose_first_records_are_removed_may_have_sent_earlier_commits(
    kafka: Planned, following: Following
) -> None:
    kafka.progress(0x3000, {T: 5}, "a")
    following.follow()
    kafka.progress(0x5000, {U: 7}, "b")
    joined = following.follow()
    assert read_mirror(following.target, at=0x2000).at == joined.at


@pytest.mark.parametrize("snapshot", [None, [U]])
@pytest.mark.parametrize("window", [2, 15])
def test_a_slot_that_joins_with_a_long_transaction_or_a_snapshot(
    window: int, snapshot: list[str] | None, kafka: Planned, following: Following
) -> None:
    """The other slot goes on meanwhile: its versions are found by what they have, as if each of them was read."""
    number, made = 0, []

    def written(lsn: int) -> None:
        nonlocal number
        number += 1
        kafka.progress(lsn, {T: number}, "a", end_lsn=lsn + 5)
        made.append(following.follow().version)

    for lsn in range(100, 1001, 100):
        written(lsn)
    kafka.progress(0, {}, "b", end_lsn=560 if snapshot is None else 0, snapshot=snapshot)
    kafka.progress(0, {U: 1}, "b", end_lsn=560, snapshot=snapshot, is_part=True)
    for lsn in range(1100, 1100 + 100 * window, 100):
        written(lsn)
    kafka.progress(620, {U: 2}, "b", end_lsn=625)
    written(5000)
    kafka.progress(4000, {U: 3}, "b", end_lsn=4005)
    written(6000)
    latest = made[-1]
    held = [held_in(one, latest) for one in made]
    assert held == sorted(held)
    assert held[:10] == [105, 205, 305, 405, 505, 560, 560, 560, 560, 560]
    for lsn in (90, 505, 506, 560, 561, 625, 626, 4005):
        first = next(one for one in made if held_in(one, latest) >= lsn)
        assert read_mirror(following.target, at=lsn).version.number == first.number, lsn
    assert read_mirror(following.target, at=250).version.number == made[2].number
    assert read_mirror(following.target, at=600).version.positions["b"].end_lsn >= 600


def test_a_known_slot_of_which_only_a_part_is_left_is_where_it_was() -> None:
    """The mirror is started again after a compaction; then the slot's server is promoted."""
    was = {"a": SlotPosition(1000, "7", 1), "b": SlotPosition(900, "8", 1)}
    before = TargetVersion("p", 4, number=9, commit_lsn=1000, end_lsn=900, positions=was)
    only_a_part = {"a": SlotPosition(1100, "7", 1), "b": JOINING}
    after = with_position(replace(before, number=10), before, SourcePosition(0, 0, only_a_part))
    assert after.positions == {"a": SlotPosition(1100, "7", 1), "b": SlotPosition(900, "8", 1)}
    assert (after.end_lsn, missing(after, Wanted(850))) == (900, {})
    promoted = only_a_part | {"b": SlotPosition(1200, "8", 2, 880)}
    latest = with_position(replace(after, number=11), after, SourcePosition(1100, 0, promoted))
    assert latest.left == ((10, 880),)
    assert [held_in(one, latest) for one in (before, after, latest)] == [880, 880, 1100]


def test_a_slot_that_others_replace_remains_until_one_of_them_has_a_position() -> None:
    before = TargetVersion("p", 4, number=1, end_lsn=1000, positions={"a": SlotPosition(1000, "7", 1)})
    joining = SourcePosition(0, 0, {"b": JOINING}, frozenset("a"))
    after = with_position(replace(before, number=2), before, joining)
    assert after.end_lsn == 0
    replaced = SourcePosition(2000, 0, {"b": SlotPosition(2000, "7", 1)}, frozenset("a"), {"b": 1500})
    latest = with_position(replace(after, number=3), after, replaced)
    assert latest.positions == replaced.slots
    assert [held_in(one, latest) for one in (before, after, latest)] == [1000, 1000, 2000]


def test_a_slot_that_was_replaced_is_not_waited_for(kafka: Planned, following: Following) -> None:
    kafka.describe(T, U, slot="a")
    kafka.progress(0x4000, {T: 5, U: 5}, "a")
    following.follow()
    kafka.describe(T, slot="b")
    kafka.progress(0x5000, {T: 6}, "b")
    following.follow()
    assert not following.is_reached(0x5000), "topic U is of slot a"
    kafka.describe(T, U, slot="b")
    kafka.progress(0x6000, {T: 7}, "b")
    following.follow()
    assert following.is_reached(0x6000)
    kafka.progress(0x4800, {}, "a")
    following.follow()
    assert not following.is_reached(0x6000), "it lives"


def test_a_slot_without_a_topic_of_the_mirror_is_not_waited_for(
    kafka: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "IDLE_S", -1.0)
    following = Following(kafka, tmp_path, topics=T)
    kafka.describe(T, slot="a")
    kafka.describe(U, slot="b")
    kafka.progress(0x9000, {T: 5}, "a")
    kafka.progress(0x4000, {U: 1}, "b")
    following.follow()
    assert following.is_reached(0x9000)
    assert not following.is_reached(0x4000, slot="b")


def test_the_slots_of_a_compacted_topic_are_known(kafka: Planned, following: Following) -> None:
    kafka.progress(0x1000, {T: 1, V: 100}, "a")
    kafka.progress(0x2000, {U: 100}, "b")
    kafka.progress(0x9000, {T: 100}, "a")
    kafka.compact(["a"], 2)
    following.follow()
    assert following.is_reached(0x9000, slot="a")
    assert following.is_reached(0x2000)
    assert not following.is_reached(0x3000)


def test_a_slot_of_which_compaction_has_left_only_later_records_is_where_it_was(
    kafka: Planned, following: Following
) -> None:
    kafka.progress(0x2000, {U: 1}, "b")
    kafka.progress(0x9000, {T: 1}, "a")
    following.follow()
    kafka.progress(0xA000, {T: 2}, "a")
    kafka.progress(0x3000, {U: 2}, "b")
    kafka.compact(["a", "b"], 2)
    later = SourcePosition(0xA008, 0, {"a": SlotPosition(0xA008, "7", 1)})
    after = with_position(read_mirror(following.target).version, TargetVersion("p", 4), later)
    assert after.end_lsn == 0x2008
    assert following.follow().end_lsn == 0x3008
    assert following.is_reached(0xA000, slot="a")


def test_a_slot_whose_first_transaction_is_incomplete_is_not_reached(
    kafka: Planned, following: Following
) -> None:
    kafka.progress(0x9000, {T: 5}, "a")
    following.follow()
    kafka.progress(0x5000, {U: 5}, "b", is_part=True)
    kafka.progress(0x9100, {T: 6}, "a")
    assert following.follow().end_lsn == 0
    assert not following.is_reached(0x4000)
    assert following.is_reached(0x9100, slot="a")


def test_an_undecided_prepare_does_not_hold_back_what_is_committed_after_it(
    kafka: Planned, following: Following
) -> None:
    """F33: with two_phase it holds the LSN that may be confirmed, while later commits are written."""
    kafka.progress(450, {T: 1}, end_lsn=460)
    kafka.progress(600, {T: 2}, end_lsn=500)
    before = following.follow()
    kafka.progress(800, {T: 3}, end_lsn=500)
    after = following.follow()
    assert (before.reached_lsn(), after.reached_lsn()) == (600, 800)
    assert following.is_reached(700)
    assert following.is_reached(700, slot="s", timeline=1)
    assert not following.is_reached(801), "only the daemon knows that no commit is there"
    assert read_mirror(following.target, at=700).at == after.at
    assert read_mirror(following.target, at=550).at == before.at
    assert read(endingLsn=format_lsn(700)) == {T: (0, 2)}
    kafka.progress(900, {}, end_lsn=500, snapshot=[T])
    assert following.follow().end_lsn == 500, "a snapshot tells nothing about commits before it"


def test_a_mirror_of_an_earlier_version_has_no_timeline(tmp_path: Path) -> None:
    TargetWriter(tmp_path, None).publish(TargetVersion("p", 4, end_lsn=200, commit_lsn=150))
    assert wait(tmp_path, 200, timeline=1, slot="s", system_identifier="7", timeout_s=0).end_lsn == 200
    with pytest.raises(MirrorBehind, match="restart it with this version"):
        wait(tmp_path, 200, timeline=2, timeout_s=0)
    with pytest.raises(MirrorBehind, match="reached=0/C8"):
        wait(tmp_path, 201, timeout_s=0)


def test_the_command_waits_for_a_timeline_and_a_slot(
    kafka: Planned, following: Following, capsys: pytest.CaptureFixture[str]
) -> None:
    idle_beyond_the_switch(kafka)
    following.follow()
    asked = ["wait", "--target", str(following.target), "--lsn", "0/5000080", "--timeout-s", "1"]
    assert main([*asked, "--slot", "s", "--timeline", "1"]) == 0
    assert "all commits up to 0/5000100" in capsys.readouterr().out
    assert main([*asked, "--timeline", "2"]) == 1
    assert main([*asked, "--slot", "another"]) == 1
    capsys.readouterr()
    assert main(["status", "--target", str(following.target)]) == 0
    assert "slot        s, 0/5000100, timeline 1" in capsys.readouterr().out


def test_cdcd_wait_asks_the_mirror_for_the_timeline_of_the_daemon(
    kafka: Planned, following: Following, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon has followed the failover, the mirror has not: it has the LSN on the former timeline only."""
    (tmp_path / "cdcd.yaml").write_text(sample_yaml())
    config, lsn = load_config(tmp_path / "cdcd.yaml", {}), 0x5000080
    page: dict[str, object] = {"durable_lsn": "0/5000090", "timeline": 2, "system_identifier": "7"}
    monkeypatch.setattr("cdcd.cli.wait.ask_daemon", lambda *_, **__: Answer(200, json.dumps(page).encode()))
    idle_beyond_the_switch(kafka)
    following.follow()

    def waited() -> str:
        durable = wait_durable(config, lsn, 10)
        assert durable.line == "durable in Kafka: all commits below 0/5000090"
        return wait_mirrored(str(following.target), {}, lsn, 0, slot="s", durable=durable)

    with pytest.raises(MirrorBehind, match="timeline=1"):
        waited()
    after_failover(kafka, 0x5000090, 0x5000060, offsets={T: 2})
    following.follow()
    assert waited() == "visible in the mirror: all commits up to 0/5000090"
    page["system_identifier"] = "8"
    with pytest.raises(MirrorBehind):
        waited()
    page["timeline"] = page["system_identifier"] = None  # of a daemon of an earlier version
    assert waited()


def test_the_end_of_a_read_is_not_known_by_the_former_timeline(kafka: Planned) -> None:
    """F58: an end by LSN is before the first commit there, which may not be in Kafka yet."""
    kafka.topics = {T: PlannedTopic("t", 100)}
    idle_beyond_the_switch(kafka)
    assert read(endingLsn=format_lsn(0x5000080)) == {T: (0, 1)}
    after_failover(kafka, 0x4FFFF80)
    with pytest.raises(PositionUnavailable, match="newer than all records"):
        read(endingLsn=format_lsn(0x5000080))
    after_failover(kafka, 0x5000100, 0x5000060, offsets={T: 2})
    assert read(endingLsn=format_lsn(0x5000080)) == {T: (0, 2)}


ONE = SlotPosition(900, "7", 1, 0)


@pytest.mark.parametrize(
    ("after", "lsn"),
    [
        (ONE, None),
        (SlotPosition(1000, "7", 1, 0), None),
        (SlotPosition(800, "7", 1, 0), 0),
        (SlotPosition(800, "7", 2, 700), 700),
        (SlotPosition(800, "7", 2, 0), 500),
        (SlotPosition(800, "7", 3, 700), 500),
        (SlotPosition(1000, "8", 1, 0), 0),
        (SlotPosition(1000, "8", 2, 950), 0),
        (SlotPosition(1000), None),
    ],
)
def test_how_far_a_position_is_true_in_a_later_history(after: SlotPosition, lsn: int | None) -> None:
    """The mirror's last commit is at 500."""
    assert held_until(ONE, after, 500) == lsn


@pytest.mark.parametrize("removed", [0, 4])
def test_the_time_of_a_first_version_is_that_of_the_last_commit_of_any_slot(
    kafka: Planned, following: Following, removed: int
) -> None:
    """With two slots the record at which a new mirror begins may have an earlier time than one before it."""
    kafka.describe(T, slot="a")
    kafka.describe(U, slot="b")
    kafka.progress(50, {U: 100}, slot="b")
    kafka.progress(100, {T: 90}, slot="a")
    kafka.progress(200, {T: 100}, slot="a")
    kafka.progress(50, {}, slot="b", end_lsn=210)
    kafka.compact(["a", "b"], removed)
    assert following.follow().version.commit_us == 200_000_000
    with pytest.raises(SparkReadError, match="does not know what was committed"):
        read_mirror(following.target, at=datetime.fromtimestamp(60, UTC))


def test_the_time_of_a_new_slot_is_that_of_the_last_commit_that_it_has_taken_over(
    kafka: Planned, following: Following
) -> None:
    kafka.describe(T, slot="a")
    kafka.progress(100, {T: 1}, slot="a")
    following.follow()
    kafka.progress(300, {T: 2}, slot="a", is_part=True)
    kafka.describe(T, slot="b")
    kafka.progress(200, {T: 3}, slot="b")
    assert following.follow().version.commit_us == 300_000_000


def test_the_last_commit_before_a_timeline_that_was_missed_is_not_one_of_the_batch_after_it() -> None:
    before = TargetVersion("p", 4, number=3, end_lsn=900, commit_lsn=500, positions={"s": ONE})
    batch = replace(before, commit_lsn=2000)
    found = with_position(batch, before, SourcePosition(2100, 0, {"s": SlotPosition(2100, "7", 3, 700)}))
    assert found.left == ((3, 500),)
    assert held_in(before, found) == 500
    assert held_in(replace(found, number=4), found) == 2100


@pytest.mark.parametrize("seed", nightly_except(range(20), 1, 2, 3))
def test_a_version_and_a_wait_have_all_commits_up_to_the_lsn(
    seed: int, kafka: Planned, following: Following
) -> None:
    """Commits, idle positions, and failovers before the last one of these; the mirror does not see all records."""
    dice, timeline, began_lsn, position = random.Random(seed), 1, 0, 100
    had: dict[str, set[tuple[int, int]]] = {}
    written: dict[int, int] = {}
    """By LSN, the timeline of the commit in the present history."""
    for _ in range(40):
        if dice.random() < 0.15:  # no earlier than the last written commit
            began_lsn = dice.randint(max(written, default=99) + 1, position)
            timeline, position = timeline + 1, began_lsn
        elif dice.random() < 0.5:
            commit_lsn, position = position + dice.randint(0, 5), position + 10
            written[commit_lsn] = timeline
        else:
            position += dice.randint(1, 20)
        last = max(written, default=0)
        kafka.progress(last, {T: len(written)}, end_lsn=position, timeline=timeline, began_lsn=began_lsn)
        if dice.random() < 0.6:
            had[following.follow().at] = set(written.items())
    had[following.follow().at] = set(written.items())
    for lsn in dice.sample(range(90, position + 1), 40):
        wanted = {one for one in written.items() if one[0] < lsn}
        found = read_mirror(following.target, at=lsn)
        assert wanted <= had.get(found.at, set()), (lsn, found.at)
    assert following.is_reached(position, timeline=timeline)
    assert not following.is_reached(position + 1)


@pytest.mark.parametrize("seed", nightly_except(range(20), 1, 2, 3))
def test_two_slots_of_one_server_and_a_version_with_all_commits_of_both(
    seed: int, kafka: Planned, following: Following
) -> None:
    """Slot b joins at some time. Its transactions may be written in parts; the server is promoted now and then."""
    dice, timeline, began_lsn, joins = random.Random(seed), 1, 0, random.Random(seed).randint(3, 15)
    ends, last, names = {"a": 100}, {"a": 0, "b": 0}, {"a": T, "b": U}
    had: list[tuple[TargetVersion, set[tuple[str, int]]]] = []
    written: set[tuple[str, int]] = set()
    is_open = False
    for step in range(50):
        if step == joins:
            ends["b"] = max(began_lsn, ends["a"] - dice.randint(0, 40))
            slot, offsets = "b", {}
        elif dice.random() < 0.08:  # no earlier than the last written commit
            lowest = max(*last.values(), began_lsn) + 1
            began_lsn = dice.randint(lowest, max(lowest, *ends.values()))
            timeline += 1
            slot, offsets = "a", {}
            ends = {name: min(end, began_lsn) for name, end in ends.items()}
        else:
            slot, offsets = dice.choice(list(ends)), {}
            if slot == "b" and dice.random() < 0.4:
                is_open = True
                offsets = {U: step}
            else:
                is_open &= slot != "b"
                has_rows = dice.random() < 0.6
                start = max(ends[slot], began_lsn)
                commit_lsn, ends[slot] = start + dice.randint(0, 5), start + dice.randint(6, 30)
                if has_rows:
                    written.add((slot, commit_lsn))
                    last[slot], offsets = commit_lsn, {names[slot]: step}
        # Slot b has no position before the snapshot with which it joins.
        begins = {"end_lsn": 0, "snapshot": [U]} if step == joins and seed % 2 else {}
        given = {"end_lsn": ends[slot], "timeline": timeline, "began_lsn": began_lsn} | begins
        kafka.progress(last[slot], offsets, slot, is_part=slot == "b" and is_open, **given)
        if dice.random() < 0.7:
            had.append((following.follow().version, set(written)))
    had.append((following.follow().version, set(written)))
    latest = had[-1][0]
    by_number = {one.number: seen for one, seen in had}
    made = sorted({one.number: one for one, _ in had}.values(), key=lambda one: one.number)
    held = [held_in(one, latest) for one in made]
    assert held == sorted(held)
    for lsn in dice.sample(range(90, latest.end_lsn + 1), min(15, max(0, latest.end_lsn - 89))):
        found = read_mirror(following.target, at=lsn).version
        assert {one for one in written if one[1] < lsn} <= by_number.get(found.number, set()), lsn
        assert found.number in {1, next(one.number for one in made if held_in(one, latest) >= lsn)}
