"""The campaign's judge finds each kind of planted fault in a correct history, and accuses no correct one.

The histories are made here: transactions of a small database, a copy of it, Kafka transactions that hold some of
them, partitions by key, and visits.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.campaign.checker import KINDS, change, judge
from tests.campaign.facts import (
    LISTS,
    REGISTERS,
    TOTALLED,
    Commit,
    Cut,
    History,
    Key,
    Place,
    ReadRecord,
    State,
    Visit,
    Write,
)

KEYS = [(table, str(number)) for table in (*TOTALLED, LISTS, REGISTERS) for number in range(3)]
BRIEF = [(table, "7") for table in TOTALLED]
"""Accounts that are opened and closed again and again."""
TOTAL = 600
PARTITIONS = 2
SEEDS = st.integers(0, 1 << 40)


class Database:
    """A random database: each transaction leaves the total of the accounts as it was."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.numbers = dice, iter(range(1, 1 << 30))
        self.state: State = {}
        self.commits: list[Commit] = []
        first = {TOTALLED[0]: "100", TOTALLED[1]: "100", LISTS: ""}
        self.commit([Write(key, first.get(key[0], str(next(self.numbers)))) for key in KEYS])

    def commit(self, writes: list[Write]) -> None:
        """Add a transaction."""
        number = len(self.commits) + 1
        for write in writes:
            change(self.state, write)
        self.commits.append(Commit(number, number * 10, tuple(writes)))

    def step(self) -> None:
        """Commit a random transaction: changes of accounts, and some more, each of which changes its row."""
        working = dict(self.state)
        writes = self.transfer(working)
        if self.dice.random() < 0.5:
            writes += self.opened_or_closed(working)
        for _ in range(self.dice.randrange(1, 4)):
            key = self.dice.choice([key for key in KEYS if key[0] not in TOTALLED])
            number = next(self.numbers)
            working[key] = f"{working[key]}{number}," if key[0] == LISTS else str(number)
            writes.append(Write(key, working[key]))
        self.commit(writes)

    def transfer(self, working: State) -> list[Write]:
        """Move an amount, often the same one, from an account to another one."""
        source, target = self.dice.sample([key for key in KEYS if key[0] in TOTALLED], 2)
        amount = self.dice.randrange(1, 4)
        return [
            written(working, source, int(working[source]) - amount),
            written(working, target, int(working[target]) + amount),
        ]

    def opened_or_closed(self, working: State) -> list[Write]:
        """Open an account, or close it."""
        key = self.dice.choice(BRIEF)
        other = self.dice.choice([key for key in KEYS if key[0] in TOTALLED])
        if key in working:
            amount = int(working[other]) + int(working.pop(key))
            return [Write(key, None), written(working, other, amount)]
        return [written(working, other, int(working[other]) - 5), written(working, key, 5)]


def written(state: State, key: Key, amount: int) -> Write:
    """Change an account."""
    state[key] = str(amount)
    return Write(key, state[key])


def place_of(key: Key) -> Place:
    """Return the partition of a key."""
    return f"topic.{key[0]}", zlib.crc32(key[1].encode()) % PARTITIONS


class Topics:
    """What a correct daemon writes."""

    def __init__(self) -> None:
        self.records: list[ReadRecord] = []
        self.ends: dict[Place, int] = {}
        self.cuts: list[Cut] = []

    def write(self, op: str, write: Write, xid: int) -> None:
        """Add a record."""
        place = place_of(write.key)
        offset = self.ends.get(place, 0)
        digest = zlib.crc32(f"{op} {write} {xid}".encode())
        self.records.append(ReadRecord(place, offset, op, write.key, write.value, xid, digest))
        self.ends[place] = offset + 1

    def truncate(self, place: Place) -> None:
        """Add a truncate event."""
        offset = self.ends.get(place, 0)
        self.records.append(ReadRecord(place, offset, "t", (place[0].rpartition(".")[2], "")))
        self.ends[place] = offset + 1

    def cut(self, end_lsn: int, *, is_whole: bool = True) -> None:
        """End a Kafka transaction: a marker takes an offset in each partition."""
        for place in self.ends:
            self.ends[place] += 1
        floor = 0 if is_whole else None
        self.cuts.append(Cut(len(self.cuts), end_lsn, dict(self.ends), is_whole, floor))


