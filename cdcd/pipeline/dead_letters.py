"""Handle a record that is larger than Kafka accepts (F65): halt and name the record, or write a dead letter.

In: a refused record.  Out: the records to write instead, or the refusal with the table and the transaction.
Invariant: no row is skipped without a trace. A marker (`g`), at which a mirror stops, takes the row's place, and the
topic of dead letters gets the change's description and its position in PostgreSQL. Both are in the Kafka transaction
of the row, so each is written exactly once, whatever is killed. They are counted and logged when they are durable.
Must not: be called for a record that Kafka accepts; put the row, or its key, into a log or an error.
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
_MISSING_HINT = (
    "the topic has a marker instead of the row, so readers lack the row's last change. Raise the limits, then run "
    "`cdcd resnapshot`, or `cdcd snapshot start --table SCHEMA.TABLE --recopy`, to copy the row"
)
_MARKER_HINT = (
    "the marker that would replace the row is too large, because of the row's key: raise the limits"
)


class Plans(Protocol):
    """The plans that records were encoded by."""

    def of_record(self, record: Record) -> RelationPlan | None: ...  # noqa: D102


class Counts(Protocol):
    """Counts dead letters."""

    def dead_letter(self, table: str) -> None: ...  # noqa: D102


class DeadLetters:
    """The dead letters of one session. `topic`: their topic, None if a record that is too large halts."""

    def __init__(self, plans: Plans, counts: Counts, topic: str | None) -> None:
        self._plans = plans
        self._counts = counts
        self._topic = topic
        self._open: list[Change] = []

    def instead_of(self, record: Record, refusal: RecordTooLarge, commit_lsn: Lsn) -> list[Record]:
        """Return the records to write instead of a record of the transaction that commits at `commit_lsn`.

        Raises the refusal, with the table and the change, if cdcd is to halt or the record is not a row's.
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
        """Count and log the dead letters that the last commit made durable."""
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
                hint=_MISSING_HINT,
            )
        self._open.clear()


def marker_details(change: Change, dead_letters: str) -> dict[str, bytes]:
    """Return the details of the marker: the gap is this one change of its transaction."""
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
    """Return the value of the dead letter. Its key is the row's key, in the schema of the row's topic."""
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
