"""What becomes of a record that is larger than Kafka takes (F65): a halt that names it, or a dead letter.

In: a refused record.  Out: the records that go in its place, or the refusal with the table and the transaction.
Invariant: nothing is passed over. In the row's own place stands a marker (`g`), at which a mirror stops, and in the
topic of dead letters what it was and where PostgreSQL has it; both are in the Kafka transaction that the row would
have been in, so they are there once, whatever is killed. They are counted and logged when they are durable.
Must not: be asked about a record that Kafka takes; put the row, or its key, into a log or an error.
"""

from __future__ import annotations

import json
from typing import Protocol

import structlog

from cdcd.avro.placeholder import Change, RowRecord
from cdcd.avro.plan import RelationPlan
from cdcd.errors import RecordTooLarge
from cdcd.lsn import Lsn, format_lsn
from cdcd.model import Record

_LOG = structlog.stdlib.get_logger("cdcd.dead_letters")
FORMAT = 1
_ONE_PARTITION = 0
_MARKER_HINT = "what is too large is the marker in a row's place, because of its key: raise the limits"


class Plans(Protocol):
    """What is known of a record's topic and schema."""

    def of_record(self, record: Record) -> RelationPlan | None: ...  # noqa: D102


class Counts(Protocol):
    """Who is told of a dead letter."""

    def dead_letter(self, table: str) -> None: ...  # noqa: D102


class DeadLetters:
    """Those of one session. `topic`: where they go, None where a record that is too large halts."""

    def __init__(self, plans: Plans, counts: Counts, topic: str | None) -> None:
        self._plans = plans
        self._counts = counts
        self._topic = topic
        self._open: list[Change] = []

    def instead_of(self, record: Record, refusal: RecordTooLarge, commit_lsn: Lsn) -> list[Record]:
        """Return what is to be written in a record's place; it is in the transaction that commits at `commit_lsn`.

        Raises the refusal, with the table and the change, where the record is to halt or is not a row's.
        """
        plan = self._plans.of_record(record)
        if plan is None:
            refusal.context["commit_lsn"] = commit_lsn
            raise refusal
        row = RowRecord(record, plan)
        change = row.change
        if self._topic is None or not row.is_of_a_row:
            refusal.context |= {
                "table": plan.table,
                "commit_lsn": change.commit_lsn,
                "tx_seq": change.tx_seq,
            }
            refusal.advice = _MARKER_HINT if change.op == "g" else refusal.advice
            raise refusal
        self._open.append(change)
        marker = row.placeholder(marker_details(change, self._topic))
        return [marker, Record(self._topic, _ONE_PARTITION, record.key, letter(change))]

    def after_commit(self) -> None:
        """What was written since the last time is durable."""
        for change in self._open:
            table = f"{change.schema}.{change.table}"
            self._counts.dead_letter(table)
            _LOG.warning(
                "dead_letter",
                table=table,
                op=change.op,
                commit_lsn=format_lsn(Lsn(change.commit_lsn)),
                tx_seq=change.tx_seq,
                size_bytes=change.size_bytes,
                topic=self._topic,
            )
        self._open.clear()


def marker_details(change: Change, dead_letters: str) -> dict[str, bytes]:
    """Return what the marker says: the gap is this one change of its transaction."""
    commit_lsn = format_lsn(Lsn(change.commit_lsn))
    texts = {
        "from_lsn": commit_lsn,
        "to_lsn": commit_lsn,
        "reason": RecordTooLarge.code,
        "op": change.op,
        "size_bytes": str(change.size_bytes),
        "dead_letters": dead_letters,
    }
    return {name: text.encode() for name, text in texts.items()}


def letter(change: Change) -> bytes:
    """Return the value of the dead letter. Its key is the row's: the same bytes, under the row's topic's schema."""
    document = {
        "format": FORMAT,
        "reason": RecordTooLarge.code,
        "topic": change.topic,
        "partition": change.partition,
        "schema": change.schema,
        "table": change.table,
        "op": change.op,
        "xid": change.xid,
        "timeline": change.timeline,
        "commit_lsn": format_lsn(Lsn(change.commit_lsn)),
        "tx_seq": change.tx_seq,
        "lsn": None if change.lsn is None else format_lsn(Lsn(change.lsn)),
        "key_columns": list(change.key_columns),
        "size_bytes": change.size_bytes,
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
