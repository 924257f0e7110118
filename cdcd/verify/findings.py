"""The outcome of a table by its counts, and the reasons why it may be unknown.

In: the sums of both sides, the rows that differ, what the records say.  Out: the table's outcome, reasons.
Invariant: a row that differs has no text but that of its key, and only if it was asked for.
Must not: do I/O.
"""

from __future__ import annotations

from collections.abc import Mapping

from cdcd.lsn import format_lsn
from cdcd.verify.fold import Barriers, BucketSum, Difference, question_of
from cdcd.verify.outcome import DIFFERS, EQUAL, UNKNOWN, DifferentRow, TableOutcome
from cdcd.verify.records import ComparedTable, Found
from cdcd.verify.source import OpenTable
from cdcd.verify.topic_log import TopicLog


def counted(
    opened: OpenTable, ours: Mapping[int, BucketSum], theirs: Mapping[int, BucketSum]
) -> TableOutcome:
    """Return the outcome of a table as if it were equal, with its numbers."""
    outcome = TableOutcome(opened.compared.title, EQUAL, lsn=format_lsn(opened.view.marker_lsn))
    outcome.rows_in_source = sum(one.rows for one in theirs.values())
    outcome.rows_in_topics = sum(one.rows for one in ours.values())
    outcome.unknown_rows = sum(one.unknown for one in ours.values())
    for number, column in enumerate(opened.compared.columns):
        if lacking := sum(one.lacking[number] for one in ours.values()):
            outcome.not_compared[column.name] = lacking
    return outcome


def add_repeated(outcome: TableOutcome, keys: int) -> None:
    """Add that the source has keys in several rows: it is the reason of a state that is not known."""
    if not keys:
        return
    reason = (
        f"the source has {keys:,} keys in several rows each, so its index is damaged (such as after a change of the "
        "collation): delete the surplus rows, REINDEX the table, and verify again"
    )
    outcome.reason = "; ".join(filter(None, (outcome.reason, reason)))
    if outcome.state != DIFFERS:
        outcome.state = UNKNOWN


def open_question(outcome: TableOutcome, found: Found, barriers: Barriers, incomplete: int) -> str:
    """Return why it is unknown whether the table is equal, or whether its differences are real; "" if it is known."""
    if outcome.state == DIFFERS:
        is_by_name = found.unnumbered > barriers.emptied and not (outcome.missing or outcome.extra)
        return "rows differ, but the topic has records whose columns have no numbers" if is_by_name else ""
    if incomplete:
        return (
            f"{incomplete} rows have an update, but not the earlier record with the values that the update "
            "left unchanged"
        )
    return question_of(found, barriers)


def shown_row(
    one: Difference, table: ComparedTable, log: TopicLog, texts: Mapping[bytes, str]
) -> DifferentRow:
    """Return a row that differs as the outcome shows it. `texts`: those of keys that were asked for."""
    place = (None, None, None) if one.place is None else log.topic_of(one.place)
    columns = tuple(table.columns[number].name for number in one.columns)
    return DifferentRow(one.kind, texts.get(one.key) or one.key[:8].hex(), columns, *place)
