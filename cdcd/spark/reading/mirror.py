"""Read a mirror: all tables as of one PostgreSQL commit, the newest one or an earlier one.

In: the folder or URI of a mirror; a position in the source.
Out: Arrow tables (columns under PostgreSQL's names, and `__special`), or DataFrames.
Invariant: all tables of one `Mirror` are of one version, whose files exist for its `retain_s` after the next one;
then the caller has to open the mirror again. A table in `loading` lacks rows that cdcd still copies, and one in
`parked` is of an earlier commit; a row is either complete or absent.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from cdcd.errors import ConfigError, MirrorBehind, SparkReadError, TablesParked
from cdcd.lsn import end_of_commits, format_lsn, parse_lsn
from cdcd.spark.reading.table_frame import table_frame
from cdcd.spark.storage.uri import Storage, Target, open_storage
from cdcd.spark.tables.table_files import count_rows, read_table
from cdcd.spark.target.commit_log import find_version, newer_versions, no_mirror, read_latest, read_version
from cdcd.spark.target.reached import Wanted, missing, reached_lsn
from cdcd.spark.target.shape import KEY
from cdcd.spark.target.versions import Parked, TableEntry, TableFormat, TargetVersion

__all__ = ["At", "Mirror", "read_mirror", "wait"]

At = int | str | datetime
"""A position: an LSN as a number or as PostgreSQL prints it, a time with its zone, or `Mirror.at` of a version."""
_NUMBER = re.compile(r"v(\d+)(?:@(.+))?")
_OF_WRITER = 8
"""The characters of a writer's random id in the name of a version. Names of earlier releases have none."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LOOK_AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class Mirror:
    """A mirror as of one version."""

    target: Storage
    version: TargetVersion

    @property
    def commit_lsn(self) -> int:
        """The LSN of the last PostgreSQL commit that changed a table of the mirror."""
        return self.version.commit_lsn

    @property
    def end_lsn(self) -> int:
        """The LSN below which all commits are in the mirror, of several slots those of each; 0 if it is not known."""
        return self.version.end_lsn

    def reached_lsn(self, slot: str | None = None) -> int:
        """Return the LSN up to which all commits of a slot, None: of each slot, are in the mirror; 0: unknown."""
        return reached_lsn(self.version, slot)

    @property
    def commit_time(self) -> datetime | None:
        """The time of the last commit that is in the mirror, None if it is not known."""
        return EPOCH + timedelta(microseconds=self.version.commit_us) if self.version.commit_us else None

    @property
    def at(self) -> str:
        """The name of exactly this version, such as "v42@5f0c3a9e": several versions may have one LSN.

        A target that is deleted and mirrored anew has other names, also for versions of the same numbers.
        """
        writer = self.version.writer[:_OF_WRITER]
        return f"v{self.version.number}" + (f"@{writer}" if writer else "")

    @property
    def loading(self) -> list[str]:
        """The topics of the tables that lack rows at this commit: cdcd copies them, or the mirror reads them late."""
        return sorted(self.version.loading)

    @property
    def parked(self) -> Mapping[str, Parked]:
        """By topic, the tables that are not updated any more, with the reason: they are of an earlier commit."""
        return self.version.parked

    @property
    def topics(self) -> list[str]:
        """The topics of the tables."""
        return sorted(self.version.tables)

    def rows(self, topic: str) -> int:
        """Return the number of a table's rows; it reads their keys at most."""
        return count_rows(self.target, self._entry(topic))

    def table(self, topic: str) -> pa.Table:
        """Return a table's rows in no order, with `__special`: texts of values outside the types' ranges."""
        return read_table(self.target, self._entry(topic)).drop_columns([KEY])

    def frame(self, spark: SparkSession, topic: str) -> DataFrame:
        """Return a table's rows as a DataFrame, read by Spark's tasks; a time of day is in microseconds."""
        return table_frame(spark, self.target, self._entry(topic))

    def delta_table(self, topic: str) -> tuple[str, int]:
        """Return URI and version of a table's Delta table, for another reader of the same commit.

        Raises SparkReadError if the table is no Delta table.
        """
        return self._open_table(topic, "delta")

    def iceberg_table(self, topic: str) -> str:
        """Return the location of the metadata of a table's Iceberg table, for another reader of the same commit.

        Raises SparkReadError if the table is no Iceberg table.
        """
        folder, version = self._open_table(topic, "iceberg")
        return f"{folder}/metadata/v{version}.metadata.json"

    def _open_table(self, topic: str, table_format: TableFormat) -> tuple[str, int]:
        version = self._entry(topic).table_version
        if version is None or self.version.table_format != table_format:
            raise SparkReadError(
                f"the table is no {table_format.capitalize()} table",
                hint=f"the format of the mirror is {self.version.table_format}; `frame` and `table` read each",
                topic=topic,
                target=self.target.uri,
            )
        return f"{self.target.uri}/{self.version.folder_of(topic)}", version

    def _entry(self, topic: str) -> TableEntry:
        entry = self.version.tables.get(topic)
        if entry is None:
            raise SparkReadError(
                "the mirror has no table of this topic",
                hint="pass one of `topics` of the mirror, such as shop.public.orders",
                topic=topic,
                target=self.target.uri,
            )
        return entry


