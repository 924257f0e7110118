"""The options of `format("cdcd")`.

In: Spark's options, names in any case.  Out: `SourceOptions`, or one ConfigError that has every problem.
Must not: connect, import PySpark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from cdcd.errors import ConfigError
from cdcd.spark.clients.connection import Connection
from cdcd.spark.clients.connection_options import connection_from
from cdcd.spark.source.positions import EARLIEST, POSITION_OPTIONS, Position, position_of
from cdcd.spark.source.table_options import (
    TABLE_OPTIONS,
    TableOptions,
    split_names,
    table_options,
    wrong_switches,
    wrong_values,
)

LIMITS = ("maxRows", "maxCommits", "maxBytes")
_OWN = ("topics", *TABLE_OPTIONS, *POSITION_OPTIONS, *LIMITS, "readers", "loading", "ids")
_OF_A_CATALOG = "provider"
"""A property that Spark passes as an option for CREATE TABLE ... USING."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of the data source. `ending` None: not given, for a batch the newest commit.

    `tables` None: raw records. `refuses_copies`: no batch may end while cdcd copies a table of the query.
    `begins_at_0`: a partition that the starting offsets do not name begins at 0, also if Kafka has removed its first
    records, which is an error then; otherwise at its first record.
    """

    connection: Connection
    topics: frozenset[str] | None
    starting: Position
    max_rows: int | None
    max_commits: int | None
    max_bytes: int | None
    readers: int
    loading: bool = False
    ids: bool = False
    ending: Position | None = None
    tables: TableOptions | None = None
    refuses_copies: bool = False
    begins_at_0: bool = False

    @property
    def has_limits(self) -> bool:
        """Whether a batch of a stream has a limit."""
        return (self.max_rows, self.max_commits, self.max_bytes) != (None, None, None)

    def without_limits(self) -> SourceOptions:
        """Return these options without the limits of a stream's batch."""
        return replace(self, max_rows=None, max_commits=None, max_bytes=None)

    def of_a_batch(self) -> SourceOptions:
        """Return the options of a batch read, which has no row for a loading table: it refuses or accepts them."""
        return replace(self.without_limits(), loading=False, refuses_copies=not self.loading)

    def of_a_stream(self) -> SourceOptions:
        """Return these options. Raises ConfigError for an end, and for loading tables of typed columns."""
        if self.tables is not None and self.loading:
            raise ConfigError(
                "options table and loading exclude each other in a stream: typed columns have no row for a table",
                hint="remove one of them; the option topics, with `decode`, has the raw records of a table",
            )
        if self.ending is not None:
            raise ConfigError(
                "a stream has no end: endingOffsets, endingTimestamp and endingLsn are for batch reads",
                hint="remove the option; trigger(availableNow=True) stops a stream at the newest commit",
            )
        return self


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Return Spark's options (names in any case). Raises ConfigError with every problem."""
    if _OF_A_CATALOG in options or not options:
        raise ConfigError(
            "no options: Spark does not pass the options of CREATE TABLE to a source in Python"
            if _OF_A_CATALOG in options
            else "no options: set config, or brokers and prefix; Spark does not pass the options of CREATE "
            "TABLE to a source in Python",
            hint="for SQL, create a view with the options: CREATE TEMPORARY VIEW name USING cdcd OPTIONS (...)",
        )
    given = {name.lower(): value for name, value in options.items()}
    connection = connection_from(options, _OWN, found=_wrong_values(given))
    topics = frozenset(split_names(given.get("topics", "")))
    return SourceOptions(
        connection=connection,
        topics=topics or None,
        starting=position_of(given, "starting") or Position(EARLIEST),
        max_rows=_limit(given, "maxrows"),
        max_commits=_limit(given, "maxcommits"),
        max_bytes=_limit(given, "maxbytes"),
        readers=int(given.get("readers", "2")),
        loading=given.get("loading", "").lower() == "true",
        ids=given.get("ids", "").lower() == "true",
        ending=position_of(given, "ending"),
        tables=table_options(given),
    )


def _limit(given: Mapping[str, str], name: str) -> int | None:
    return int(given[name]) if name in given else None


def _wrong_values(given: Mapping[str, str]) -> Iterator[str]:
    for name in (*LIMITS, "readers"):
        value = given.get(name.lower(), "1")
        if not value.isdecimal() or int(value) < 1:
            yield f"option {name} has to be a whole number from 1"
    yield from wrong_switches(given, ("loading", "ids"))
    for side in ("starting", "ending"):
        try:
            position_of(given, side)
        except ValueError as error:
            yield str(error)
    yield from wrong_values(given)
