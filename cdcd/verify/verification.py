"""Compare tables one after another: read the topics, take a snapshot, read the rest, fold, compare, narrow down.

In: the source, the topics, options.  Out: a `TableOutcome` for each table.
Invariant: the records of the past are read before the snapshot is taken, so that the source holds it back only while
its rows are read, and the last records. Memory is that of one file's keys, however many records a key has. The state
of a table is `differs` only if both sides are as of the same snapshot; otherwise it is `unknown`, with the reason.
Must not: print, or decide about tables that it was not given.
"""

from __future__ import annotations

import functools
import shutil
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdcd.errors import CdcdError, SourceUnavailable
from cdcd.lsn import format_lsn
from cdcd.model import Progress
from cdcd.sink.admin import Admin
from cdcd.sink.reader import peek
from cdcd.sink.settings import SinkSettings
from cdcd.sink.topic_records import cleanup_policies, topics_with_records
from cdcd.snapshot.units import UNIT_PAGES
from cdcd.source.publication_catalog import PublishedTable
from cdcd.verify.findings import add_repeated, counted, open_question, shown_row
from cdcd.verify.fold import (
    REPEATED,
    UNCOPIED,
    Barriers,
    BucketSum,
    Difference,
    Fold,
    bucket_of,
    is_equal,
)
from cdcd.verify.narrowing import differences
from cdcd.verify.outcome import (
    DIFFERS,
    EQUAL,
    UNKNOWN,
    CannotTell,
    GaveWay,
    NotCopiedYet,
    TableOutcome,
    settle,
)
from cdcd.verify.records import ALL_KEYS, KEY_BYTES, ComparedTable, Found
from cdcd.verify.source import OpenTable, Source
from cdcd.verify.source_sql import Part
from cdcd.verify.spill import SpillFolder, file_bits
from cdcd.verify.topic_log import TopicLog, fingerprint

_TRIES = 10
_PAUSE_S = 1.0
_SLICE_S = 0.2
_PART_S = 1.0
_FEWEST_PAGES = 16
_MOST_ROWS_A_PAGE = 291
"""Of 8 kB, with rows of almost no bytes."""
_UNCOPIED = "the configuration does not copy all tables (snapshot.mode)"
_JOINS_WITHIN_S = 25.0
"""cdcd looks for tables that have joined its publications every 10 s."""
_PARTIAL = (
    "cdcd has not copied all rows of the table: its copy waits, is not possible, was abandoned or stopped, or had "
    "a condition (--where). To compare the table, copy it again with --recopy"
)
Report = Callable[[str, str, int, int | None], None]
"""Called with the table, the stage, how much is done, and of how much (None: unknown)."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to compare. `share`: of 65536 keys; `rows_per_second`: of the source, None without a limit.

    `timeout_s`: how long to wait for cdcd, and for Kafka; `most_rows`: how many rows that differ a table may list.
    `is_copied`: cdcd copies every table before it streams it, so that a row without a record is missing.
    """

    folder: Path
    share: int
    timeout_s: float = 300.0
    rows_per_second: float | None = None
    most_rows: int = 100
    shows_keys: bool = False
    is_copied: bool = True


