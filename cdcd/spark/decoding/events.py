"""Changes as values: decode a framed key and an Avro envelope into an `Event` with its position in the order.

In: Kafka keys and values, envelope schemas by id.  Out: events whose column values are the wire's numbers, texts
and bytes.  Invariant: `Sequence` orders all changes of a database: timeline (a later one reuses LSNs of an
earlier one, F58), commit LSN, snapshot rows before the transactions of the same LSN (the first transaction may
begin exactly at the consistent point), tx_seq.
Must not: do I/O; a schema that is not given is an error.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import fastavro

from cdcd.errors import GapInTopic, SourceMismatch, SourceTimeline, SparkReadError
from cdcd.lsn import parse_lsn
from cdcd.spark.decoding.schemas import HEADER_BYTES, Schema, parsed_physical, schema_id

Row = dict[str, Any]
SNAPSHOT, STREAM = 0, 1
"""The phases of a Sequence."""
LOST = "x"
"""The operation of a line of the history behind which changes are missing: the table was parked, or the stream has a
gap. No record has it."""
BEGUN_ANEW = "a"
"""The operation of a line of the history: the TRUNCATE of a copy that began before the copy before it was complete,
so that the TRUNCATE of that one ends no row. No record has it."""
TRUNCATES = ("t", BEGUN_ANEW)
"""The operations of a TRUNCATE; those of the phase SNAPSHOT are of copies."""
ENDS = (*TRUNCATES, LOST)
"""The operations that end all rows of a table."""


class Sequence(NamedTuple):
    """The position of a change among all changes of its database. `timeline` 0: from a version without timelines."""

    timeline: int
    commit_lsn: int
    phase: int
    tx_seq: int


_NEVER_HAPPENED = (
    "copy the tables again (`cdcd resnapshot`; a table with `include: false`: `cdcd snapshot start --table "
    "SCHEMA.TABLE --recopy`), then start the mirror with --accept-gaps; without a new snapshot the mirror would "
    "retain changes that are not in the server's history"
)
_SERVER_REPLACED = (SourceTimeline.code, SourceMismatch.code)
BEGINNING = Sequence(0, -1, SNAPSHOT, 0)

_TOO_LARGE = (
    "raise the limits, then copy the tables again (`cdcd resnapshot`); or start the mirror with --accept-gaps: it "
    "then has the old version of the row, or no row"
)


class Event(NamedTuple):
    """One change. `key` has no header, None for a table without a key; rows are keyed by Avro field name."""

    sequence: Sequence
    op: str
    key: bytes | None
    before: Row | None
    after: Row | None
    unchanged: tuple[str, ...]
    special: Mapping[str, str]
    schema_id: int
    commit_us: int | None = None
    """The time of the commit (Unix epoch, microseconds), None if unknown."""


def sequence_of(op: str, source: Mapping[str, Any]) -> Sequence:
    """Return the position of a change from its envelope's `source`."""
    is_snapshot = op == "r" or source.get("snapshot") not in (None, "false")
    phase = SNAPSHOT if is_snapshot else STREAM
    return Sequence(source.get("timeline", 0), source["commit_lsn"], phase, source["tx_seq"])


def commit_us_of(source: Mapping[str, Any]) -> int | None:
    """Return the time of a change's commit from its envelope's `source`, None if it is not known."""
    if source.get("ts_us"):
        return int(source["ts_us"])
    return source["ts_ms"] * 1000 if source.get("ts_ms") else None


def check_gap(event: Event, topic: str, *, is_accepted: bool) -> None:
    """Raise GapInTopic for a marker of a gap that a reader must not ignore.

    A gap without an end precedes a new snapshot: a truncate event and all rows follow, so nothing is missing.
    """
    if event.op != "g" or "gap.to_lsn" not in event.special or is_accepted:
        return
    from_lsn, to_lsn = (parse_lsn(event.special[f"gap.{name}"]) for name in ("from_lsn", "to_lsn"))
    reason = event.special["gap.reason"]
    if "gap.dead_letters" in event.special:  # F65
        letters = event.special["gap.dead_letters"]
        message, hint = (
            f"a change of one row is missing because it was too large for Kafka: see {letters}",
            _TOO_LARGE,
        )
    elif reason in _SERVER_REPLACED or to_lsn <= from_lsn:  # F58
        message, hint = (
            "the last changes before the gap never happened on the server that cdcd reads now",
            _NEVER_HAPPENED,
        )
    else:
        message, hint = "changes between the two LSNs are missing", None
    raise GapInTopic(message, hint=hint, topic=topic, from_lsn=from_lsn, to_lsn=to_lsn, reason=reason)


def read_envelope(value: bytes, schemas: Mapping[int, Schema]) -> tuple[int, dict[str, Any]]:
    """Return the schema id and the envelope, with plain values in place of logical types."""
    number = schema_id(value)
    schema = schemas.get(number)
    if schema is None:
        raise SparkReadError("a record has a schema id that the plan of the batch lacks", schema_id=number)
    body = io.BytesIO(value)
    body.seek(HEADER_BYTES)
    return number, fastavro.schemaless_reader(body, schema)


def parse_schemas(schemas: Mapping[int, Schema]) -> dict[int, Schema]:
    """Return the schemas parsed for `read_envelope`."""
    return {number: parsed_physical(schema) for number, schema in schemas.items()}


def read_events(
    records: Iterable[tuple[bytes | None, bytes | None]], schemas: Mapping[int, Schema]
) -> Iterator[Event]:
    """Decode records of one topic; tombstones are skipped, because a `d` event precedes each."""
    ready = parse_schemas(schemas)
    for key, value in records:
        if value is None:
            continue
        number, envelope = read_envelope(value, ready)
        source = envelope["source"]
        op = envelope["op"]
        yield Event(
            sequence_of(op, source),
            op,
            None if key is None else key[HEADER_BYTES:],
            envelope["before"],
            envelope["after"],
            tuple(source["unchanged"] or ()),
            source["special"] or {},
            number,
            commit_us_of(source),
        )
