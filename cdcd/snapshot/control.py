"""The commands of an incremental snapshot and the reports of its tables, as the admin port and the signals use them.

In: commands of an operator.  Out: `SnapshotCommand`s for the session that streams; one `TableReport` for each table.
Invariant: a command has its effect only if `SnapshotControl.execute` returns: the progress record has it then, and
a restart does not lose it.
Must not: do I/O.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

Action = Literal["start", "pause", "resume", "stop"]
SnapshotKind = Literal["incremental", "blocking", "initial"]
TableState = Literal["waiting", "copying", "paused", "failed"]
TABLE_STATES: tuple[TableState, ...] = ("waiting", "copying", "paused", "failed")


@dataclass(frozen=True, slots=True)
class SnapshotCommand:
    """One command. `tables`: their names SCHEMA.TABLE; () means every table that is being copied, and for a start
    every published table that has a key and that `snapshot.overrides` includes.

    `where`: copy only the rows for which this SQL condition is true. `recopy`: a truncate event precedes the rows, so
    that readers lose rows that were deleted meanwhile. `compare`: such rows are found at the end of the copy, by the
    keys in the topic, and deleted one by one. `signal_offset`: the offset of the command's record in the
    topic of the signals, None if it came another way. `relids`: the oids of tables, instead of their
    names, if cdcd copies them by itself. `is_blocking`: the stream waits while the tables are copied, which therefore
    need no key.
    """

    action: Action
    tables: tuple[str, ...] = ()
    where: str | None = None
    recopy: bool = False
    signal_offset: int | None = None
    relids: tuple[int, ...] = ()
    is_blocking: bool = False
    compare: bool = False


@dataclass(frozen=True, slots=True)
class TableReport:
    """The progress of one table's snapshot. `rows`: emitted since the daemon started.

    `estimated_rows`: of the whole table, None if the server has no statistics. `rows_per_second`, `seconds_left`:
    None until known. `reason`: why a table waits or has failed.
    """

    table: str
    state: TableState
    rows: int
    estimated_rows: int | None = None
    rows_per_second: float | None = None
    seconds_left: float | None = None
    reason: str | None = None
    kind: SnapshotKind = "incremental"


def fields_of(report: TableReport) -> dict[str, Any]:
    """Return the report for JSON, which has no infinite numbers."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in asdict(report).items()
    }


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The tables that a command concerned. `left_out`: of a start of all tables why each of some is not copied."""

    tables: tuple[str, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)


class SnapshotControl(Protocol):
    """The daemon's side of the commands. It outlives the sessions."""

    async def execute(self, command: SnapshotCommand) -> CommandResult:
        """Apply a command; return the tables that it concerned, once the progress record has it.

        Raises a CdcdError with a hint: the table is not published, has no key, is not being copied; or no session
        streams at the moment.
        """
        ...

    def reports(self) -> list[TableReport]:
        """Return the tables that are being copied, in their order. Raises NotStreaming while they are not known."""
        ...
