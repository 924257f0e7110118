"""Watch what the publications publish, and tell whoever has to know (F39, F42, F72).

In: looks at the publications, at each start of a session and at intervals.  Out: a line in the log and a count for
each change; an error where the stream must not go on.
Invariant: no change is silent. A publication that was dropped, or made again, halts: changes in between may be
missing. A table taken out halts where that is wanted. What is compared with is kept in Kafka, so that what is changed
between two sessions, or while no cdcd runs, is told as well; it moves on only when nothing halts, or when somebody
goes on after halts that named all that does: what they named is known by oids, so the same done again halts again.
Must not: say that something is missing which PostgreSQL has not left out: it judges each change by the publication
as it was then (F42).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from cdcd.errors import CdcdError, PublicationChanged, PublicationMissing, ServerInternal, SourceUnavailable
from cdcd.ops.metrics import Metrics
from cdcd.source.publication_catalog import missing_publications
from cdcd.source.publication_diff import (
    Change,
    Published,
    Step,
    changes,
    dump,
    load,
    not_published_any_more,
    published_oids,
    read_published,
)
from cdcd.source.unpublished_tables import UnpublishedTable, attached, named, unpublished, with_topic

_LOG = structlog.stdlib.get_logger("cdcd.publication")
_LOCK_NOT_AVAILABLE = "55P03"
_LISTED = (
    "changes of the tables of those left out are not in the stream any more, of those added only from now on"
)
_HINTS = {
    "table_removed": "its changes from there on are not in the stream; put it back, and what was missed needs a new "
    "snapshot",
    "table_readded": "its changes in between are not in the stream; they need a new snapshot",
    "table_replaced": "what is written to it does not come, and its topic holds the rows of the table that had the "
    "name: add it to the publication; rows from before need a new snapshot (`cdcd resnapshot`)",
    "table_recreated": "readers of its topic have the rows of the dropped one still: DROP TABLE is not in the "
    "stream; `cdcd resnapshot` has them removed",
    "table_renamed": "its changes go to the topic of its new name from there on; if they are not wanted, take it "
    "out of the publication",
    "table_attached": "its changes go to the topic of the table that it is a partition of from there on, and its own "
    "topic holds what was written before",
    "table_added": "its rows from before are not in the stream",
    "columns": "changes from there on come with the columns of the new list",
    "rows": "changes from there on are filtered by the new filter",
    "options": "changes from there on are published so",
}


UNPUBLISHED_TABLE_HINT = (
    "its topic holds records, and what is written to it does not come: another table had the name, or it was taken "
    "out of the publication. If it is wanted, add it; rows from before need a new snapshot (`cdcd resnapshot`)"
)
TopicOf = Callable[[str, str], str]


class PublicationStore(Protocol):
    """Where it is kept what the publications were."""

    published: str

    def with_records(self) -> tuple[str, ...]: ...  # noqa: D102
    def publish(self, published: str) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen, and the changes since `before`. `now` is None while a published table is locked."""

    before: Published | None
    now: Published | None
    missing: list[str]
    found: list[Change]
    with_topic: list[UnpublishedTable] = field(default_factory=list)


