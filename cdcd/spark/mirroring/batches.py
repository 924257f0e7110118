"""Apply the batches of a mirror to its target.

In: the records of a batch, and where it ends.  Out: the next version of the target.
Invariant: a version has all tables as of one PostgreSQL commit, except those that are loading, and those that are
parked: a table whose records are not a consistent history remains as it was before them, with the error, and the
others continue. It is updated again from its next TRUNCATE, or its next copy, on. A batch that is repeated changes
nothing.
Must not: read a topic; store a position anywhere but in the version.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, NamedTuple, Protocol

from cdcd.errors import CdcdError, MirrorInconsistent, RegistryRefused, TableFileMissing, TablesParked
from cdcd.lsn import format_lsn
from cdcd.spark.decoding.events import BEGINNING
from cdcd.spark.formats.open_tables import OpenTables
from cdcd.spark.mirroring.records import Records, looks_of
from cdcd.spark.source.cuts import Offsets, is_pseudo
from cdcd.spark.source.source_position import SourcePosition
from cdcd.spark.storage.uri import Storage
from cdcd.spark.tables.compaction import Compactor, FileMerges, Merges
from cdcd.spark.tables.history_merges import HistoryMerges
from cdcd.spark.tables.next_version import incomplete_tables, next_version, park, with_position, with_readable
from cdcd.spark.tables.plan import Look, SchemaSource, TablePlan
from cdcd.spark.tables.plan_anew import known_us, plan_or_anew, resumed
from cdcd.spark.tables.retained_columns import DEFAULT_POLICIES, ColumnPolicies, ColumnTypeChanged
from cdcd.spark.tables.tasks import TABLE_ERRORS, FoldResult
from cdcd.spark.tables.unreadable import DECODING_ERRORS, is_of_a_record, not_planned, readable
from cdcd.spark.target.left_files import has_files
from cdcd.spark.target.target_writer import TargetWriter
from cdcd.spark.target.unneeded_files import remove_unneeded
from cdcd.spark.target.versions import TableEntry, TargetVersion

__all__ = ["BatchReport", "MirrorBatches", "Observer", "OnError", "Read", "is_table"]

OnError = Literal["park", "fail"]
IDLE_S = 1.0
"""The shortest time between two positions that are published without a change."""
EXPIRED_S = 60.0
"""The shortest time between two searches for lines of the histories that are not retained any more."""
UNKNOWN = SourcePosition()
NOTHING: Mapping[str, MirrorInconsistent] = {}
Failures = dict[str, tuple[str, str]]
"""By topic, the error's code and text."""
_PARKED = (
    "%s is parked and not updated any more; the mirror continues with the other tables. Correct the cause, then "
    "copy the table again: `cdcd snapshot start --table %s --recopy`. %s"
)
log = logging.getLogger("cdcd.spark.mirror")


def is_table(topic: str, prefix: str) -> bool:
    """Return whether a topic has the rows of a table."""
    is_internal = topic in (f"{prefix}.message", f"{prefix}.transaction") or topic.startswith(prefix + ".__")
    return not is_internal and not is_pseudo(topic)