def read_mirror(target: Target, options: Mapping[str, str] | None = None, *, at: At | None = None) -> Mirror:
    """Open a mirror. `options` are those of the target's storage.

    `at`: the first version that has all commits up to an LSN, or the last one without a commit after a time; None:
    the newest one. Of the versions at the position of an LSN it is the first one without a loading table, else the
    last. Raises SparkReadError if there is none, or it is not retained any more, ConfigError.
    """
    storage = open_storage(target, options)
    if at is None:
        version = read_latest(storage)
        if version is None:
            raise no_mirror(storage)
        return Mirror(storage, version)
    if isinstance(at, str) and (found := _NUMBER.fullmatch(at)):
        return Mirror(storage, _version_of(storage, int(found[1]), found[2] or ""))
    sought = _sought(at)
    version = find_version(storage, **sought)
    return Mirror(storage, _without_loading(storage, version) if "lsn" in sought else version)


def _without_loading(storage: Storage, version: TargetVersion) -> TargetVersion:
    """Return the version, or a later one of its position that has more rows: while a snapshot is copied all have one.

    The LSN alone is no position: an idle slot holds it while the mirror gets later commits of another one.
    """
    if not version.loading or not version.end_lsn:
        return version
    for later in newer_versions(storage, version):
        if (later.end_lsn, later.positions) != (version.end_lsn, version.positions):
            break
        version = later
        if not later.loading:
            break
    return version


def _version_of(storage: Storage, number: int, writer: str) -> TargetVersion:
    """Return the version with this number, whose writer's id begins so. Raises SparkReadError."""
    version = read_version(storage, number)
    if not version.writer.startswith(writer):
        raise SparkReadError(
            "the version of this name was in a former target: it was deleted and mirrored anew",
            hint="begin anew: read all rows, and continue from the position `at` of that mirror",
            target=storage.uri,
            version=number,
        )
    return version