class PublicationMonitor:
    """One for the process. `look` is called in a thread, the rest on the loop.

    `is_on`: a session runs that has compared, so that a later look may end it; else the next beginning judges.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        metrics: Metrics,
        *,
        halts_at_removal: bool,
        topic_of: TopicOf | None = None,
    ) -> None:
        """`topic_of`: the topic of a table, by schema and name."""
        self._names = names
        self._topic_of = None if topic_of is None else functools.cache(topic_of)
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
    def has_looked(self) -> bool:
        """Whether there is something to compare with."""
        return self._accepted is not None

    def begin(self, identities: PublicationStore, *, is_anew: bool) -> None:
        """Compare with what is kept from now on; `is_anew`: with nothing, because all tables are copied."""
        self._store, self._is_stored = identities, False
        if is_anew:
            self._accepted = None
        elif identities.published:
            before = load(identities.published)
            self._accepted = {name: before[name] for name in self._names if name in before}
            if before.keys() != set(self._names):
                _LOG.warning(
                    "publication_list_changed", before=sorted(before), now=sorted(self._names), hint=_LISTED
                )

    def look(self, connection: Any) -> Look:
        """Return what is there now. Blocking; raises Source errors.

        While a published table is locked nothing is compared: the next look sees what has come of it.
        """
        before = self._accepted
        missing = missing_publications(connection, self._names)
        try:
            now = read_published(connection, self._names)
        except (SourceUnavailable, ServerInternal) as error:
            if isinstance(error, ServerInternal) or error.context.get("sqlstate") == _LOCK_NOT_AVAILABLE:
                return Look(
                    before, None, missing, []
                )  # a table that goes while it is listed is an internal error
            raise
        not_published = unpublished(connection, published_oids(now), self._names)
        found = [] if before is None else diff(connection, before, now, not_published)
        known = () if self._store is None else self._store.with_records()
        has_with_topic = [] if self._topic_of is None else with_topic(not_published, self._topic_of, known)
        return Look(before, now, missing, found, has_with_topic)

    def judge(self, look: Look) -> CdcdError | None:
        """Log and count what is new in it; return what must not go on, and take the rest as it is."""
        if look.before is not self._accepted:
            return None  # another look has overtaken it, and the next one sees what it has left
        # A look from before there is something to compare with has told nothing of what it saw.
        if look.before is not None and look.now is not None and look.now != self._reported:
            self._reported = look.now
            for change in look.found:
                self._say(change)
        self._log_with_topic(look)
        if look.missing:
            return _missing(look.missing)
        if look.now is None:
            return None
        # What was undone meanwhile is accepted no more: a table without an entry is taken out by the same oids again.
        self._resumed = frozenset(step for step in self._resumed if step.stands(look.now))
        error = what_halts(look.found, at_removal=self._halts_at_removal)
        if error is not None and not error.steps <= self._resumed:
            return error
        self._accept(look.now)
        return None

    def unseen(self) -> None:
        """What is published cannot be looked at now."""
        self._metrics.source.unpublished_with_topic(None)

    def resumed(self, error: CdcdError) -> None:
        """Somebody goes on after a halt with this error: what it named is accepted.

        It stays so for the next halts: what is compared with is in Kafka only after the next transaction.
        """
        if isinstance(error, PublicationChanged):
            self._resumed |= error.steps

    def _accept(self, now: Published) -> None:
        if now != self._accepted:
            self._accepted, self._is_stored = now, False
        if self._store is not None and not self._is_stored:
            self._store.publish(dump(now))
            self._is_stored = True

    def _say(self, change: Change) -> None:
        self._metrics.source.publication_changed(change.kind)
        say = _LOG.info if change.kind == "table_gone" else _LOG.warning
        sql = {"sql": change.sql} if change.sql else {}
        hint = hint_of(change)
        say("publication_changed", change=change.kind, detail=change.description, hint=hint, **sql)

    def _log_with_topic(self, look: Look) -> None:
        """Say once in a process which tables are not published although their topics hold records."""
        if look.now is None:
            self.unseen()
            return
        self._metrics.source.unpublished_with_topic(len(look.with_topic))
        reported = {change.sql for change in look.found}
        for one in look.with_topic:
            sql = one.added_to(self._names[0])
            if one.relid not in self._reported_with_topic and sql not in reported:
                _LOG.warning("table_not_published", table=one.name, hint=UNPUBLISHED_TABLE_HINT, sql=sql)
        self._reported_with_topic = {one.relid for one in look.with_topic}


def diff(
    connection: Any, before: Published, now: Published, not_published: Collection[UnpublishedTable]
) -> list[Change]:
    """Return what is otherwise now, by what is there besides. Raises Source errors."""
    left = not_published_any_more(before, now) - {one.relid for one in not_published}
    roots = attached(connection, left, published_oids(now))
    return changes(before, now, not_published, roots, named(connection, list(now)))


def hint_of(change: Change) -> str:
    """Return what it means for the data, and what to do."""
    return _HINTS.get(change.kind, "")


def halts(change: Change, *, halts_at_removal: bool) -> bool:
    """Whether the stream must not go on after this change."""
    is_removal = change.kind in ("table_removed", "table_readded", "table_replaced")
    return change.kind == "recreated" or (is_removal and halts_at_removal)


def what_halts(found: Iterable[Change], *, at_removal: bool) -> PublicationChanged | None:
    """Return the error of those changes that must not be passed over, None where there is none.

    `at_removal`: a table that was taken out is one (`source.publication.table_removed`).
    """
    halting = [change for change in found if halts(change, halts_at_removal=at_removal)]
    if not halting:
        return None
    steps = frozenset(change.step for change in halting)
    return PublicationChanged("; ".join(change.description for change in halting), steps=steps)


def _missing(names: list[str]) -> CdcdError:
    return PublicationMissing(
        f"publication was dropped: {', '.join(names)}",
        hint="create it again; what was changed meanwhile is not in the stream",
    )