class Read(NamedTuple):
    """The records that a batch has read of a topic. `size_bytes`: of their keys and values."""

    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The result of a batch: `rows` read, `tables` changed, the mirror's position.

    `loading`: the topics of the tables of which rows are still missing at this position: cdcd copies them, or the
    mirror reads them from an earlier commit than the others.
    `parked`: those of the tables that are not updated any more. `commit_us`: the time of the last commit (Unix
    epoch), 0 if unknown.
    """

    batch_id: int
    rows: int
    tables: int
    files: int
    commit_lsn: int
    written_rows: int
    seconds: float
    loading: tuple[str, ...] = ()
    parked: tuple[str, ...] = ()
    commit_us: int = 0

    reads: Mapping[str, Read] = field(default_factory=dict)
    """By topic, of the tables whose records it has read."""


class Observer(Protocol):
    """Is called for what has become visible."""

    def published(self, version: TargetVersion, *, merges: int = 0) -> None:
        """Take a new version. `merges`: of how many tables it has merged files."""


class MirrorBatches:
    """Applies batches to a target, on the driver. `applied`: the number of batches, those of earlier sessions too."""

    def __init__(
        self,
        target: Storage,
        writer: TargetWriter,
        schema_of: SchemaSource,
        on_batch: Callable[[BatchReport], None] | None = None,
        accept_gaps: bool = False,
        on_error: OnError = "park",
        observer: Observer | None = None,
        policies: ColumnPolicies = DEFAULT_POLICIES,
    ) -> None:
        self._accept_gaps = accept_gaps
        self._policies = policies
        self._parks = on_error == "park"
        self._target = target
        self._writer = writer
        self._prefix, self.buckets = self.version.prefix, self.version.buckets
        self._schema_of = schema_of
        self._on_batch = on_batch
        self._observer = observer
        self.applied = 0
        self._merged = 0
        self._expired_s = float("-inf")
        is_open = self.version.table_format != "parquet"
        self._open = (
            OpenTables(target, self.version, writer.own_latest, parks=self._parks) if is_open else None
        )
        self._compactor = Compactor(self._merges(), parks=self._parks)
        self._compactor.note(self.version.tables)
        for topic, one in self.version.parked.items():
            log.error(_PARKED, topic, self._table_of(topic), one.reason)

    def _merges(self) -> Merges:
        rows = self._open or FileMerges(self._target)
        if self.version.scd_type != 2:
            return rows
        return HistoryMerges(
            self._target, rows, self.version.history_retain_s, lambda topic: topic in self.version.loading
        )

    def apply(
        self,
        records: Records,
        end: Offsets,
        position: SourcePosition = UNKNOWN,
        refused: Mapping[str, MirrorInconsistent] = NOTHING,
    ) -> None:
        """Apply the batch that ends here. Applying a batch again changes nothing.

        `refused`: by topic, why its table cannot be mirrored at all.
        """
        started_s = time.monotonic()
        now = self._with_merged(self.version)
        looks = looks_of(records, partial(is_table, prefix=self._prefix), now, self._schema_of)
        plans, entries, failures = self._plan(looks, now, refused)
        folded = self._fold(records, plans) if plans else []
        failures |= {one.topic: (one.failure_code, one.failure) for one in folded if one.failure}
        version = next_version(now, end, entries, plans, folded)
        failures |= self._lacking(version, failures)
        self._remove([one for one in folded if one.topic in failures])
        version = with_position(park(version, now, failures, time.time()), now, position)
        if self._open is not None:
            sound = {topic: plan for topic, plan in plans.items() if topic not in failures}
            version, damaged = self._stored(self._open, version, now, sound, folded)
            failures |= damaged
        version = self._publish(version)
        if self._open is not None:  # Spark's tasks have written the rows that the tables have now
            stored = [one for one in folded if one.topic not in failures]
            self._remove([replace(one, incomplete_path=None, history_path=None) for one in stored])
        self._compactor.note(entries)
        self._note_expired()
        self._compactor.start(version.tables)
        self._report(version, looks, folded, time.monotonic() - started_s)

    def _stored(
        self,
        tables: OpenTables,
        version: TargetVersion,
        now: TargetVersion,
        plans: dict[str, TablePlan],
        folded: list[FoldResult],
    ) -> tuple[TargetVersion, Failures]:
        """Commit to the tables in an open format; return the version, in which those with damaged logs are parked."""
        version, errors = tables.store(version, now, plans, folded)
        self._remove([one for one in folded if one.topic in errors])
        damaged = _reasons(errors)
        return park(version, now, damaged, time.time()), damaged

    def publish_start(self) -> None:
        """Publish what the start has changed of tables in an open format; park those whose logs are damaged.

        A table that was parked for its log or a file, and of which no record was left out since, continues if its log
        is readable now, and has all files.
        """
        damaged = _reasons({} if self._open is None else self._open.damaged)
        found = {topic: one for topic, one in damaged.items() if topic not in self.version.parked}
        version = self.version if self._open is None else self._open.at_start()
        lost = [topic for topic, one in version.parked.items() if one.code == TableFileMissing.code]
        unparked = with_readable(
            version, {*damaged, *(one for one in lost if not has_files(self._target, version, one))}
        )
        changed = park(unparked, self.version, found, time.time())
        if changed != self.version:
            self._publish(changed)

    def note_position(self, position: SourcePosition, *, now: bool = False) -> None:
        """Publish another position without changes of the mirrored tables, unless `now` once in `IDLE_S` at most.

        It is lower if the source has continued on a timeline that began before the last position (F58).
        """
        version = self.version
        after = with_position(version, version, position)
        is_new = (after.end_lsn, after.positions) != (version.end_lsn, version.positions)
        if is_new and (now or time.time() > version.published_s + IDLE_S):
            self._publish(after)

    def add_empty(self, entries: Iterable[TableEntry]) -> dict[str, MirrorInconsistent]:
        """Publish tables that have no row yet, unless the mirror has or has dropped them. Raises StorageError.

        Return by topic the error of each whose columns the format cannot have. One whose log is damaged is parked.
        """
        version, refused, damaged = self.version, {}, {}
        known = {*version.tables, *version.dropped}
        added = {one.topic: one for one in entries if one.topic not in known}
        if self._open is not None:
            for topic, entry in list(added.items()):
                try:
                    self._open.refuse_columns(topic, entry.fields)
                except MirrorInconsistent as error:
                    refused[topic] = error
                    del added[topic]
            added, errors = self._open.create(version, added)
            damaged = _reasons(errors)
        if added or damaged:
            after = replace(version, tables={**version.tables, **added})
            self._publish(park(after, version, damaged, time.time()))
        if added:
            log.info("tables without a row: %s", ", ".join(sorted(added)))
        return refused

    def publish_merged(self) -> None:
        """Publish the files of a complete merge, and begin the next merge."""
        self._note_expired()
        if not self._compactor.has_result:
            return
        changed = self._with_merged(self.version)
        if changed is not self.version:
            changed = self._publish(changed)
        self._compactor.start(changed.tables)

    def _note_expired(self, *, now: bool = False) -> None:
        """Have the histories checked, also those of tables without changes, whose lines expire too."""
        if self.version.history_retain_s is None or not (
            now or time.monotonic() > self._expired_s + EXPIRED_S
        ):
            return
        self._expired_s = time.monotonic()
        self._compactor.note([topic for topic, entry in self.version.tables.items() if entry.history])
        if not now:
            self._compactor.start(self.version.tables)

    def compact(self) -> None:
        """Merge files until no table has too many, and no line of a history is overdue."""
        self._note_expired(now=True)
        while self._compactor.start(self.version.tables):
            self._compactor.wait()
            self.publish_merged()

    def refuse_parked(self) -> None:
        """Raise TablesParked if tables are not updated any more: a run to an end is not complete then."""
        if parked := self.version.parked:
            raise TablesParked(
                "the mirror is at the newest commit, except for parked tables",
                target=self._target.uri,
                tables=", ".join(sorted(parked)),
                first_reason=parked[min(parked)].reason,
            )

    def close(self) -> None:
        """End a merge."""
        self._compactor.close()

    @property
    def version(self) -> TargetVersion:
        """The version that was published last."""
        assert self._writer.version is not None
        return self._writer.version

    def _publish(self, version: TargetVersion) -> TargetVersion:
        """Publish the next version, and report the tables that it parks."""
        before = self.version.parked
        parked = {topic: one for topic, one in version.parked.items() if one != before.get(topic)}
        if any(one.code == TableFileMissing.code for one in parked.values()):
            self._writer.own_latest()  # all files since then are missing if an older target was restored meanwhile
        until_s = self._writer.due_s(version, time.time())
        if self._open is not None:
            version = self._open.expire(version, until_s)
        version = self._writer.publish(version, until_s=until_s)
        merges, self._merged = self._merged, 0
        if self._observer is not None:
            self._observer.published(version, merges=merges)
        for topic, one in parked.items():
            log.error(_PARKED, topic, self._table_of(topic), one.reason)
        return version

    def _with_merged(self, version: TargetVersion) -> TargetVersion:
        """Return the version with the files of a complete merge; if it could not read one, the table is parked."""
        changed = self._compactor.take(version.tables)
        self._merged += len(changed)
        if changed:
            version = replace(version, tables={**version.tables, **changed})
        damaged = self._compactor.take_damaged()
        return park(version, version, _reasons(damaged), time.time()) if damaged else version

    def _plan(
        self, looks: Iterable[Look], version: TargetVersion, refused: Mapping[str, MirrorInconsistent]
    ) -> tuple[dict[str, TablePlan], dict[str, TableEntry], Failures]:
        plans: dict[str, TablePlan] = {}
        entries: dict[str, TableEntry] = {}
        failures: Failures = {}
        has_history = self.version.scd_type == 2
        for look in looks:
            is_dropped = look.topic in version.dropped
            before = (version.dropped if is_dropped else version.tables).get(
                look.topic, TableEntry(look.topic)
            )
            is_left = version.is_left(look.topic)
            if look.topic in refused:
                if not is_left:
                    failures[look.topic] = self._failure(refused[look.topic])
                continue
            if before.applied == BEGINNING and not is_left:  # the records say what its columns are
                before = TableEntry(look.topic, table_version=before.table_version)
            if not look.last_values:
                continue
            try:
                found = self._planned(look, before, is_left=is_left)
                if found is None:
                    continue
                plan, planned = found
                if self._open is not None:
                    self._open.refuse_columns(look.topic, planned.fields)
                entries[look.topic] = planned
            except TABLE_ERRORS as error:
                failures[look.topic] = self._failure(error)
            else:
                plans[look.topic] = replace(
                    plan,
                    parks=self._parks,
                    is_open=self._open is not None,
                    has_history=has_history,
                    known_us=known_us(before, version),
                )
        return plans, entries, failures

    def _planned(
        self, look: Look, before: TableEntry, *, is_left: bool
    ) -> tuple[TablePlan, TableEntry] | None:
        """Return plan and entry of a table, None if it stays parked or dropped. Raises as `plan_or_anew`.

        With records that cdcd did not write the plan is that of the others: the fold finds them again, and fails.
        """
        try:
            return self._plan_of(look, before, is_left=is_left)
        except DECODING_ERRORS as error:
            if not is_of_a_record(error):
                raise
        except RegistryRefused:
            pass  # `readable` raises it again, unless a record has a schema that is not Avro
        known = None if is_left else self.version.tables.get(look.topic)
        own = None if known is None else known.schema_id or None
        rest = readable(look, self._schema_of, own=own, is_left=is_left)
        try:
            return self._plan_of(rest, before, is_left=is_left)
        except DECODING_ERRORS as error:
            if not is_of_a_record(error):
                raise
            raise not_planned(look.topic, error) from error

    def _plan_of(
        self, look: Look, before: TableEntry, *, is_left: bool
    ) -> tuple[TablePlan, TableEntry] | None:
        entry = resumed(look, before, self._schema_of) if is_left else before
        if entry is None:
            return None
        return plan_or_anew(
            look,
            entry,
            before,
            self._schema_of,
            accepts_gaps=self._accept_gaps,
            has_history=self.version.scd_type == 2,
            policies=self._policies,
        )

    def _failure(self, error: CdcdError) -> tuple[str, str]:
        """Return code and text of an error that parks a table; raise it if it has to end the mirror."""
        ends = isinstance(error, ColumnTypeChanged) and self._policies.changed_types == "fail"
        if ends or not self._parks:
            raise error
        return error.code, str(error)

    def _lacking(self, version: TargetVersion, failures: Mapping[str, object]) -> Failures:
        found = incomplete_tables(self._target, version)
        return {topic: self._failure(error) for topic, error in found.items() if topic not in failures}

    def _fold(self, records: Records, plans: dict[str, TablePlan]) -> list[FoldResult]:
        folded = records.fold(plans, self._target, self.buckets)
        moved = {one.topic for one in folded if one.moved} - {one.topic for one in folded if one.failure}
        if moved:
            self._remove([one for one in folded if one.topic in moved])
            whole = {topic: plan for topic, plan in plans.items() if topic in moved}
            folded = [one for one in folded if one.topic not in moved]
            folded += records.fold(whole, self._target, self.buckets, whole=True)
        return folded

    def _remove(self, folded: Iterable[FoldResult]) -> None:
        """Remove the files of folds that are not used: Spark's tasks of other buckets have written them."""
        written = (
            path for one in folded for path in (one.path, one.incomplete_path, one.history_path) if path
        )
        remove_unneeded(self._target, written)

    def _report(
        self, version: TargetVersion, looks: list[Look], folded: list[FoldResult], seconds: float
    ) -> None:
        report = BatchReport(
            self.applied,
            sum(one.rows for one in looks),
            len({one.topic for one in folded if one.changed}),
            sum(1 for one in folded if one.path or one.complete is not None),
            version.commit_lsn,
            sum(one.rows for one in folded),
            seconds,
            version.loading,
            tuple(sorted(version.parked)),
            version.commit_us,
            {one.topic: Read(one.rows, one.size_bytes) for one in looks},
        )
        log.info(
            "batch %d: %d events, %d tables, %d files with %d rows, as of %s, %.1f s",
            report.batch_id,
            report.rows,
            report.tables,
            report.files,
            report.written_rows,
            format_lsn(report.commit_lsn),
            seconds,
        )
        if report.loading:
            log.info("rows of these tables are still missing: %s", ", ".join(report.loading))
        self.applied += 1
        if self._on_batch is not None:
            self._on_batch(report)

    def _table_of(self, topic: str) -> str:
        return topic.removeprefix(f"{self._prefix}.")


def _reasons(errors: Mapping[str, CdcdError]) -> Failures:
    return {topic: (error.code, str(error)) for topic, error in errors.items()}