def history_of(seed: int) -> History:
    """Return a correct history: some transactions before the copy, several in each Kafka transaction after it."""
    dice = random.Random(seed)
    database, topics = Database(dice), Topics()
    for _ in range(dice.randrange(3)):
        database.step()
    if dice.random() < 0.3:  # a copy that was interrupted, and rows that were deleted before the next one
        for number, (key, value) in enumerate([*database.state.items(), ((LISTS, "9"), "7,")]):
            if number % 2:
                topics.write("r", Write(key, value), 0)
        topics.cut(0, is_whole=False)
        for table, partition in sorted({place_of(key) for key in [*KEYS, *BRIEF, (LISTS, "9")]}):
            topics.truncate((table, partition))
    for key, value in database.state.items():
        topics.write("r", Write(key, value), 0)
    topics.cut(0, is_whole=False)
    topics.cut(database.commits[-1].end_lsn)
    for number in range(dice.randrange(4, 12)):
        database.step()
        commit = database.commits[-1]
        for write in commit.writes:
            topics.write("d" if write.value is None else "u", write, commit.xid)
        if number % 3 == 2 or dice.random() < 0.4:
            topics.cut(commit.end_lsn)
    topics.cut(database.commits[-1].end_lsn)
    visit = Visit(dice.choice(topics.cuts), {(*one.place, one.offset): one.digest for one in topics.records})
    return History(
        tuple(database.commits), tuple(topics.records), tuple(topics.cuts), database.state, (visit,), TOTAL
    )


# --- planted faults: each returns the history with one fault -------------------------------------------------


def streamed(history: History, dice: random.Random) -> int:
    """Return the number of a record of the stream."""
    return dice.choice([n for n, one in enumerate(history.records) if one.op in ("u", "d")])


def lost(history: History, dice: random.Random) -> History:
    """A record that was never written."""
    at = streamed(history, dice)
    return replace(history, records=(*history.records[:at], *history.records[at + 1 :]))


def lost_between_cuts(history: History, dice: random.Random) -> History:
    """No record of a row between two cuts at which the row is the same: its whole life, or back to its value."""
    begin = first_streamed(history) - 1
    found = []
    for cut, following in pairwise(history.cuts[begin:]):
        between = [
            one
            for one in history.records
            if cut.offsets.get(one.place, 0) <= one.offset < following.offsets.get(one.place, 0)
        ]
        for key in {one.key for one in between}:
            if value_at(history, key, cut) == value_at(history, key, following):
                found.append([one for one in between if one.key == key])
    gone = dice.choice(found)
    return replace(history, records=tuple(one for one in history.records if one not in gone))


def value_at(history: History, key: Key, cut: Cut) -> str | None:
    """Return the value that a row has at a cut."""
    values = [
        one.value for one in history.records if one.key == key and one.offset < cut.offsets.get(one.place, 0)
    ]
    return values[-1] if values else None


def repeated(history: History, dice: random.Random) -> History:
    """A record that was written again, in the next Kafka transaction."""
    one = history.records[streamed(history, dice)]
    last = history.cuts[-1]
    again = replace(one, offset=last.offsets[one.place])
    ends = {**last.offsets, one.place: again.offset + 2}
    return replace(
        history,
        records=(*history.records, again),
        cuts=(*history.cuts, Cut(len(history.cuts), last.end_lsn, ends)),
    )


def reordered(history: History, dice: random.Random) -> History:
    """Two changes of a row in the wrong order. If it had a value twice, the judge may take it for another fault."""
    versions = Counter((write.key, write.value) for commit in history.commits for write in commit.writes)
    again = {key for (key, _), count in versions.items() if count > 1}
    pairs = [
        (n, m)
        for n, one in enumerate(history.records)
        for m, other in enumerate(history.records)
        if n < m and one.key == other.key and one.op == other.op == "u" and one.key not in again
    ]
    records = list(history.records)
    n, m = dice.choice(pairs)
    one, other = records[n], records[m]
    records[n], records[m] = replace(other, offset=one.offset), replace(one, offset=other.offset)
    return replace(history, records=tuple(records))


def first_streamed(history: History) -> int:
    """Return the number of the first cut after the copy."""
    return 1 + next(number for number, cut in enumerate(history.cuts) if cut.is_whole)


def torn(history: History, dice: random.Random) -> History:
    """A cut that lacks one partition's records of its last transaction."""
    candidates = []
    begin = first_streamed(history)
    for number, cut in enumerate(history.cuts[begin:-1], begin):
        xid = max(one.xid for one in history.records if one.offset < cut.offsets.get(one.place, 0))
        last = [one for one in history.records if one.xid == xid and one.offset < cut.offsets[one.place]]
        candidates += [
            (number, place, last)
            for place in sorted({one.place for one in last})
            if len({o.place for o in last}) > 1
        ]
    number, place, last = dice.choice(candidates)
    cut = history.cuts[number]
    first = min(one.offset for one in last if one.place == place)
    cuts = list(history.cuts)
    cuts[number] = replace(cut, offsets={**cut.offsets, place: first})
    return replace(history, cuts=tuple(cuts))


