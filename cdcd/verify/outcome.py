"""The result of a comparison, as text and as JSON. Pure.

In: what was found of each table.  Out: lines, JSON, an exit status, metrics.
Invariant: a table that could not be compared, or has a row whose state is not known, is never equal; a number that is
not known is null, not 0. A key is shown by its hash, unless the caller asks for keys; no other value is ever shown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cdcd.redaction import clean

EQUAL, DIFFERS, UNKNOWN = "equal", "differs", "unknown"
EXIT_OF = {EQUAL: 0, DIFFERS: 1, UNKNOWN: 2}
KINDS = ("missing", "extra", "different")


class CannotTell(Exception):
    """A table cannot be compared; the message has the reason, without values."""


class GaveWay(Exception):
    """Another session waits for the lock of the table, so the snapshot was released."""


class NotCopiedYet(Exception):
    """Rows have no record, and the topic has no copied row: cdcd may be about to copy the table."""


@dataclass(frozen=True, slots=True)
class DifferentRow:
    """A row that differs. `key`: its hash, or its text; the place is that of its last record, None without one."""

    kind: str
    key: str
    columns: tuple[str, ...] = ()
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None


@dataclass(slots=True)
class TableOutcome:
    """The result of one table. `lsn`: the position of the snapshot in the stream.

    `not_compared`: by column, the rows whose records have no comparable value; `unknown_rows`: rows whose state
    cannot be determined from the topics. `rows` has the first rows that differ.
    """

    table: str
    state: str
    reason: str = ""
    lsn: str | None = None
    rows_in_source: int | None = None
    rows_in_topics: int | None = None
    records: int | None = None
    missing: int = 0
    extra: int = 0
    different: int = 0
    unknown_rows: int = 0
    not_compared: dict[str, int] = field(default_factory=dict)
    rows: list[DifferentRow] = field(default_factory=list)
    seconds: float = 0.0


def settle(outcome: TableOutcome) -> None:
    """Set the state of a table that was compared: rows of unknown state are not equal, though none differs."""
    if outcome.missing or outcome.extra or outcome.different:
        outcome.state = DIFFERS
    elif outcome.unknown_rows:
        outcome.state = UNKNOWN
        outcome.reason = (
            f"no row differs, but {outcome.unknown_rows:,} have an unknown state: dead letters, until their next"
            " change, or rows that were copied during the comparison"
        )
    else:
        outcome.state = EQUAL


def status_of(outcomes: Iterable[TableOutcome]) -> int:
    """Return the exit status: 1 if a table differs, else 2 if one is not known, else 0."""
    states = {outcome.state for outcome in outcomes}
    return EXIT_OF[DIFFERS if DIFFERS in states else UNKNOWN if UNKNOWN in states or not states else EQUAL]


def as_lines(outcomes: Sequence[TableOutcome], of: str = "source", compared: str = "topics") -> list[str]:
    """Return the result for people. `of` and `compared`: the names of both sides."""
    return [*(line for one in outcomes for line in lines_of(one, of, compared)), counts_of(outcomes)]


def counts_of(outcomes: Sequence[TableOutcome]) -> str:
    """Return the last line: the number of tables in each state."""
    counts = {state: sum(one.state == state for one in outcomes) for state in EXIT_OF}
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def lines_of(one: TableOutcome, of: str = "source", compared: str = "topics") -> list[str]:
    """Return the lines of one table."""
    lines = [f"{one.state:<8}{clean(one.table)}: {_summary(one, of, compared)}"]
    for column, rows in one.not_compared.items():
        lines.append(
            f"        column {clean(column)}: not in the records of {rows:,} rows, not compared there"
        )
    for row in one.rows:
        columns = f" in {', '.join(map(clean, row.columns))}" if row.columns else ""
        place = "" if row.topic is None else f", {row.topic} {row.partition}@{row.offset}"
        lines.append(f"        {row.kind}{columns}: key {clean(row.key)}{place}")
    if (left := one.missing + one.extra + one.different - len(one.rows)) > 0:
        lines.append(f"        and {left:,} more rows")
    return lines


def _summary(one: TableOutcome, of: str, compared: str) -> str:
    is_known = one.missing or one.extra or one.different
    if one.reason and not is_known:
        return clean(one.reason)
    at = "" if one.lsn is None else f" at {one.lsn}"
    text = f"{one.rows_in_source or 0:,} rows in the {of}{at}, {one.rows_in_topics or 0:,} in the {compared}"
    if one.state == DIFFERS:
        text += "".join(f", {getattr(one, kind):,} {kind}" for kind in KINDS if getattr(one, kind))
    if one.unknown_rows:
        text += f", {one.unknown_rows:,} of unknown state"
    if one.reason:
        text += f"; {clean(one.reason)}"
    return f"{text} ({one.seconds:.1f} s)"


def as_document(outcomes: Sequence[TableOutcome]) -> list[dict[str, object]]:
    """Return the result for programs."""
    return [dataclasses.asdict(one) for one in outcomes]


def as_metrics(outcomes: Sequence[TableOutcome], finished_s: float, *, is_complete: bool = True) -> str:
    """Return the result in Prometheus' text format, for the textfile collector of node_exporter.

    `is_complete`: every chosen table has an outcome.
    """
    lines = [
        "# HELP cdcd_verify_finished_timestamp_seconds When `cdcd verify` ended.",
        "# TYPE cdcd_verify_finished_timestamp_seconds gauge",
        f"cdcd_verify_finished_timestamp_seconds {finished_s:.0f}",
        "# HELP cdcd_verify_complete 1 if the run reached all of its tables, 0 if an error ended it.",
        "# TYPE cdcd_verify_complete gauge",
        f"cdcd_verify_complete {int(is_complete)}",
        "# HELP cdcd_verify_state 1 for the state of the table: equal, differs or unknown.",
        "# TYPE cdcd_verify_state gauge",
    ]
    lines += [
        f'cdcd_verify_state{{table="{_label(one.table)}",state="{state}"}} {int(one.state == state)}'
        for one in outcomes
        for state in EXIT_OF
    ]
    lines += [
        "# HELP cdcd_verify_differing_rows Rows that differ, by kind.",
        "# TYPE cdcd_verify_differing_rows gauge",
    ]
    lines += [
        f'cdcd_verify_differing_rows{{table="{_label(one.table)}",kind="{kind}"}} {getattr(one, kind)}'
        for one in outcomes
        if one.state != UNKNOWN
        for kind in KINDS
    ]
    lines += [
        "# HELP cdcd_verify_unknown_rows Rows of a compared table whose state cannot be determined from the topics.",
        "# TYPE cdcd_verify_unknown_rows gauge",
    ]
    lines += [
        f'cdcd_verify_unknown_rows{{table="{_label(one.table)}"}} {one.unknown_rows}'
        for one in outcomes
        if one.rows_in_topics is not None
    ]
    return "\n".join([*lines, ""])


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