class Verification:
    """Compares tables. Errors: those of Source, Sink and registry, OSError."""

    def __init__(
        self,
        source: Source,
        settings: SinkSettings,
        schema_of: Callable[[int], Any],
        options: Options,
        report: Report,
    ) -> None:
        self._source, self._settings, self._schema_of = source, settings, schema_of
        self._options, self._report = options, report
        self._awaited: set[int] = set()

    @functools.cached_property
    def _admin(self) -> Admin:
        return Admin(self._settings)

    def compare(self, table: PublishedTable, topic: str) -> TableOutcome:
        """Return the outcome of a table."""
        title, began_s = f"{table.schema}.{table.name}", time.monotonic()
        folder = self._options.folder / str(table.relid)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._refuse_copy(table)
            outcome = self._tried(table, topic, folder)
            self._refuse_copy(table)
        except CannotTell as why:
            outcome = TableOutcome(title, UNKNOWN, reason=str(why))
        except CdcdError as error:
            outcome = TableOutcome(title, UNKNOWN, reason=str(error))
        if outcome.state != UNKNOWN:  # otherwise what was read remains for another run
            shutil.rmtree(folder, ignore_errors=True)
        outcome.seconds = round(time.monotonic() - began_s, 1)
        return outcome

    def _tried(self, table: PublishedTable, topic: str, folder: Path) -> TableOutcome:
        is_renewed = False
        for _ in range(_TRIES):
            try:
                return self._once(table, topic, folder)
            except GaveWay:
                time.sleep(_PAUSE_S)
            except NotCopiedYet:
                self._await_copy(table)
            except SourceUnavailable:  # the connection was lost, by now or since the last table
                if is_renewed:
                    raise
                is_renewed = True
                self._source.renew()
        raise CannotTell(f"ALTER TABLE or another lock interrupted the comparison {_TRIES} times")

    def _refuse_copy(self, table: PublishedTable) -> str:
        """Return why rows may have no record although nothing is lost, "" if none may. Raises CannotTell."""
        progress, _ = peek(self._settings, self._settings.operation_timeout_s, self._admin)
        if progress is None:
            raise CannotTell("cdcd has written no progress yet")
        if _is_copying(progress, table.relid):
            raise CannotTell("cdcd is copying the table; verify again when the copy is complete")
        if progress.copy is not None and table.relid in progress.copy.partial:
            return _PARTIAL
        return "" if self._options.is_copied else _UNCOPIED

    def _await_copy(self, table: PublishedTable) -> None:
        """Wait until cdcd has looked for new tables again. Raises CannotTell if it copies this one then."""
        self._awaited.add(table.relid)
        ends_s = time.monotonic() + _JOINS_WITHIN_S
        while time.monotonic() < ends_s:
            self._refuse_copy(table)
            time.sleep(_PAUSE_S)

    def _once(self, table: PublishedTable, topic: str, folder: Path) -> TableOutcome:
        """Return the outcome of one attempt. Raises CannotTell, GaveWay, NotCopiedYet."""
        options = self._options
        with self._source.opened(table, options.share) as now:
            described, unit_pages = now.compared, self._unit_pages(now)
            with self._source.watched(now):
                has_topic = bool(topics_with_records(self._admin, topic))
            if not has_topic:
                return self._without_topic(now, topic)
        log = TopicLog(self._settings, self._admin, described, topic, folder, self._schema_of)
        self._read_on(log, described)
        log.store()
        with self._source.opened(table, options.share, unit_pages) as opened:
            if fingerprint(opened.compared) != fingerprint(described):
                log.remove()  # the table was altered since: its hashes are others
                raise GaveWay
            theirs = self._sums(opened)
            self._source.await_confirmed(opened, options.timeout_s)
            with self._source.watched(opened):
                # A copy that begins and ends meanwhile has its truncate below the snapshot, its rows behind the ends.
                self._refuse_copy(table)
                self._read_on(log, described)
                uncovered = self._refuse_copy(table)
            return self._judged(opened, log, theirs, folder, uncovered)

    def _without_topic(self, opened: OpenTable, topic: str) -> TableOutcome:
        """Return the outcome of a table without a row, and without a topic: cdcd creates it with the first row."""
        if self._sums(opened):
            raise CannotTell(f"there is no topic {topic}")
        lsn = format_lsn(opened.view.marker_lsn)
        return TableOutcome(opened.compared.title, EQUAL, lsn=lsn, rows_in_source=0, rows_in_topics=0)

    def _judged(
        self,
        opened: OpenTable,
        log: TopicLog,
        theirs: Mapping[int, BucketSum],
        folder: Path,
        uncovered: str,
    ) -> TableOutcome:
        """Compare both sides. `uncovered`: why rows may have no record, "" if none may."""
        barriers = Barriers.of(log.found, opened.view)
        fold = Fold(barriers, opened.view)
        ours: dict[int, BucketSum] = {}
        with self._source.watched(opened):
            self._refuse(log, barriers)
            for number in log.files.files:  # each bucket is in one file
                ours |= fold.sums(log.files.sorted_blocks(number), len(opened.compared.columns))
        outcome = counted(opened, ours, theirs)
        outcome.records = log.found.records
        wrong = {one for one in {*ours, *theirs} if not is_equal(ours.get(one), theirs.get(one))}
        unlike = Counter[str]()
        if wrong:
            rows = sum(theirs[one].rows for one in wrong if one in theirs)
            bits = max(log.files.bits, file_bits(rows))
            source = SpillFolder(folder, "source", KEY_BYTES + 8 * len(opened.compared.columns), bits)
            source.remove()
            self._spill_rows(opened, sorted(wrong), source)
            is_covered = not uncovered and self._is_copied(opened, log.found, barriers)
            again = Fold(barriers, opened.view)
            unlike = self._narrow(opened, log, again, wrong, outcome, source, is_covered=is_covered)
            if unlike[UNCOPIED] and not uncovered:
                raise NotCopiedYet
        settle(outcome)
        if outcome.state == DIFFERS:
            self._refuse_difference(opened, log, fold)
        add_repeated(outcome, unlike[REPEATED])
        if reason := open_question(outcome, log.found, barriers, fold.incomplete):
            raise CannotTell(reason)
        if unlike[UNCOPIED] and outcome.state != DIFFERS:
            raise CannotTell(f"{unlike[UNCOPIED]:,} rows have no record, and {uncovered}")
        return outcome

    def _refuse_difference(self, opened: OpenTable, log: TopicLog, fold: Fold) -> None:
        """Raise CannotTell if records that were not compared may have the rows that differ."""
        if fold.skipped_copies:
            raise CannotTell("cdcd copied the table meanwhile; verify again")
        with self._source.watched(opened):
            if unread := log.unread():
                raise CannotTell(f"the topic {unread[0]} is new; verify again")

    def _is_copied(self, opened: OpenTable, found: Found, barriers: Barriers) -> bool:
        """Return whether the topic has the rows of a copy, or cdcd is not about to copy the table."""
        return found.copied > barriers.emptied or opened.compared.relid in self._awaited

    def _refuse(self, log: TopicLog, barriers: Barriers) -> None:
        found = log.found
        if found.is_flat:
            raise CannotTell("records of the flat format do not have the transaction's id")
        if found.gap > barriers.emptied:
            raise CannotTell(
                "the topic has a marker of missing changes (`resume --accept-gap`, `resnapshot`)"
            )
        if found.keyless > barriers.emptied:
            raise CannotTell("the topic has records without a key")
        if found.other_key > barriers.emptied:
            raise CannotTell("the topic has records with a key of other columns, or of another type")
        numbers = {topic: number for number, topic in enumerate(log.topics)}
        removed = {(numbers[topic], partition) for (topic, partition), at in log.starts.items() if at > 0}
        if not removed <= barriers.emptied_in:
            raise CannotTell("Kafka has removed the first records of the topic (retention)")
        policies = cleanup_policies(self._admin, log.topics)
        if policies.keys() != set(log.topics):
            raise CannotTell("the cleanup.policy of the topic cannot be read: grant DescribeConfigs on it")
        if any("compact" in policy for policy in policies.values()):
            raise CannotTell("the topic is compacted, so that records may be missing")

    # --- reading

    def _read_on(self, log: TopicLog, table: ComparedTable) -> None:
        def report(done: int, total: int) -> None:
            self._report(table.title, "topics", done, total)

        for _ in log.read_on(self._options.timeout_s, report):
            pass

    def _unit_pages(self, opened: OpenTable) -> int:
        """Return the pages of a part: with a limit of rows per second those that take a second."""
        rate, rows = self._options.rows_per_second, opened.estimate
        if rate is None:
            return UNIT_PAGES
        if not rows or not opened.pages:  # without statistics: as if the pages were full
            return max(_FEWEST_PAGES, min(UNIT_PAGES, int(rate * _PART_S / _MOST_ROWS_A_PAGE)))
        return max(_FEWEST_PAGES, min(UNIT_PAGES, int(opened.pages * rate * _PART_S / rows)))

    def _sums(self, opened: OpenTable) -> dict[int, BucketSum]:
        found: dict[int, BucketSum] = {}
        width, done = len(opened.compared.columns), 0
        for part in opened.parts:
            began_s = time.monotonic()
            rows = 0
            for bucket, count, sums in self._source.sums(opened, part):
                one = found.setdefault(bucket, BucketSum(0, [0] * width))
                one.rows += count
                one.sums = [was + more for was, more in zip(one.sums, sums, strict=True)]
                rows += count
            opened.read[part] = rows * ALL_KEYS // self._options.share
            done += opened.read[part]
            self._report(opened.compared.title, "source", done, opened.estimate)
            self._pause(opened, part, began_s)
        return found

    def _pause(self, opened: OpenTable, part: Part, began_s: float) -> None:
        """Wait until the part may have been read by the limit, whatever was taken of its rows."""
        if self._options.rows_per_second is None:
            return
        ends_s = began_s + opened.read[part] / self._options.rows_per_second
        while (left_s := ends_s - time.monotonic()) > 0:
            self._source.give_way(opened)
            time.sleep(min(left_s, _SLICE_S))

    # --- the rows that differ

    def _narrow(
        self,
        opened: OpenTable,
        log: TopicLog,
        fold: Fold,
        wrong: Set[int],
        outcome: TableOutcome,
        source: SpillFolder,
        *,
        is_covered: bool,
    ) -> Counter[str]:
        """Find the rows that differ. Return the numbers of those that are no differences, by kind."""
        unlike, different = Counter[str](), list[Difference]()
        with self._source.watched(opened):
            for one in differences(log.files, fold, wrong, source, is_covered=is_covered):
                if one.kind in (UNCOPIED, REPEATED):
                    unlike[one.kind] += 1
                    continue
                setattr(outcome, one.kind, getattr(outcome, one.kind) + 1)
                if len(different) < self._options.most_rows:
                    different.append(one)
        texts: dict[bytes, str] = {}
        if self._options.shows_keys:
            outcome.reason = self._add_keys(opened, log, different, texts)
        outcome.rows = [shown_row(one, opened.compared, log, texts) for one in different]
        return unlike

    def _spill_rows(self, opened: OpenTable, wrong: Sequence[int], source: SpillFolder) -> None:
        row = struct.Struct(f">{2 + len(opened.compared.columns)}q")
        done = 0
        for part in opened.parts:
            began_s = time.monotonic()
            for rows in self._source.rows(opened, part, wrong, with_key=False):
                for one in rows:
                    source.append(row.pack(*one))
                done += len(rows)
                self._report(opened.compared.title, "rows", done, None)
            self._pause(opened, part, began_s)
        source.flush()

    def _add_keys(
        self, opened: OpenTable, log: TopicLog, different: Sequence[Difference], found: dict[bytes, str]
    ) -> str:
        """Add the texts of keys; return why some are not there, "" if all are. The rows differ without them, too."""
        try:
            self._add_keys_of_source(opened, {one.key for one in different}, found)
            with self._source.watched(opened):
                for one in different:
                    if one.key not in found and one.place is not None:
                        found[one.key] = log.key_at(one.place)
        except GaveWay:
            return "not all keys are shown: another session waits for the lock of the table"
        except (CannotTell, CdcdError) as why:
            return f"not all keys are shown: {why}"
        return ""

    def _add_keys_of_source(self, opened: OpenTable, wanted: Set[bytes], found: dict[bytes, str]) -> None:
        buckets = sorted({bucket_of(key) for key in wanted})
        for part in opened.parts:
            began_s = time.monotonic()
            for rows in self._source.rows(opened, part, buckets, with_key=True):
                for first, second, *_, text in rows:
                    key = struct.pack(">qq", first, second)
                    if key in wanted:
                        found[key] = text
            self._pause(opened, part, began_s)


def _is_copying(progress: Progress, relid: int) -> bool:
    if progress.phase == "snapshot":
        return True
    copy = progress.copy
    return copy is not None and (relid in copy.pending or relid in copy.tables or relid in copy.blocking)