def early(history: History, dice: random.Random) -> History:
    """A progress record that has another position than its records."""
    number = dice.randrange(first_streamed(history), len(history.cuts) - 1)
    cuts = list(history.cuts)
    cuts[number] = replace(cuts[number], end_lsn=cuts[number].end_lsn - 10)
    return replace(history, cuts=tuple(cuts))


def stale(history: History, dice: random.Random) -> History:
    """A reader that does not find a record that is below its cut."""
    visit = Visit(history.cuts[-1], history.visits[0].digests)
    gone = dice.choice(sorted(visit.digests))
    digests = {at: digest for at, digest in visit.digests.items() if at != gone}
    return replace(history, visits=(replace(visit, digests=digests),))


def unstable(history: History, dice: random.Random) -> History:
    """A reader that finds a record with other bytes."""
    visit = Visit(history.cuts[-1], history.visits[0].digests)
    other = dice.choice(sorted(visit.digests))
    return replace(history, visits=(replace(visit, digests={**visit.digests, other: -1}),))


def aborted(history: History, dice: random.Random) -> History:
    """A change of no committed transaction."""
    records = list(history.records)
    at = streamed(history, dice)
    records[at] = replace(records[at], xid=99_999)
    return replace(history, records=tuple(records))


def is_longer(record: ReadRecord) -> bool:
    """Whether it is a list of two elements or more."""
    return record.key[0] == LISTS and (record.value or "").count(",") > 1


def shorter_list(history: History, dice: random.Random) -> History:
    """An element of a list that is gone in one record."""
    longer = [n for n, one in enumerate(history.records) if one.op == "u" and is_longer(one)]
    at = dice.choice(longer)
    records = list(history.records)
    records[at] = replace(records[at], value=(records[at].value or "").partition(",")[2] + "0,")
    return replace(history, records=tuple(records))


def unfinished(history: History, _dice: random.Random) -> History:
    """Topics without the last transaction."""
    return replace(history, commits=(*history.commits, Commit(10_000, 1 << 30, (Write(KEYS[0], "1"),))))


def emptied(history: History, dice: random.Random) -> History:
    """A truncate event in the stream."""
    at = streamed(history, dice)
    records = list(history.records)
    records[at] = replace(records[at], op="t", key=(records[at].key[0], ""), value=None)
    return replace(history, records=tuple(records))


PLANTS = {
    lost: {"lost"},
    lost_between_cuts: {"lost"},
    repeated: {"repeated"},
    reordered: {"reordered"},
    torn: {"torn"},
    early: {"cut"},
    stale: {"stale"},
    unstable: {"unstable"},
    aborted: {"invented"},
    emptied: {"invented"},
    shorter_list: {"list"},
    unfinished: {"end"},
}
"""Each planted fault, and the finding that there has to be among others."""


@given(SEEDS)
def test_a_correct_history_is_not_accused(seed: int) -> None:
    assert judge(history_of(seed)) == []


@pytest.mark.parametrize("plant", list(PLANTS), ids=lambda plant: plant.__name__)
@given(seed=SEEDS)
def test_a_planted_fault_is_found(plant, seed: int) -> None:
    try:
        broken = plant(history_of(seed), random.Random(seed))
    except (IndexError, ValueError):  # this history has no place for it
        return
    found = {one.kind for one in judge(broken)}
    assert PLANTS[plant] <= found
    assert found <= KINDS.keys()


def test_a_history_without_cuts_is_accused() -> None:
    history = history_of(1)
    assert "end" in {one.kind for one in judge(replace(history, cuts=()))}


def test_an_offset_that_a_reader_had_passed_is_found() -> None:
    history = history_of(1)
    records = (*history.records[1:], history.records[0])
    assert "unstable" in {one.kind for one in judge(replace(history, records=records))}


@pytest.mark.parametrize("whole_at", [1_000, 1_500])
def test_a_row_that_lived_after_an_interrupted_copy_is_lost_if_no_reader_saw_it(whole_at: int) -> None:
    """The stream begins at 100, and the rest was copied as of 1000: the first whole cut may be much later."""
    key = REGISTERS, "9"
    commits = (Commit(1, 1_200, (Write(key, "a"),)), Commit(2, 1_300, (Write(key, None),)))
    ends = dict.fromkeys((100, whole_at, 1_500))
    cuts = tuple(Cut(n, end, {}, end >= 1_000, floor=1_000) for n, end in enumerate(ends))
    found = [one.kind for one in judge(History(commits, (), cuts, {}))]
    assert found.count("lost") == 2
