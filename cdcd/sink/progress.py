"""The progress record: the position that one Kafka transaction made durable, as JSON under the slot's name (F64).

In: a Progress.  Out: the bytes of key and value; and the inverse.
The keys `prepared_before`, `part`, `gap`, `topics_at`, `transactional_id`, `timeline_lsn`, `copy` and `signals_at`
are optional.
Format 1, without plugin, two_phase and slot_lsn, can be read too.
Invariant: a record is read whole or not at all: an unknown format, a missing or unknown key, a value of the wrong
type is ProgressUnreadable, because a guessed position loses or repeats data.
Must not: do I/O, read the clock.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Set
from typing import Any

from cdcd.bounded import json_of, printable
from cdcd.errors import ProgressUnreadable
from cdcd.lsn import Lsn, format_lsn, parse_lsn
from cdcd.model import CopyState, Gap, PartPosition, PreparedBefore, Progress, SourceIdentity
from cdcd.redaction import clean
from cdcd.sink.copy_record import UnknownKey, dumped_copy, loaded_copy, with_keys

__all__ = ["FIRST_OFFSETS", "FORMAT", "dump", "dump_offsets", "first_offsets_headers", "key_of", "load"]

FORMAT = 2
FIRST_OFFSETS = "cdcd.first_offsets"
_MAX_FIRST_OFFSETS_BYTES = 64 * 1024
"""The header with the first offsets of a Kafka transaction. Earlier versions refuse an unknown key of the value."""
_PHASES = frozenset({"snapshot", "streaming"})
_OF_FORMAT_2 = frozenset({"plugin", "two_phase", "slot_lsn"})
_KEYS_1 = frozenset(
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
_KEYS = {1: _KEYS_1, 2: _KEYS_1 | _OF_FORMAT_2}
_SOMETIMES = (
    "prepared_before",
    "part",
    "gap",
    "topics_at",
    "transactional_id",
    "timeline_lsn",
    "copy",
    "signals_at",
)
_PREPARED_BEFORE, _PART, _GAP, _TOPICS_AT, _TRANSACTIONAL_ID, _TIMELINE_LSN, _COPY, _SIGNALS_AT = _SOMETIMES
_NUMBERED_BY = "numbered_by"
_MOST_CHARACTERS = 500
_MOST_DIGITS = 10

_OTHER_VERSION = "run the version of cdcd that wrote the record, or a newer version"
_RESTORE = (
    "revoke the write ACLs of all other principals for the topic, produce cdcd's last record of this key again "
    "(kafka-console-consumer shows the record), then `cdcd resume`"
)
_FOREIGN = f"cdcd did not write this record: {_RESTORE}"
_NEWER_OR_FOREIGN = f"{_OTHER_VERSION}; if another program wrote it: {_RESTORE}"


def key_of(slot: str) -> bytes:
    """Return the record key of a slot's progress."""
    return slot.encode()


def key_of_joining(slot: str) -> bytes:
    """Return the record key by which the progress topic joins a Kafka transaction. No slot has a / in its name."""
    return f"{slot}/joining".encode()


