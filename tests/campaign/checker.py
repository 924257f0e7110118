"""The judge of the campaign: what read_committed readers saw, against the transactions of PostgreSQL. Pure.

In: a `History`.  Out: findings.
Invariant: no code of cdcd, and none of `tests/faults/oracle.py`. Lists and registers are judged from the records
alone, the other rules against the committed transactions in their order.
A key's versions are the values that its committed changes gave it, each change one version.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from tests.campaign.facts import (
    LISTS,
    REGISTERS,
    TOTALLED,
    Cut,
    Finding,
    History,
    Key,
    Place,
    ReadRecord,
    State,
    Write,
)

Version = tuple[int, str | None]
"""A transaction, and the value that it gave a row."""
KINDS = {
    "lost": "a committed change that no reader saw",
    "repeated": "a change that a reader saw twice",
    "invented": "a change of no committed transaction",
    "reordered": "changes of a key in another order than in PostgreSQL",
    "torn": "a transaction of which a cut has only a part",
    "cut": "a cut that is no state that PostgreSQL had",
    "total": "a cut with another total of the accounts",
    "list": "a list that is not the one before it and the appended elements",
    "register": "a register with a value that it had before",
    "unstable": "a reader that found other records than another reader",
    "stale": "a reader that did not find records that were visible before",
    "end": "topics that differ from the tables at the end",
    "unreadable": "a record that cannot be decoded",
    "stuck": "cdcd halted, ended by itself, or did not catch up",
}
"""Each kind of finding."""


def judge(history: History) -> list[Finding]:
    """Return all findings."""
    return [
        *readable(history.records),
        *in_order_of_offsets(history.records),
        *versions(history),
        *lists(history.records),
        *registers(history.records),
        *truncated(history),
        *whole(history),
        *states(history),
        *visits(history),
        *the_end(history),
    ]


def readable(records: Iterable[ReadRecord]) -> Iterator[Finding]:
    """Each record can be decoded."""
    return (Finding("unreadable", str(record)) for record in records if record.op == "?")


def in_order_of_offsets(records: Iterable[ReadRecord]) -> Iterator[Finding]:
    """A reader gets each offset of a partition once, and never a lower one later."""
    last: dict[Place, int] = {}
    for record in records:
        if record.offset <= last.get(record.place, -1):
            yield Finding("unstable", f"{record}: a reader had passed this offset")
        last[record.place] = record.offset


# --- the versions of each key --------------------------------------------------------------------------------


def versions(history: History) -> Iterator[Finding]:
    """Each key has its committed versions, each once, in their order, in one partition."""
    copied_to = next((cut.copied_to for cut in history.cuts if cut.copied_to is not None), None)
    committed: dict[Key, list[Version]] = defaultdict(list)
    before_cut: Counter[Key] = Counter()
    for commit in history.commits:
        for write in commit.writes:
            committed[write.key].append((commit.xid, write.value))
            before_cut[write.key] += copied_to is None or commit.end_lsn <= copied_to
    seen: dict[Key, list[ReadRecord]] = defaultdict(list)
    for record in after_copy_began(history.records):
        if record.op in ("c", "u", "d", "r"):
            seen[record.key].append(record)
    for key in committed.keys() | seen.keys():
        yield from versions_of(key, committed[key], before_cut[key], seen[key])


def after_copy_began(records: Iterable[ReadRecord]) -> list[ReadRecord]:
    """Return the records without those of a table's partition before its last truncate event.

    No session truncates: the event precedes a copy that begins again after one that was interrupted.
    """
    left: dict[Place, list[ReadRecord]] = {}
    for record in records:
        if record.op == "t":
            left[record.place] = []
        else:
            left.setdefault(record.place, []).append(record)
    return [record for of_place in left.values() for record in of_place]


def truncated(history: History) -> Iterator[Finding]:
    """A truncate event is in a copy only: before the first cut that is a whole state."""
    first = next((cut for cut in history.cuts if cut.is_whole), None)
    for record in history.records:
        if record.op == "t" and first and record.offset >= first.offsets.get(record.place, 0):
            yield Finding("invented", f"{record}: no session truncates")


def versions_of(
    key: Key, committed: Sequence[Version], before_cut: int, seen: Sequence[ReadRecord]
) -> Iterator[Finding]:
    """Compare the versions of one key. Copied rows stand for all of its versions up to the copy.

    `before_cut`: how many versions are up to where the tables were copied. No other one is before the copy.
    """
    if len({record.place for record in seen}) > 1:
        yield Finding("reordered", f"{key[0]} {key[1]} is in several partitions")
    copied = [record for record in seen if record.op == "r"]
    streamed = [(record.xid, record.value) for record in seen if record.op != "r"]
    if copied and seen[: len(copied)] != copied:
        yield Finding("repeated", f"{copied[-1]}: the row was copied after changes of it")
    wanted = committed_after_copy(committed, before_cut, copied, streamed)
    if streamed != wanted:
        yield from differences(key, wanted, streamed, committed)


def committed_after_copy(
    committed: Sequence[Version], before_cut: int, copied: Sequence[ReadRecord], streamed: Sequence[Version]
) -> list[Version]:
    """Return the versions that have to be streamed after a copy, so that the copied row is the version before them.

    A key without a copied row did not exist at the copy: its versions up to a deletion may be before the copy, as far
    as `before_cut` has them. Where several versions have the copied value, the one whose next version was streamed
    first counts, then the one that leaves the least difference.
    """
    value = copied[-1].value if copied else None
    begins = [begin for begin in range(before_cut + 1) if before(committed, begin) == value] or [0]
    fitting = len(committed) - len(streamed)
    if fitting in begins and list(committed[fitting:]) == list(streamed):
        return list(streamed)
    begins = [
        begin for begin in begins if streamed and committed[begin : begin + 1] == streamed[:1]
    ] or begins
    seen = Counter(streamed)

    def difference(begin: int) -> int:
        wanted = Counter(committed[begin:])
        return (wanted - seen).total() + (seen - wanted).total()

    return list(committed[min(begins, key=difference) :])


def before(committed: Sequence[Version], begin: int) -> str | None:
    """Return the value before a version."""
    return committed[begin - 1][1] if begin else None


def differences(
    key: Key,
    wanted: Sequence[Version],
    streamed: Sequence[Version],
    committed: Sequence[Version],
) -> Iterator[Finding]:
    """Name the difference of two sequences of versions; a version is a transaction and a value."""
    name = f"{key[0]} {key[1]}"
    missing, extra = Counter(wanted), Counter(streamed)
    for (xid, _), count in (missing - extra).items():
        yield Finding("lost", f"{name}: {count} of transaction {xid}")
    for version, count in (extra - missing).items():
        kind = "repeated" if version in committed else "invented"
        yield Finding(kind, f"{name}: {count} of transaction {version[0]}")
    if missing == extra:
        at = next(n for n, pair in enumerate(zip(wanted, streamed, strict=True)) if pair[0] != pair[1])
        yield Finding(
            "reordered", f"{name}: version {at} is of transaction {streamed[at][0]}, not {wanted[at][0]}"
        )


def lists(records: Iterable[ReadRecord]) -> Iterator[Finding]:
    """Each record of a list has the list before it and one more element; an element is in a list once."""
    last: dict[Key, str] = {}
    for record in after_copy_began(records):
        if record.key[0] != LISTS or record.value is None or record.op in ("x", "?"):
            continue
        elements, earlier = record.value.split(",")[:-1], last.get(record.key)
        if len(set(elements)) < len(elements):
            yield Finding("list", f"{record}: an element is there twice")
        if earlier is not None and not is_appended(earlier, record.value):
            yield Finding("list", f"{record}: not one more element than before")
        last[record.key] = record.value


def is_appended(earlier: str, later: str) -> bool:
    """Whether a list is another one with one more element at its end."""
    return later.startswith(earlier) and later.count(",") == earlier.count(",") + 1


def registers(records: Iterable[ReadRecord]) -> Iterator[Finding]:
    """No register gets a value again."""
    values: set[tuple[Key, str | None]] = set()
    for record in after_copy_began(records):
        if record.key[0] != REGISTERS or record.op not in ("c", "u", "r"):
            continue
        if (record.key, record.value) in values:
            yield Finding("register", f"{record}: it had this value before")
        values.add((record.key, record.value))


# --- cuts ----------------------------------------------------------------------------------------------------


def whole(history: History) -> Iterator[Finding]:
    """All changes of a transaction become visible with one cut, and cuts never go back."""
    cuts = history.cuts
    for earlier, later in pairwise(cuts):
        back = [place for place, offset in earlier.offsets.items() if later.offsets.get(place, 0) < offset]
        if back or (earlier.is_whole and later.is_whole and later.end_lsn < earlier.end_lsn):
            yield Finding("cut", f"cut {later.number} goes back behind cut {earlier.number}")
    first: dict[int, int] = {}
    for number, cut in enumerate(cuts_of(history.records, cuts)):
        for record in cut:
            if record.op in ("c", "u", "d") and first.setdefault(record.xid, number) != number:
                yield Finding("torn", f"{record}: another part of the transaction was in an earlier cut")


def cuts_of(records: Sequence[ReadRecord], cuts: Sequence[Cut]) -> Iterator[list[ReadRecord]]:
    """Yield the records that each cut has and no earlier one, then those that no cut has, by partition and offset."""
    waiting: dict[Place, list[ReadRecord]] = defaultdict(list)
    for record in sorted(records, key=lambda one: one.offset, reverse=True):
        waiting[record.place].append(record)
    for cut in cuts:
        found = []
        for place, offset in cut.offsets.items():
            queue = waiting[place]
            while queue and queue[-1].offset < offset:
                found.append(queue.pop())
        yield found
    yield [record for queue in waiting.values() for record in reversed(queue)]


def states(history: History) -> Iterator[Finding]:
    """Each cut is the state that PostgreSQL had after the transactions up to its position, with the same total."""
    topics, tables, differing = Topics(), State(), set[Key]()
    total, done = 0, 0
    for cut, records in zip(history.cuts, cuts_of(history.records, history.cuts), strict=False):
        for write in (write for record in records for write in topics.writes(record)):
            total += change(topics.state, write)
            compare(differing, write.key, topics.state, tables)
        while done < len(history.commits) and history.commits[done].end_lsn <= cut.end_lsn:
            for write in history.commits[done].writes:
                change(tables, write)
                compare(differing, write.key, topics.state, tables)
            done += 1
        if not cut.is_whole:
            continue
        if differing:
            names = ", ".join(sorted(f"{table} {key}" for table, key in differing)[:4])
            yield Finding("cut", f"cut {cut.number}: {len(differing)} rows differ from PostgreSQL's: {names}")
        if total != history.total:
            yield Finding("total", f"cut {cut.number}: the total is {total}, not {history.total}")


class Topics:
    """The rows that the topics have."""

    def __init__(self) -> None:
        self.state: State = {}
        self._places: dict[Key, Place] = {}

    def writes(self, record: ReadRecord) -> list[Write]:
        """Return what a record changes; a truncate event removes the rows of its table in its partition."""
        if record.op == "t":
            return [Write(key, None) for key in self.state if self._places[key] == record.place]
        if record.op not in ("c", "u", "d", "r"):
            return []
        self._places[record.key] = record.place
        return [Write(record.key, record.value)]


def change(state: State, write: Write) -> int:
    """Apply a change; return by how much it changed the total of the accounts."""
    before_it = state.pop(write.key, None)
    if write.value is not None:
        state[write.key] = write.value
    if write.key[0] not in TOTALLED:
        return 0
    return int(write.value or 0) - int(before_it or 0)


def compare(differing: set[Key], key: Key, one: Mapping[Key, str], other: Mapping[Key, str]) -> None:
    """Note whether a row differs between two states."""
    (differing.add if one.get(key) != other.get(key) else differing.discard)(key)


# --- readers, and the end ------------------------------------------------------------------------------------


def visits(history: History) -> Iterator[Finding]:
    """A reader that begins later finds below a cut what the following reader found there."""
    followed = {(*record.place, record.offset): record.digest for record in history.records}
    for number, visit in enumerate(history.visits):
        offsets = visit.cut.offsets
        wanted = {at: it for at, it in followed.items() if at[2] < offsets.get(at[:2], 0)}
        found = {at: it for at, it in visit.digests.items() if at[2] < offsets.get(at[:2], 0)}
        if missing := wanted.keys() - found.keys():
            yield Finding(
                "stale", f"visit {number}: {len(missing)} records are not there, the first at {min(missing)}"
            )
        others = [at for at, it in found.items() if wanted.get(at) != it]
        if others:
            yield Finding(
                "unstable", f"visit {number}: {len(others)} other records, the first at {min(others)}"
            )


def the_end(history: History) -> Iterator[Finding]:
    """At the end the last cut has all records and all transactions, and the topics are the tables."""
    last = history.cuts[-1] if history.cuts else None
    if last is None or not last.is_whole:
        yield Finding("end", "no progress record of a whole state")
    elif history.commits and last.end_lsn < history.commits[-1].end_lsn:
        yield Finding("end", "the last cut is before the last transaction")
    uncovered = [
        record for record in history.records if last and record.offset >= last.offsets.get(record.place, 0)
    ]
    if uncovered:
        yield Finding("end", f"{len(uncovered)} records that no cut has: {uncovered[0]}")
    topics = Topics()
    for record in history.records:
        for write in topics.writes(record):
            change(topics.state, write)
    rows = topics.state
    differing = [key for key in rows.keys() | history.rows.keys() if rows.get(key) != history.rows.get(key)]
    if differing:
        table, key = min(differing)
        yield Finding("end", f"{len(differing)} rows differ from the tables, the first is {table} {key}")
