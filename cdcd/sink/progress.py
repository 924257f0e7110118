"""The progress record: what one Kafka transaction made durable, as JSON under the slot's name (F64).

In: a Progress.  Out: the bytes of key and value, and back.
`prepared_before` is a key only where there is something to say, as for few slots ever: a version of cdcd that does
not know it reads all others, and refuses these.
Invariant: a record is read whole or not at all: an unknown format, a missing or unknown key, a value of the
wrong kind is ProgressUnreadable, because a guessed position loses or repeats data.
Must not: do I/O, read the clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cdcd.errors import ProgressUnreadable
from cdcd.lsn import Lsn, format_lsn, parse_lsn
from cdcd.model import PreparedBefore, Progress, SourceIdentity

__all__ = ["FORMAT", "dump", "key_of", "load"]

FORMAT = 1
_PHASES = frozenset({"snapshot", "streaming"})
_KEYS = frozenset(
    {
        "format",
        "system_identifier",
        "timeline",
        "database",
        "slot",
        "phase",
        "commit_lsn",
        "end_lsn",
        "commit_us",
        "offsets",
        "snapshot_tables",
    }
)
_PREPARED_BEFORE = "prepared_before"


def key_of(slot: str) -> bytes:
    """Return the record key of a slot's progress."""
    return slot.encode()


def dump(progress: Progress) -> bytes:
    """Return the record value."""
    document = {
        "format": FORMAT,
        "system_identifier": progress.identity.system_identifier,
        "timeline": progress.identity.timeline,
        "database": progress.identity.database,
        "slot": progress.identity.slot,
        "phase": progress.phase,
        "commit_lsn": format_lsn(progress.commit_lsn),
        "end_lsn": format_lsn(progress.end_lsn),
        "commit_us": progress.commit_us,
        "offsets": {
            topic: {str(partition): offset for partition, offset in sorted(partitions.items())}
            for topic, partitions in sorted(progress.offsets.items())
        },
        "snapshot_tables": list(progress.snapshot_tables),
    }
    if progress.prepared_before != PreparedBefore():
        document[_PREPARED_BEFORE] = {
            "until_lsn": format_lsn(progress.prepared_before.until_lsn),
            "undecided": [[xid, gid] for xid, gid in sorted(progress.prepared_before.undecided)],
        }
    return json.dumps(document, separators=(",", ":")).encode()


def load(value: bytes) -> Progress:
    """Return what `dump` was given. Raises ProgressUnreadable, which names the key that is wrong."""
    try:
        document = json.loads(value)
    except ValueError as error:
        raise ProgressUnreadable(
            "the progress record is not JSON", hint="the topic holds foreign data"
        ) from error
    if not isinstance(document, dict):
        raise ProgressUnreadable(
            "the progress record is not a JSON object", hint="the topic holds foreign data"
        )
    if document.get("format") != FORMAT:
        raise ProgressUnreadable(
            f"the progress record has format {document.get('format')!r}, this version reads {FORMAT}",
            hint="run the version of cdcd that wrote it, or a newer one",
        )
    odd = sorted(_KEYS ^ (document.keys() - {_PREPARED_BEFORE}))
    if odd:
        raise ProgressUnreadable(
            f"the progress record's keys are not those of format {FORMAT}: {', '.join(odd)}"
        )
    return Progress(
        identity=SourceIdentity(
            system_identifier=_text(document, "system_identifier"),
            timeline=_count(document, "timeline"),
            database=_text(document, "database"),
            slot=_text(document, "slot"),
        ),
        phase=_phase(document),
        commit_lsn=_lsn(document, "commit_lsn"),
        end_lsn=_lsn(document, "end_lsn"),
        commit_us=_number(document, "commit_us"),
        offsets=_offsets(document),
        snapshot_tables=_tables(document),
        prepared_before=_prepared_before(document),
    )


def _wrong(key: str) -> ProgressUnreadable:
    return ProgressUnreadable(f"the progress record's {key} is not what format {FORMAT} says")


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document[key]
    if not isinstance(value, str):
        raise _wrong(key)
    return value


def _number(document: Mapping[str, Any], key: str) -> int:
    value = document[key]
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(key)
    return value


def _count(document: Mapping[str, Any], key: str) -> int:
    value = _number(document, key)
    if value < 0:
        raise _wrong(key)
    return value


def _lsn(document: Mapping[str, Any], key: str) -> Lsn:
    try:
        return parse_lsn(_text(document, key))
    except ValueError as error:
        raise _wrong(key) from error


def _phase(document: Mapping[str, Any]) -> str:
    phase = _text(document, "phase")
    if phase not in _PHASES:
        raise _wrong("phase")
    return phase


def _offsets(document: Mapping[str, Any]) -> dict[str, dict[int, int]]:
    offsets = document["offsets"]
    if not isinstance(offsets, dict):
        raise _wrong("offsets")
    return {topic: _partitions(partitions) for topic, partitions in offsets.items()}


def _partitions(partitions: object) -> dict[int, int]:
    if not isinstance(partitions, dict):
        raise _wrong("offsets")
    for partition, offset in partitions.items():
        if not partition.isdecimal() or not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise _wrong("offsets")
    return {int(partition): offset for partition, offset in partitions.items()}


def _tables(document: Mapping[str, Any]) -> tuple[str, ...]:
    tables = document["snapshot_tables"]
    if not isinstance(tables, list) or not all(isinstance(table, str) for table in tables):
        raise _wrong("snapshot_tables")
    return tuple(tables)


def _prepared_before(document: Mapping[str, Any]) -> PreparedBefore:
    if _PREPARED_BEFORE not in document:
        return PreparedBefore()
    before = document[_PREPARED_BEFORE]
    if not isinstance(before, dict) or before.keys() != {"until_lsn", "undecided"}:
        raise _wrong(_PREPARED_BEFORE)
    undecided = before["undecided"]
    if not isinstance(undecided, list) or not all(map(_is_xid_and_gid, undecided)):
        raise _wrong(f"{_PREPARED_BEFORE}.undecided")
    try:
        until_lsn = parse_lsn(_text(before, "until_lsn"))
    except (ValueError, ProgressUnreadable) as error:
        raise _wrong(f"{_PREPARED_BEFORE}.until_lsn") from error
    return PreparedBefore(until_lsn, frozenset((xid, gid) for xid, gid in undecided))


def _is_xid_and_gid(one: object) -> bool:
    if not isinstance(one, list) or len(one) != 2:
        return False
    xid, gid = one
    return isinstance(xid, int) and not isinstance(xid, bool) and 0 <= xid < 1 << 32 and isinstance(gid, str)