def dump(progress: Progress) -> bytes:
    """Return the record value."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "system_identifier": progress.identity.system_identifier,
        "timeline": progress.identity.timeline,
        "database": progress.identity.database,
        "slot": progress.identity.slot,
        "plugin": progress.identity.plugin,
        "two_phase": progress.identity.two_phase,
        "slot_lsn": format_lsn(progress.identity.slot_lsn),
        "phase": progress.phase,
        "commit_lsn": format_lsn(progress.commit_lsn),
        "end_lsn": format_lsn(progress.end_lsn),
        "commit_us": progress.commit_us,
        "offsets": _dumped_offsets(progress.offsets),
        "snapshot_tables": list(progress.snapshot_tables),
    }
    if progress.identity.timeline_lsn:
        document[_TIMELINE_LSN] = format_lsn(progress.identity.timeline_lsn)
    if progress.prepared_before != PreparedBefore():
        document[_PREPARED_BEFORE] = {
            "until_lsn": format_lsn(progress.prepared_before.until_lsn),
            "undecided": [[xid, gid] for xid, gid in sorted(progress.prepared_before.undecided)],
        }
    if progress.part is not None:
        document[_PART] = {
            "commit_lsn": format_lsn(progress.part.commit_lsn),
            "tx_seq": progress.part.tx_seq,
        }
        numbered_by = _dumped_numbers(progress.part)
        if numbered_by:
            document[_PART][_NUMBERED_BY] = numbered_by
    if progress.gap is not None:
        document[_GAP] = _dumped_gap(progress.gap)
    if progress.topics_at >= 0:
        document[_TOPICS_AT] = progress.topics_at
    if progress.copy is not None:
        document[_COPY] = dumped_copy(progress.copy)
    if progress.signals_at >= 0:
        document[_SIGNALS_AT] = progress.signals_at
    if progress.transactional_id:
        document[_TRANSACTIONAL_ID] = progress.transactional_id
    return json.dumps(document, separators=(",", ":")).encode()


def dump_offsets(offsets: Mapping[str, Mapping[int, int]]) -> bytes:
    """Return the value of the header `FIRST_OFFSETS`: the offset of the first record in each partition, as JSON."""
    return json.dumps(_dumped_offsets(offsets), separators=(",", ":")).encode()


def first_offsets_headers(offsets: Mapping[str, Mapping[int, int]]) -> list[tuple[str, bytes]]:
    """Return the headers of a progress record.

    None for so many partitions that a record that fits by itself might be too large with it: readers do without.
    """
    first = dump_offsets(offsets)
    return [(FIRST_OFFSETS, first)] if len(first) <= _MAX_FIRST_OFFSETS_BYTES else []


def _dumped_offsets(offsets: Mapping[str, Mapping[int, int]]) -> dict[str, dict[str, int]]:
    return {
        topic: {str(partition): offset for partition, offset in sorted(partitions.items())}
        for topic, partitions in sorted(offsets.items())
    }


def load(value: bytes) -> Progress:
    """Return the Progress that `dump` was given. Raises ProgressUnreadable, which names the wrong key."""
    try:
        document = json_of(value)
    except ValueError as error:
        raise ProgressUnreadable("the progress record is not JSON, or too large", hint=_FOREIGN) from error
    if not isinstance(document, dict):
        raise ProgressUnreadable("the progress record is not a JSON object", hint=_FOREIGN)
    form = document.get("format")
    if not isinstance(form, int) or isinstance(form, bool) or form not in _KEYS:
        raise ProgressUnreadable(
            f"the progress record has format {printable(form)}, this version reads up to {FORMAT}",
            hint=_OTHER_VERSION,
        )
    odd = sorted(_KEYS[form] ^ (document.keys() - {*_SOMETIMES}))
    if odd:
        raise ProgressUnreadable(
            f"the progress record's keys are not those of format {form}: {clean(', '.join(odd), _MOST_CHARACTERS)}",
            hint=_FOREIGN if _KEYS[form] - document.keys() else _NEWER_OR_FOREIGN,
        )
    return Progress(
        identity=_identity(document),
        phase=_phase(document),
        commit_lsn=_lsn(document, "commit_lsn"),
        end_lsn=_lsn(document, "end_lsn"),
        commit_us=_number(document, "commit_us"),
        offsets=_offsets(document),
        snapshot_tables=_tables(document),
        prepared_before=_prepared_before(document),
        part=_part(document),
        gap=_gap(document),
        topics_at=_count(document, _TOPICS_AT) if _TOPICS_AT in document else -1,
        copy=_copy(document),
        transactional_id=_text(document, _TRANSACTIONAL_ID) if _TRANSACTIONAL_ID in document else "",
        signals_at=_count(document, _SIGNALS_AT) if _SIGNALS_AT in document else -1,
    )


def _dumped_gap(gap: Gap) -> dict[str, object]:
    return {
        "from_lsn": format_lsn(gap.from_lsn),
        "to_lsn": None if gap.to_lsn is None else format_lsn(gap.to_lsn),
        "reason": gap.reason,
        "decided_us": gap.decided_us,
    }


def _identity(document: Mapping[str, Any]) -> SourceIdentity:
    identity = SourceIdentity(
        system_identifier=_text(document, "system_identifier"),
        timeline=_count(document, "timeline"),
        database=_text(document, "database"),
        slot=_text(document, "slot"),
    )
    if document["format"] == 1:
        return identity
    two_phase = document["two_phase"]
    if two_phase is not None and not isinstance(two_phase, bool):
        raise _wrong("two_phase")
    return dataclasses.replace(
        identity,
        plugin=_text(document, "plugin"),
        two_phase=two_phase,
        slot_lsn=_lsn(document, "slot_lsn"),
        timeline_lsn=_lsn(document, _TIMELINE_LSN) if _TIMELINE_LSN in document else 0,
    )


def _wrong(key: str, cause: ValueError | None = None) -> ProgressUnreadable:
    hint = _NEWER_OR_FOREIGN if isinstance(cause, UnknownKey) else _FOREIGN
    return ProgressUnreadable(f"the progress record's {key} does not match the record's format", hint=hint)


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document[key]
    if not isinstance(value, str):
        raise _wrong(key)
    return value


def _number(document: Mapping[str, Any], key: str) -> int:
    value = document[key]
    if not _is_number(value):
        raise _wrong(key)
    return int(value)


def _is_number(value: object) -> bool:
    """Whether it is an integer of 64 bits, as offsets, positions and times are."""
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63


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
        is_partition = partition.isdecimal() and len(partition) <= _MOST_DIGITS
        if not is_partition or not _is_number(offset) or offset < 0:
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
    before = _inner(document, _PREPARED_BEFORE, {"until_lsn", "undecided"})
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


def _inner(
    document: Mapping[str, Any], name: str, keys: Set[str], sometimes: Set[str] = frozenset()
) -> Mapping[str, Any]:
    """Return a mapping of the record, which has exactly these keys and perhaps `sometimes`."""
    try:
        return with_keys(document[name], name, keys, sometimes)
    except ValueError as error:
        raise _wrong(name, error) from error


def _dumped_numbers(part: PartPosition) -> str:
    """Return both hashes in one text: an earlier version refuses another key, and such a text only with its part."""
    return f"{part.numbered_by}:{part.keys}" if part.keys else part.numbered_by


def _part(document: Mapping[str, Any]) -> PartPosition | None:
    if _PART not in document:
        return None
    part = _inner(document, _PART, {"commit_lsn", "tx_seq"}, {_NUMBERED_BY})
    try:
        numbered_by, _, keys = (_text(part, _NUMBERED_BY) if _NUMBERED_BY in part else "").partition(":")
        return PartPosition(_lsn(part, "commit_lsn"), _count(part, "tx_seq"), numbered_by, keys)
    except ProgressUnreadable as error:
        raise _wrong(_PART) from error


def _copy(document: Mapping[str, Any]) -> CopyState | None:
    if _COPY not in document:
        return None
    try:
        return loaded_copy(document[_COPY])
    except ValueError as error:
        raise _wrong(f"{_COPY}.{error}" if str(error) else _COPY, error) from error


def _gap(document: Mapping[str, Any]) -> Gap | None:
    if _GAP not in document:
        return None
    gap = _inner(document, _GAP, {"from_lsn", "to_lsn", "reason", "decided_us"})
    try:
        return Gap(
            from_lsn=_lsn(gap, "from_lsn"),
            to_lsn=None if gap["to_lsn"] is None else _lsn(gap, "to_lsn"),
            reason=_text(gap, "reason"),
            decided_us=_count(gap, "decided_us"),
        )
    except ProgressUnreadable as error:
        raise _wrong(_GAP) from error