def _sought(at: At) -> dict[str, int]:
    """Return the position as an argument of `find_version`. Raises ConfigError."""
    if isinstance(at, int):
        return {"lsn": at}
    try:
        if isinstance(at, str) and "/" in at:
            return {"lsn": parse_lsn(at)}
        moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    except ValueError:
        raise _neither() from None
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise _neither()
    return {"time_us": (moment - EPOCH) // timedelta(microseconds=1)}


def _neither() -> ConfigError:
    return ConfigError(
        "the position is neither an LSN nor a time with its zone",
        hint='write "16/B374D848", "2026-11-28T10:00:00Z", or a datetime with tzinfo',
    )


def wait(
    target: Target,
    lsn: int | str,
    *,
    timeout_s: float = 60.0,
    target_options: Mapping[str, str] | None = None,
    timeline: int | None = None,
    slot: str | None = None,
    system_identifier: str | None = None,
    loading: bool = False,
    parked: bool = False,
) -> Mirror:
    """Wait until the mirror has all commits up to an LSN, and return it: to read your own writes.

    `lsn`: what `SELECT pg_current_wal_insert_lsn()` returns after the COMMIT. `timeline`: of the server then; without
    it the LSN is of the timeline that the mirror has reached last, which after a failover may be the former one.
    `slot`: of the daemon that sends the commit; without it the mirror has to reach the LSN with each slot.
    `system_identifier`: of the server. The answer of the daemon's /wait has timeline and system identifier.
    Tables that are being copied are waited for, too, unless `loading` accepts that they lack rows.
    Raises MirrorBehind after `timeout_s`.
    Raises TablesParked if the mirror has the commits, except in some tables: after `timeout_s` for those that lack
    rows, and at once for those of an earlier commit, unless `parked` accepts them; one that was parked while it was
    copied needs both.
    """
    storage = open_storage(target, target_options)
    lsn = _lsn_of(lsn)
    wanted = Wanted(end_of_commits(lsn), timeline, slot, system_identifier)
    deadline_s = time.monotonic() + timeout_s
    version = read_latest(storage)
    while True:
        is_over = time.monotonic() > deadline_s
        why = {} if version is None else missing(version, wanted)
        if version is not None and not why:
            opened = Mirror(storage, version)
            if _has_all_tables(opened, is_over=is_over, loading=loading, parked=parked):
                return opened
        elif is_over:
            raise _behind(storage, lsn, why)
        time.sleep(LOOK_AGAIN_S)
        version = _newer(storage, version)


def _behind(storage: Storage, lsn: int, why: Mapping[str, str]) -> MirrorBehind:
    """Return the error of a mirror that lacks commits. `why`: what it has instead; empty if there is no mirror."""
    if not why:
        return MirrorBehind(
            "there is no mirror at the target, also at the end of the time",
            hint="correct the target, or start the mirror: "
            "`python -m cdcd.spark mirror --config FILE --target TARGET`",
            target=storage.uri,
        )
    return MirrorBehind(
        "the mirror has not reached the LSN in time", target=storage.uri, lsn=format_lsn(lsn), **why
    )


def _lsn_of(lsn: int | str) -> int:
    """Return an LSN as a number. Raises ConfigError."""
    try:
        return parse_lsn(lsn) if isinstance(lsn, str) else lsn
    except ValueError as error:
        raise ConfigError(str(error), hint="write it as PostgreSQL prints it, such as 16/B374D848") from None


def _has_all_tables(opened: Mirror, *, is_over: bool, loading: bool, parked: bool) -> bool:
    """Return whether all tables are as of the mirror's position, False: some are still being copied.

    Raises TablesParked if nothing will change this by itself, or the time is over.
    """
    stale = parked_for(opened.version, opened.topics, loading=loading, parked=parked)
    lacking = {*stale, *(() if loading else opened.loading)}
    if not stale and not is_over:
        return not lacking
    if not lacking:
        return True
    raise TablesParked(
        "the mirror has all commits up to the LSN, except in tables that are parked or loading",
        hint="`python -m cdcd.spark status --target TARGET` has the reasons of parked tables, `cdcd snapshot status` "
        "the copies at work, `incomplete_topics` of the daemon's /status the copies that wait or were stopped; in "
        "Python parked=True and loading=True accept it",
        target=opened.target.uri,
        tables=", ".join(sorted(lacking)[:10]),
    )


def parked_for(version: TargetVersion, topics: Iterable[str], *, loading: bool, parked: bool) -> list[str]:
    """Return the parked ones of these tables that a reader does not accept.

    `parked` accepts that a table is of an earlier commit; for one that was parked while it was copied, and is of no
    one commit, `loading` has to accept that it lacks rows, too.
    """
    found = [(topic, one) for topic in topics if (one := version.parked.get(topic)) is not None]
    return [topic for topic, one in found if not (parked and (one.end_lsn or loading))]


def _newer(storage: Storage, version: TargetVersion | None) -> TargetVersion | None:
    if version is None:
        return read_latest(storage)
    try:
        return [version, *newer_versions(storage, version)][-1]
    except SparkReadError:  # records are removed already
        return read_latest(storage)
