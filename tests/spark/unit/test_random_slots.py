"""Random histories of two slots: each batch ends at complete commits of both, and each row is read once.

Slots are replaced by others of the same topics, batches fail and are repeated, topics are deleted and created again,
and the progress topic is compacted, at any moment.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from cdcd.errors import HistoryMissing, PositionUnavailable
from cdcd.spark.cuts import Offsets, ids_of
from cdcd.spark.topic_ids import number_of
from tests.support.nightly import nightly_except
from tests.support.planned import Moves, Planned, PlannedTopic, Query, T, U, V, X

FAMILIES = {"a": (T, V), "b": (U, X)}
"""The topics of a slot, and of those that replace it."""
Ends = dict[str, tuple[int, int]]
"""By topic, how often it was created again, and its next offset."""


@dataclass
class World:
    """Two slots that write at random; `complete`: the ends of a family's topics after each complete commit."""

    kafka: Planned
    dice: random.Random
    complete: dict[str, list[Ends]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        topics = [topic for own in FAMILIES.values() for topic in own]
        self._slots = {family: f"{family}0" for family in FAMILIES}
        self._age, self._ends = dict.fromkeys(topics, 0), dict.fromkeys(topics, 0)
        self._halted: set[str] = set()
        self._is_open = dict.fromkeys(FAMILIES, False)
        self.kafka.topics = {topic: PlannedTopic(f"{topic} 0", 0) for topic in topics}
        for family in FAMILIES:
            self._describe(family)
            self.complete[family] = [self._now(family)]

    def _describe(self, family: str) -> None:
        self.kafka.describe(*FAMILIES[family], slot=self._slots[family])

    def _now(self, family: str) -> Ends:
        return {topic: (self._age[topic], self._ends[topic]) for topic in FAMILIES[family]}

    def write(self) -> None:
        """Write the next record of a slot: a commit, a part of a transaction or of a snapshot; some without rows."""
        family = self.dice.choice([*FAMILIES])
        self._write(family, self.dice.choice(["part", "snapshot", "commit", "commit", "commit"]))

    def _write(self, family: str, kind: str) -> None:
        if family in self._halted:
            return
        topics = self.dice.sample(FAMILIES[family], self.dice.randrange(3))
        for topic in topics:
            self._ends[topic] += self.dice.randint(1, 4)
            self.kafka.topics[topic].end = self._ends[topic]
        is_inside = kind == "snapshot" and bool(topics)
        self.kafka.progress(
            self.kafka.place,
            {topic: self._ends[topic] for topic in topics},
            self._slots[family],
            is_part=kind == "part",
            snapshot=topics[:1] if is_inside else None,
        )
        self._is_open[family] = kind == "part" or is_inside
        if not self._is_open[family]:
            self.complete[family].append(self._now(family))

    def compact(self) -> None:
        """Remove all records of a key but the last, among those before some place."""
        before = self.dice.randint(0, self.kafka.place)
        last = {one.name: one.place for one in self.kafka.log if one.place < before}
        self.kafka.log = [one for one in self.kafka.log if one.place >= before or last[one.name] == one.place]

    def replace(self) -> None:
        """Let another slot take over the topics of one, which may be inside a transaction."""
        family = self.dice.choice([*FAMILIES])
        if family not in self._halted:
            self._slots[family] = family + str(int(self._slots[family][1:]) + 1)
            self._describe(family)
            self._write(family, "commit")

    def delete(self) -> None:
        """Delete a topic; its slot writes nothing until it is created again."""
        topic = self.dice.choice([*self.kafka.topics])
        self._halted |= {family for family, own in FAMILIES.items() if topic in own}
        if len(self.kafka.topics) > 1:
            del self.kafka.topics[topic]

    def create(self) -> None:
        """Create the deleted topics again."""
        for family in sorted(self._halted):
            for topic in FAMILIES[family]:
                if topic not in self.kafka.topics:
                    self._age[topic], self._ends[topic] = self._age[topic] + 1, 0
                    self.kafka.topics[topic] = PlannedTopic(f"{topic} {self._age[topic]}", 0)
            self._describe(family)
            self._halted.remove(family)
            self._write(family, "commit")

    def finish(self) -> None:
        """Complete what is open."""
        self.create()
        for family in FAMILIES:
            self._write(family, "commit")

    @property
    def is_changed(self) -> bool:
        """Whether a topic was deleted, so that an error may be right."""
        return any(self._age.values()) or self._ends.keys() != self.kafka.topics.keys()

    def is_a_cut(self, end: Offsets) -> bool:
        """Return whether an end is at a complete commit of each slot, as far as its topics are those of now."""
        return all(any(self._is_at(end, commit) for commit in self.complete[family]) for family in FAMILIES)

    def _is_at(self, end: Offsets, commit: Ends) -> bool:
        ids = ids_of(end)
        for topic, (age, offset) in commit.items():
            present = self.kafka.topics.get(topic)
            if present is None or ids.get(topic, number_of(present.id)) != number_of(present.id):
                continue
            if end.get(topic, {}).get("0", 0) != (offset if age == self._age[topic] else 0):
                return False
        return True


class Run:
    """A query in such a world, started anew where its position is in a topic that was deleted."""

    def __init__(self, world: World, limits: dict[str, str]) -> None:
        self._world, self._limits = world, limits
        self._begin()

    def _begin(self) -> None:
        self._query = Query(**self._limits)
        self._position = dict.fromkeys((T, U, V, X), 0)

    def again(self) -> None:
        """End the process, and start a new one."""
        try:
            self._query.again()
        except PositionUnavailable:
            assert self._world.is_changed
            self._begin()

    def read(self, *, fails: bool = False) -> bool:
        """Read the next batch and check it; return whether there was one. `fails`: a new process repeats it."""
        try:
            moves = self._repeated() if fails else self._query.batch()
        except (PositionUnavailable, HistoryMissing):
            assert self._world.is_changed
            self._begin()
            return True
        for topic, (start, end) in moves.items():
            assert start == self._position[topic]
            self._position[topic] = end
        if moves:
            assert self._query.reached is not None
            assert self._world.is_a_cut(self._query.reached), (self._query.reached, self._world.complete)
        return bool(moves)

    def _repeated(self) -> Moves:
        end = self._query.fail()
        self._world.write()
        if self._world.dice.random() < 0.3:
            self._world.compact()
        return self._query.repeat(end)

    def finish(self) -> None:
        """Read the rest, and assert that all rows were read."""
        for _ in range(200):
            if not self.read():
                break
        assert self._position == {topic: one.end for topic, one in self._world.kafka.topics.items()}


@pytest.mark.parametrize("seed", nightly_except(range(60), *range(2)))
@pytest.mark.parametrize(
    "happens",
    ["", "replaced", "failed", "replaced created", "replaced failed created"],
    ids=lambda one: one or "none",
)
def test_a_query_of_two_slots_reads_whole_commits(
    kafka: Planned, monkeypatch: pytest.MonkeyPatch, happens: str, seed: int
) -> None:
    dice = random.Random(f"{happens} {seed}")
    monkeypatch.setattr("cdcd.spark.progress_log.READ_OFFSETS", dice.choice([4, 20, 100_000]))
    monkeypatch.setattr("cdcd.spark.topic_ids.LOOK_AGAIN_S", 0.0)
    world = World(kafka, dice)
    for _ in range(dice.randrange(20)):
        world.write()
    run = Run(world, dice.choice([{}, {"maxCommits": "1"}, {"maxRows": "3"}]))
    for _ in range(30):
        for _ in range(dice.randrange(4)):
            world.write()
        if dice.random() < 0.2:
            run.again()
        if dice.random() < 0.2:
            world.compact()
            run.again()
        if "replaced" in happens and dice.random() < 0.1:
            world.replace()
        if "created" in happens and dice.random() < 0.1:
            world.delete()
        if "created" in happens and dice.random() < 0.3:
            world.create()
        run.read(fails="failed" in happens and dice.random() < 0.2)
    world.finish()
    run.finish()
