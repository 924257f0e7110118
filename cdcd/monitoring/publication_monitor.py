"""Detect changes of the publications, log them, and halt where the stream must not continue (F39, F42, F72).

In: queries of the publications, at each start of a session and at intervals.  Out: a line in the log and a count for
each change; an error where the stream must not continue.
Invariant: every change is logged. A publication that was dropped or recreated halts: changes in between may be
missing. A removed table halts if that is configured. The accepted state is stored in Kafka, so that changes between
two sessions, or while no cdcd runs, are detected too. It is replaced only when nothing halts, or when an operator has
resumed after halts that named every halting change. These changes are known by oids, so the same change made again
halts again.
Must not: report changes as missing that PostgreSQL did publish: it decodes each change by the publication at the time
of the change (F42).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from cdcd.errors import CdcdError, PublicationChanged, PublicationMissing, ServerInternal, SourceUnavailable
from cdcd.monitoring.incomplete_tables import IncompleteTables
from cdcd.monitoring.new_tables import NewTables, TableChanges
from cdcd.ops.metrics import Metrics
from cdcd.sink.incomplete_topics import IncompleteTopics
from cdcd.source.publication_catalog import missing_publications
from cdcd.source.publication_diff import (
    Change,
    Published,
    Step,
    changes,
    dump,
    load,
    load_new_tables,
    not_published_any_more,
    published_oids,
    read_published,
    table_names,
)
from cdcd.source.table_forms import read_forms
from cdcd.source.unpublished_tables import (
    UnpublishedTable,
    read_attached,
    read_existing,
    read_named,
    read_unpublished,
    with_topic,
)

_LOG = structlog.stdlib.get_logger("cdcd.publication")
_LOCK_NOT_AVAILABLE = "55P03"
_LISTED = (
    "the stream no longer has changes of the tables of removed publications; it has changes of the tables of added "
    "publications from now on"
)
_HINTS = {
    "table_removed": "later changes of the table are not in the stream: add the table again, and take a new "
    "snapshot for the missed changes (`cdcd resnapshot`)",
    "table_readded": "changes made between the removal and the addition are not in the stream; `cdcd snapshot "
    "start --table SCHEMA.TABLE --recopy` copies the table again",
    "table_replaced": "changes of the table are not in the stream, and the topic holds the rows of the former "
    "table of this name: add the table to the publication. The earlier rows of the table need a new snapshot "
    "(`cdcd resnapshot`)",
    "table_recreated": "the topic still holds the rows of the dropped table, because DROP TABLE is not in the "
    "stream; `snapshot.new_tables: snapshot` and `cdcd snapshot start --table SCHEMA.TABLE --recopy` remove "
    "these rows",
    "table_renamed": "later changes go to the topic of the new name; if they are not wanted, remove the "
    "table from the publication",
    "table_attached": "later changes go to the topic of the partitioned table; the partition's own topic holds "
    "the earlier records",
    "table_added": "earlier rows of the table are not in the stream; `snapshot.new_tables` determines whether "
    "cdcd copies these rows",
    "columns": "later changes have the columns of the new list",
    "rows": "later changes are filtered by the new filter",
    "options": "later changes are published with the new options",
}


_REWRITTEN = {
    True: "ALTER TABLE has written the table's rows anew, and PostgreSQL does not send them",
    False: "a column was added with a default, and PostgreSQL does not send the rows that have it",
}
_COPIED_HINT = (
    "cdcd copies the table while streaming (`snapshot.rewritten_tables`); `cdcd snapshot status` shows it"
)
_NOT_COPIED_HINT = (
    "readers have the former values until the rows change; `cdcd snapshot start --table SCHEMA.TABLE` copies the "
    "table, also by itself with `snapshot.rewritten_tables: snapshot`"
)
_REMOVALS = ("table_removed", "table_readded", "table_replaced")
_ADDITIONS = ("table_added", "table_recreated")
_ADDED_HINT = (
    "`cdcd resume` (or SIGHUP) continues and streams the table; `cdcd snapshot start --table SCHEMA.TABLE` then "
    "copies the earlier rows. With snapshot.new_tables: snapshot, cdcd copies the rows of new tables automatically"
)
UNPUBLISHED_TABLE_HINT = (
    "the topic of this table holds records, but the stream does not have its changes: another table had the "
    "name, or the table was removed from the publication. To stream the table, add it to the publication; its "
    "earlier rows need a new snapshot (`cdcd resnapshot`)"
)
TopicOf = Callable[[str, str], str]
_NOTHING = TableChanges()
_READS = 3
KNOWN_TOPICS = 16_384
"""Tables whose topics are remembered from one comparison to the next; names of dropped tables are forgotten."""


class PublicationStore(Protocol):
    """Stores the accepted state of the publications."""

    published: str
    incomplete: IncompleteTopics

    def with_records(self) -> tuple[str, ...]: ...  # noqa: D102
    def publish(self, published: str) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Comparison:
    """The publications now, and the changes since `before`. `now` is None if they are not known as of one moment.

    `joined`: the topics of tables that had joined before the publications were read, see `IncompleteTables`.
    `dropped`: the tables whose topics lack rows, and that do not exist any more.
    """

    before: Published | None
    now: Published | None
    missing: list[str]
    found: list[Change]
    with_topic: list[UnpublishedTable] = field(default_factory=list)
    new: TableChanges = _NOTHING
    joined: Mapping[int, str] = field(default_factory=dict)
    dropped: frozenset[int] = frozenset()


class PublicationMonitor:
    """One for the process. `compare` is called in a thread, the other methods on the loop.

    `is_on`: a session runs that has compared them, so a later result may end it; else the next start compares them.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        metrics: Metrics,
        *,
        halts_at_removal: bool,
        topic_of: TopicOf | None = None,
        new_tables: NewTables | None = None,
    ) -> None:
        """`topic_of`: the topic of a table, by schema and name. `new_tables`: by default, those are streamed only."""
        self.new_tables = NewTables("stream_only") if new_tables is None else new_tables
        self._names = names
        self._topic_of = None if topic_of is None else functools.lru_cache(KNOWN_TOPICS)(topic_of)
        self.incomplete = IncompleteTables(self.new_tables, self._topic_of)
        self._reported_with_topic: set[int] = set()
        self._metrics = metrics
        self._halts_at_removal = halts_at_removal
        self._store: PublicationStore | None = None
        self._is_stored = False
        self._accepted: Published | None = None
        self._reported: Published | None = None
        self._resumed: frozenset[Step] = frozenset()
        self.is_on = False

    @property
    def has_baseline(self) -> bool:
        """Whether there is an accepted state to compare with."""
        return self._accepted is not None

    def begin(self, identities: PublicationStore, *, is_anew: bool, has_gap: bool = False) -> None:
        """Compare with the stored state from now on; `is_anew`: with nothing, because all tables are copied.

        `has_gap`: neither the stream nor a snapshot has all changes since that state.
        """
        self._store, self._is_stored = identities, False
        self.incomplete.begin(identities.incomplete)
        if is_anew:
            self._accepted = None
            self.new_tables.begin(None, has_gap=has_gap)
        elif identities.published:
            before = load(identities.published)
            self._accepted = {name: before[name] for name in self._names if name in before}
            self.new_tables.begin(before, load_new_tables(identities.published), has_gap=has_gap)
            if before.keys() != set(self._names):
                _LOG.warning(
                    "publication_list_changed", before=sorted(before), now=sorted(self._names), hint=_LISTED
                )

    def compare(self, connection: Any) -> Comparison:
        """Return the publications now and their changes. Blocking; raises Source errors.

        While a published table is locked, or changes each time, nothing is compared; the next call compares.
        """
        for _ in range(_READS):
            comparison = self._compare(connection)
            # Each query sees the database of its own moment. A difference due to DDL between them is not a finding.
            if not (comparison.found or comparison.with_topic):
                return comparison
            if (again := self._published(connection)) is None or again == comparison.now:
                return comparison
        return Comparison(comparison.before, None, comparison.missing, [])

    def _compare(self, connection: Any) -> Comparison:
        before, joined, listed = self._accepted, self.incomplete.joined_now(), self.incomplete.listed_now()
        missing = missing_publications(connection, self._names)
        now = self._published(connection)
        if now is None:
            return Comparison(before, None, missing, [])
        not_published = read_unpublished(connection, published_oids(now), self._names)
        found = [] if before is None else diff(connection, before, now, not_published)
        known = () if self._store is None else self._store.with_records()
        has_with_topic = [] if self._topic_of is None else with_topic(not_published, self._topic_of, known)
        has_records, begun = self._has_records(frozenset(known)), self.incomplete.begun_now()
        forms = read_forms(connection, published_oids(now))
        new = self.new_tables.compare(connection, now, has_records, begun, forms)
        unknown = frozenset(listed).difference(published_oids(now))
        dropped = unknown.difference(read_existing(connection, unknown))
        return Comparison(before, now, missing, found, has_with_topic, new, joined, dropped)

    def _published(self, connection: Any) -> Published | None:
        """Return the publications, None while a published table is locked."""
        try:
            return read_published(connection, self._names)
        except (SourceUnavailable, ServerInternal) as error:
            # An internal error: a table was dropped while the publication was listed.
            if isinstance(error, ServerInternal) or error.context.get("sqlstate") == _LOCK_NOT_AVAILABLE:
                return None
            raise

    def _has_records(self, topics: Collection[str]) -> Callable[[str], bool]:
        """Return whether the topic of a table SCHEMA.TABLE is one of these."""
        topic_of = self._topic_of

        def has(name: str) -> bool:
            schema, _, table = name.partition(".")
            return topic_of is not None and topic_of(schema, table) in topics

        return has

    def judge(self, comparison: Comparison) -> CdcdError | None:
        """Log and count the new changes; return the error of a change that halts, else accept the present state."""
        if comparison.before is not self._accepted:
            return None  # a later call has been judged before; the next one finds what is left
        # A comparison without an accepted state has reported nothing.
        if comparison.before is not None and comparison.now is not None and comparison.now != self._reported:
            self._reported = comparison.now
            for change in comparison.found:
                self._say(change)
        self._log_with_topic(comparison)
        if comparison.missing:
            return _missing(comparison.missing)
        if comparison.now is None:
            return None
        # A change undone meanwhile is no longer accepted: a table without an entry would be removed by the same oids.
        self._resumed = frozenset(step for step in self._resumed if step.stands(comparison.now))
        halts_at = self._halts_at_removal, self.new_tables.policy == "halt"
        error = what_halts(comparison.found, at_removal=halts_at[0], at_addition=halts_at[1])
        if error is not None and not error.steps <= self._resumed:
            return error
        self._log_rewritten(comparison)
        waited = self.new_tables.waiting
        if self.new_tables.accept(comparison.now, comparison.new):
            self._is_stored = False
        self._accept(comparison.now)
        has_records = () if self._store is None else self._store.with_records()
        self.incomplete.settle(comparison.joined, waited, frozenset(has_records), comparison.dropped)
        return None

    def copied(self, relids: Collection[int]) -> None:
        """Note that a snapshot has copied these tables: none of them is a new one.

        One whose rows have changed unsent may have changed after the snapshot saw it.
        """
        self.new_tables.copied(relids)
        self.begun(frozenset(relids) - self.new_tables.rewritten.keys())

    def begun(self, relids: Collection[int]) -> None:
        """Note that the copy of these new tables is recorded, or that they are streamed only."""
        self.new_tables.begun(relids)
        self.incomplete.begun(relids)
        self._store_again()

    def copy_ended(self, relid: int) -> None:
        """Note that a copy was ended because its table is not published."""
        self.new_tables.copy_ended(relid)
        self._store_again()

    def unseen(self) -> None:
        """Note that the publications cannot be read now."""
        self._metrics.source.unpublished_with_topic(None)

    def resumed(self, error: CdcdError) -> None:
        """Accept the changes named by a halt's error: an operator has resumed.

        They remain accepted at later halts: the new state is in Kafka only after the next transaction.
        """
        if isinstance(error, PublicationChanged):
            self._resumed |= error.steps

    def _store_again(self) -> None:
        self._is_stored = False
        if self._accepted is not None:
            self._accept(self._accepted)

    def _accept(self, now: Published) -> None:
        if now != self._accepted:
            self._accepted, self._is_stored = now, False
        if self._store is not None and not self._is_stored:
            self._store.publish(dump(now, self.new_tables.stored))
            self._is_stored = True

    def _say(self, change: Change) -> None:
        self._metrics.source.publication_changed(change.kind)
        say = _LOG.info if change.kind == "table_gone" else _LOG.warning
        sql = {"sql": change.sql} if change.sql else {}
        hint = hint_of(change)
        say("publication_changed", change=change.kind, reason=change.description, hint=hint, **sql)

    def _log_rewritten(self, comparison: Comparison) -> None:
        names = {} if comparison.now is None else table_names(comparison.now)
        is_copied = self.new_tables.rewritten_policy == "snapshot"
        for relid, is_whole in comparison.new.rewritten.items():
            if relid in names:
                reason, hint = _REWRITTEN[is_whole], _COPIED_HINT if is_copied else _NOT_COPIED_HINT
                _LOG.warning("table_rewritten", table=names[relid], reason=reason, hint=hint)

    def _log_with_topic(self, comparison: Comparison) -> None:
        """Log once in a process each table that is not published although its topic holds records."""
        if comparison.now is None:
            self.unseen()
            return
        self._metrics.source.unpublished_with_topic(len(comparison.with_topic))
        reported = {change.sql for change in comparison.found}
        for one in comparison.with_topic:
            sql = one.added_to(self._names[0])
            if one.relid not in self._reported_with_topic and sql not in reported:
                _LOG.warning("table_not_published", table=one.name, hint=UNPUBLISHED_TABLE_HINT, sql=sql)
        self._reported_with_topic = {one.relid for one in comparison.with_topic}


