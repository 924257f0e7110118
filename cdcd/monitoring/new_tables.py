"""The tables that have joined the publications, and whose earlier rows are to be copied (`snapshot.new_tables`).

In: the published tables, at each comparison.  Out: `waiting`, the tables whose copy is not recorded yet.
Invariant: a table that joins is in `waiting`, which is stored together with the accepted state of the publications,
until its copy is in the progress record: a crash in between loses neither. A table is not copied if a snapshot of
this process has copied it, or if the stream has all of its rows from its creation on. If an earlier table of its name
was published, readers may have rows that do not exist any more: the copy begins with a truncate event.
Must not: start a copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from cdcd.recovery.snapshot_modes import NewTablesPolicy
from cdcd.source.new_tables import with_every_row
from cdcd.source.publication_diff import Published


class TableChanges(NamedTuple):
    """The result of a comparison. `new`: the oids of new tables, each with whether its topic has rows from before.

    `gone`: the names of tables that were published before, are not published, and whose topics have records.
    """

    new: Mapping[int, bool] = {}
    gone: frozenset[str] = frozenset()


class NewTables:
    """One for the process. `compare` is called in a thread, the other methods on the loop."""

    def __init__(self, policy: NewTablesPolicy) -> None:
        self.policy = policy
        self.waiting: dict[int, bool] = {}
        """Their oids, each with whether a truncate event precedes its copy. Stored with the accepted state."""
        self.gone: frozenset[str] = frozenset()
        """As in `TableChanges`. Stored with the accepted state."""
        self.names: dict[int, str] = {}
        """The names of those that wait and are published now."""
        self.is_any = asyncio.Event()
        self._known: Published | None = None
        self._published: frozenset[int] = frozenset()
        self._has_gap = False
        self._is_before_slot = False
        self._copied: frozenset[int] = frozenset()

    @property
    def published(self) -> Collection[int]:
        """The oids of the published tables, as of the last comparison."""
        return self._published

    def is_new(self, relid: int) -> bool:
        """Return whether a table of the stream has joined, as far as is known: it waits, or no comparison has it.

        Its earlier rows may be missing until a comparison proves that the stream has all of them.
        """
        if self.policy != "snapshot" or self._known is None:
            return False
        return relid in self.waiting or not (relid in self._published or relid in self._copied)

    def begin(
        self,
        known: Published | None,
        waiting: Mapping[int, bool] = MappingProxyType({}),
        gone: frozenset[str] = frozenset(),
        *,
        has_gap: bool = False,
    ) -> None:
        """Compare with this stored state from now on, None: with nothing.

        `has_gap`: the stream does not have all changes since then. Without a stored state there is no slot yet: it
        may be created at any time until `streams`.
        """
        self._known, self._has_gap = known, has_gap
        self._published = frozenset(_names(known or {}))
        self._is_before_slot = known is None and has_gap
        if known is not None:
            self.gone = gone
        self._set(waiting if self.policy == "snapshot" else {}, {})

    def compare(
        self,
        connection: Any,
        now: Published,
        has_records: Callable[[str], bool],
        incomplete: Collection[int] = (),
    ) -> TableChanges:
        """Compare. Blocking; raises Source errors. `has_records`: whether the topic of a table's name has some.

        `incomplete`: tables that lack rows without a copy to come, and so have been in the publications before.
        """
        known, has_gap, gone = self._known, self._has_gap, self.gone
        if known is None:
            return TableChanges(gone=gone)
        published, before = _names(now), _names(known)
        earlier = gone.union(before.values())
        gone = frozenset(filter(has_records, earlier.difference(published.values())))
        if self.policy != "snapshot":
            return TableChanges(gone=gone)
        new = {
            relid: (name in earlier or relid in incomplete) and has_records(name)
            for relid, name in published.items()
            if relid not in before
        }
        first = [relid for relid, is_again in new.items() if not is_again]
        complete = () if has_gap or not first else with_every_row(connection, known, now, first)
        return TableChanges(
            {relid: is_again for relid, is_again in new.items() if relid not in complete}, gone
        )

    def accept(self, now: Published, found: TableChanges) -> bool:
        """Take the result of a comparison that is accepted; return whether anything that is stored has changed."""
        before, published = (self.waiting, self.gone), _names(now)
        self._published = frozenset(published)
        self._known, self._has_gap, self.gone = now, self._is_before_slot, found.gone
        new = {relid: is_again for relid, is_again in found.new.items() if relid not in self._copied}
        waiting = {relid: is_again for relid, is_again in self.waiting.items() if relid in published}
        self._set(new | waiting, published)
        self._copied -= published.keys()
        return (self.waiting, self.gone) != before

    def streams(self) -> None:
        """Note that the stream has begun: it has every change from now on."""
        self._is_before_slot = False

    def copied(self, relids: Collection[int]) -> None:
        """Note that a snapshot has copied these tables, also those that no comparison has found yet."""
        self._copied |= frozenset(relids)

    def copy_ended(self, relid: int) -> None:
        """Note that a copy was ended because its table is not published: all rows are copied if it is again.

        If the table is found to be published by the next comparison, it was removed and added in between.
        """
        if self.policy == "snapshot":
            self._set({**self.waiting, relid: True}, self.names)

    def begun(self, relids: Collection[int]) -> None:
        """Note that nothing more has to be begun for these tables."""
        self._set({relid: one for relid, one in self.waiting.items() if relid not in relids}, self.names)

    def _set(self, waiting: Mapping[int, bool], names: Mapping[int, str]) -> None:
        self.waiting = dict(waiting)
        self.names = {relid: names[relid] for relid in self.waiting if relid in names}
        if self.names:
            self.is_any.set()
        else:
            self.is_any.clear()


def _names(published: Published) -> dict[int, str]:
    return {
        relid: table.name for publication in published.values() for relid, table in publication.tables.items()
    }
