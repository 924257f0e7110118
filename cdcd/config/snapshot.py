"""Options of the snapshot: which tables are copied, how, and in which order.

Comes in: the `snapshot` mapping.  Goes out: `Snapshot`, and the pure core's `Selection`.
Invariant: without an override every published table is copied, completely.
Must not: know how rows are read.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from cdcd.config.dsn import Dsn
from cdcd.config.format import Pattern, compile_pattern, without_null
from cdcd.config.values import Names, Room, Whole, refuse
from cdcd.recovery.snapshot_modes import COPYING_MODES, Mode, NewTablesPolicy, RewrittenTablesPolicy
from cdcd.snapshot.load_limits import LoadLimits
from cdcd.snapshot.selection import CopyRule, Selection

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_CHOICES = ("include", "where", "priority", "columns")


def _topic(name: str) -> str:
    if name and (not _TOPIC.fullmatch(name) or name in (".", "..")):
        refuse("a topic's name is 1 to 249 of letters, digits, '.', '_' and '-'")
    return name


class SnapshotOverride(Room):
    """One rule for the tables that a pattern matches."""

    model_config = ConfigDict(json_schema_extra=without_null)

    table: Pattern = Field(description="regular expression that matches all of SCHEMA.TABLE")
    include: bool | None = Field(default=None, description="whether the tables are copied")
    where: str | None = Field(
        default=None,
        min_length=1,
        description="SQL condition: copy only the rows for which the condition is true",
    )
    priority: Whole | None = Field(
        default=None, ge=-1000, le=1000, description="tables with a higher priority are copied first (0)"
    )
    columns: Names | None = Field(
        default=None,
        description="columns to copy in addition to those of the key; the others are listed in `unchanged`",
    )

    @model_validator(mode="after")
    def _changes_something(self) -> SnapshotOverride:
        if all(getattr(self, name) is None for name in _CHOICES):
            refuse("changes nothing", f"set one of {', '.join(_CHOICES)}")
        if self.columns == ():
            refuse("chooses no column", "name columns, or set include: false")
        return self


class Signals(Room):
    """Commands for the copy of single tables, from a Kafka topic."""

    topic: Annotated[str, AfterValidator(_topic)] = Field(
        default="",
        description="topic with one partition, of signal records in Debezium's format whose key is `name`; "
        "empty: none",
    )


class Incremental(Room):
    """The copy of tables while the stream continues: the load that it may put on the source."""

    chunk_time_ms: Whole = Field(
        default=500, ge=10, le=60_000, description="target time for reading one chunk of rows"
    )
    max_rows_per_second: Whole | None = Field(
        default=None,
        ge=1,
        description="limit of the rows read per second, over all tables; default: no limit",
        examples=[20_000],
    )
    pause_above_lag_ms: Whole | None = Field(
        default=None,
        ge=1,
        description="read no chunk while the replication lag of cdcd exceeds this; default: no limit",
        examples=[30_000],
    )
    pause_above_active_sessions: Whole | None = Field(
        default=None,
        ge=0,
        description="read no chunk while more than this number of client sessions are active on the source, not "
        "counting those of cdcd; default: no limit",
        examples=[50],
    )

    def limits(self) -> LoadLimits:
        """Return the limits as the pure core needs them."""
        return LoadLimits(self.max_rows_per_second, self.pause_above_lag_ms, self.pause_above_active_sessions)


class Snapshot(Room):
    """The copy of the tables before the stream."""

    mode: Mode = Field(
        default="initial",
        description="initial: copy every table at the first start, then stream; initial_only: copy, then exit with "
        "status 0; when_needed: as initial, and copy again if the slot cannot continue at the stored position; "
        "always: copy at each start of the process; no_data: create topics and schemas of every table, then stream; "
        "never: stream only",
    )
    # `from` is a keyword of Python: a field of that name can only be declared in this way.
    __annotations__["from"] = Dsn | None
    locals()["from"] = Field(
        default=None,
        description="a standby (PostgreSQL 16+), as a URL or key=value pairs of libpq: the initial snapshot reads "
        "the tables there instead of on the primary; default: source.dsn",
        examples=["postgresql://cdcd@standby.example.com:5432/shop?sslmode=verify-full"],
    )
    workers: Whole = Field(
        default=2,
        ge=1,
        le=64,
        description="number of connections that copy tables, and parts of large tables, at the same time",
    )
    order: Literal["name", "smallest_first", "largest_first"] = Field(
        default="name", description="order of the tables, among those of the same priority"
    )
    overrides: tuple[SnapshotOverride, ...] = Field(
        default=(),
        description="options for some tables; a later rule overrides an earlier one",
        examples=[
            [
                {"table": r"audit\..*", "include": False},
                {"table": "public.orders", "where": "created_at >= '2026-01-01'", "priority": 10},
            ]
        ],
    )

    incremental: Incremental = Field(
        default_factory=Incremental, description="the copy of tables while the stream continues"
    )
    signals: Signals = Field(
        default_factory=Signals, description="commands to copy single tables, read from a Kafka topic"
    )

    new_tables: NewTablesPolicy | None = Field(
        default=None,
        description="when a table joins a publication, also while cdcd is stopped: snapshot (copy its earlier rows "
        "while streaming), stream_only, or halt; default: snapshot if the mode copies tables, else stream_only",
        examples=["stream_only"],
    )
    rewritten_tables: RewrittenTablesPolicy | None = Field(
        default=None,
        description="when PostgreSQL changes a table's rows without sending them (ADD COLUMN with a default, ALTER "
        "TYPE), also while cdcd is stopped: snapshot (copy the table while streaming), or stream_only; default: "
        "snapshot if the mode copies tables, else stream_only",
        examples=["stream_only"],
    )

    @property
    def standby(self) -> Dsn | None:
        """The server from which the tables are copied, None for the primary: the option `from`."""
        found: Dsn | None = getattr(self, "from")
        return found

    @property
    def new_tables_policy(self) -> NewTablesPolicy:
        """What happens to a table that joins a publication."""
        return self.new_tables or ("snapshot" if self.copies_tables else "stream_only")

    @property
    def rewritten_tables_policy(self) -> RewrittenTablesPolicy:
        """What happens to a table whose rows PostgreSQL has changed without sending them."""
        return self.rewritten_tables or ("snapshot" if self.copies_tables else "stream_only")

    @property
    def copies_tables(self) -> bool:
        """Whether a first start copies the tables."""
        return self.mode in COPYING_MODES

    def selection(self) -> Selection:
        """Return the rules as the pure core needs them."""
        rules = tuple(
            CopyRule(compile_pattern(one.table), one.include, one.where, one.priority, one.columns)
            for one in self.overrides
        )
        return Selection(rules, self.order)