def diff(
    connection: Any, before: Published, now: Published, not_published: Collection[UnpublishedTable]
) -> list[Change]:
    """Return the changes, with the unpublished tables and partitions that explain them. Raises Source errors."""
    left = not_published_any_more(before, now) - {one.relid for one in not_published}
    roots = read_attached(connection, left, published_oids(now))
    return changes(before, now, not_published, roots, read_named(connection, list(now)))


def hint_of(change: Change) -> str:
    """Return the hint of a change: what it means for the data, and what to do."""
    return _HINTS.get(change.kind, "")


def what_halts(found: Iterable[Change], *, at_removal: bool, at_addition: bool) -> PublicationChanged | None:
    """Return the error of the changes that halt, None if none does.

    `at_removal`: a removed table halts (`source.publication.table_removed`). `at_addition`: a new table halts
    (`snapshot.new_tables`).
    """
    kinds = ("recreated", *(_REMOVALS if at_removal else ()), *(_ADDITIONS if at_addition else ()))
    halting = [change for change in found if change.kind in kinds]
    if not halting:
        return None
    steps = frozenset(change.step for change in halting)
    is_only_added = all(change.kind in _ADDITIONS for change in halting)
    text = "; ".join(change.description for change in halting)
    return PublicationChanged(text, steps=steps, hint=_ADDED_HINT if is_only_added else None)


def _missing(names: list[str]) -> CdcdError:
    return PublicationMissing(
        f"publication was dropped: {', '.join(names)}",
        hint="create the publication again; changes made in the meantime are not in the stream",
    )
