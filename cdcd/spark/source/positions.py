"""Where a query starts and ends: options to a `Position`, and a position to a number of commits.

In: the options startingX and endingX; complete commits in order.  Out: how many of them are before the position.
Invariant: a position is the end of a complete commit. One by LSN or time is before the first Kafka transaction that
has a commit from there on, both as a start and as an end, so that ranges which adjoin have each commit once.
Must not: do I/O, read the clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import accumulate

from cdcd.errors import PositionUnavailable, SnapshotIncomplete
from cdcd.lsn import parse_lsn
from cdcd.spark.source.cuts import Commit, Offsets, normal, without_start

EARLIEST, LATEST, SNAPSHOT_END = "earliest", "latest", "snapshot_end"
OFFSETS, TIME, LSN = "offsets", "time", "lsn"
POSITION_OPTIONS = tuple(
    side + by for side in ("starting", "ending") for by in ("Offsets", "Timestamp", "Lsn")
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_OLDER_HINT = (
    "start at `earliest`, at `snapshot_end`, or at a later position; to get the state of the tables before that "
    "position, take a new snapshot: `cdcd resnapshot`, or `cdcd snapshot start --all --recopy`"
)
_NEWER_HINT = (
    "use `latest` or an earlier position, or read again when cdcd has written it (the lag in /status); an LSN of "
    "another server is not a valid position"
)
_OTHER_TOPIC_HINT = (
    "a topic was recreated, or the offsets are of another cluster: start at `earliest` with a new checkpoint, a "
    "mirror with an empty target"
)
_NO_SNAPSHOT_HINT = "start at `earliest`, or by an LSN or a time"


@dataclass(frozen=True, slots=True)
class Position:
    """A start or an end. `given`: the option, for errors. `value`: an LSN, or microseconds since the Unix epoch."""

    kind: str
    given: str = ""
    value: int = 0
    offsets: Offsets = field(default_factory=dict)


def position_of(options: Mapping[str, str], side: str) -> Position | None:
    """Return the position of a side, "starting" or "ending", of options with names in lower case; None: not given.

    Raises ValueError with the problem.
    """
    named = [side + by for by in _PARSERS if (side + by).lower() in options]
    if not named:
        return None
    if len(named) > 1:
        raise ValueError(f"options {' and '.join(named)} exclude each other")
    name, text = named[0], options[named[0].lower()].strip()
    parse, wanted = _PARSERS[name.removeprefix(side)]
    try:
        position = parse(text, f"{name} {text}")
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise ValueError(f"option {name} has to be {wanted}") from None
    if side == "ending" and position.kind == EARLIEST:
        raise ValueError(f"option {name} has to be latest, snapshot_end, or offsets")
    return position


def _from_offsets(text: str, given: str) -> Position:
    if text in (EARLIEST, LATEST, SNAPSHOT_END):
        return Position(text, given)
    offsets = without_start(normal(json.loads(text)))
    if any(offset < 0 for partitions in offsets.values() for offset in partitions.values()):
        raise ValueError
    return Position(OFFSETS, given.split()[0], offsets=offsets)


def _from_time(text: str, given: str) -> Position:
    if text.isdecimal():
        return Position(TIME, given, int(text) * 1000)
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError
    return Position(TIME, given, (moment - _EPOCH) // _US)


def _from_lsn(text: str, given: str) -> Position:
    return Position(LSN, given, parse_lsn(text))


_PARSERS: Mapping[str, tuple[Callable[[str, str], Position], str]] = {
    "Offsets": (_from_offsets, 'earliest, latest, snapshot_end, or offsets as {"TOPIC": {"0": OFFSET}}'),
    "Timestamp": (_from_time, "a time in ISO 8601 with its zone, or milliseconds since 1970"),
    "Lsn": (_from_lsn, "an LSN as PostgreSQL prints it, as 16/B374D848"),
}


def records_before(
    position: Position,
    commits: Sequence[Commit],
    parts: Sequence[Commit],
    *,
    is_whole: bool,
    now_us: int | None = None,
) -> int:
    """Return the number of commits before a position. `is_whole`: there are none before the first one.

    `parts`: the newest record of each slot whose records are not complete. `now_us`: up to this time, the newest
    commit is a position also where a later commit may still come; None for an end.
    Raises PositionUnavailable, SnapshotIncomplete.
    """
    if position.kind == LATEST:
        return len(commits)
    if position.kind == SNAPSHOT_END:
        return _after_snapshot(position, commits, parts)
    for before, reached in enumerate(_reached(position, commits)):
        if reached >= position.value:
            if not before and not is_whole:
                raise _older(position)
            return before
    known = now_us or 0 if position.kind == TIME else _known_lsn(commits, parts)
    if not commits or position.value > known:
        raise newer(position)
    return len(commits)


def _reached(position: Position, commits: Sequence[Commit]) -> list[int]:
    """Return LSN or time of the last commit up to each one. One without a transaction has the time 0."""
    if position.kind == LSN:
        return [parse_lsn(one.commit_lsn) for one in commits]
    return list(accumulate((one.commit_us for one in commits), max))


def _known_lsn(commits: Sequence[Commit], parts: Sequence[Commit]) -> int:
    """Return the LSN before which all commits are in Kafka, of several slots the highest one.

    It is that of each slot's last record: after a failover it may be lower than before (F58).
    """
    slots = dict(commits[-1].slot_positions) if commits else {}
    slots |= {one.slot: one.position for one in parts}
    return max((one.end_lsn for one in slots.values()), default=0)


def _after_snapshot(position: Position, commits: Sequence[Commit], parts: Sequence[Commit]) -> int:
    for before, commit in reversed(list(enumerate(commits, 1))):
        if commit.ends_snapshot:
            return before
    if any(one.snapshot is not None for one in parts):
        raise SnapshotIncomplete("the snapshot is not complete")
    raise PositionUnavailable(
        "the progress records have no end of a snapshot", hint=_NO_SNAPSHOT_HINT, position=position.given
    )


def _older(position: Position) -> PositionUnavailable:
    return PositionUnavailable(
        "the position is older than the progress records in Kafka", hint=_OLDER_HINT, position=position.given
    )


def removed_error(
    position: Position, topic: str, partition: str, offset: int, first: int
) -> PositionUnavailable:
    """Return the error of a position whose records Kafka has removed."""
    return PositionUnavailable(
        "Kafka has removed records after this position (the topic's retention)",
        hint=_OLDER_HINT,
        position=position.given,
        topic=topic,
        partition=partition,
        offset=offset,
        first_offset=first,
    )


def newer(position: Position, **place: object) -> PositionUnavailable:
    """Return the error of a position that is not in Kafka yet."""
    hint = _OTHER_TOPIC_HINT if position.kind == OFFSETS else _NEWER_HINT
    return PositionUnavailable(
        "the position is newer than all records in Kafka", hint=hint, position=position.given, **place
    )
