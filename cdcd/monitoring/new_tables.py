"""The tables whose rows are to be copied: those that have joined the publications (`snapshot.new_tables`), and those
whose rows PostgreSQL has changed without sending them (`snapshot.rewritten_tables`).

In: the published tables and their forms, at each comparison.
Out: `waiting`, the tables whose copy is not recorded yet.
Invariant: a table that joins is in `waiting`, which is stored together with the accepted state of the publications,
until its copy is in the progress record: a crash in between loses neither. A table is not copied if a snapshot of
this process has copied it, or if the stream has all of its rows from its creation on. If an earlier table of its name
was published, readers may have rows that do not exist any more: the copy begins with a truncate event. So does that
of a table that was written anew: readers cannot tell which type a former value has. A table whose columns have only
got values for earlier rows is copied over these rows. A copy that was at work at the change begins anew, because the
part that it has copied lacks the change.
Must not: start a copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from cdcd.recovery.snapshot_modes import NewTablesPolicy, RewrittenTablesPolicy
from cdcd.source.new_tables import with_every_row
from cdcd.source.publication_diff import NOTHING_STORED, Published, StoredTables, table_names
from cdcd.source.table_forms import NO_FORMS, Forms, FoundForms, rewritten


class TableChanges(NamedTuple):
    """The result of a comparison. `new`: the oids of new tables, each with whether its topic has rows from before.

    `gone`: the names of tables that were published before, are not published, and whose topics have records.
    `rewritten`: as `table_forms.rewritten` returns them. `forms`: of the published tables.
    """

    new: Mapping[int, bool] = MappingProxyType({})
    gone: frozenset[str] = frozenset()
    rewritten: Mapping[int, bool] = MappingProxyType({})
    forms: Forms = MappingProxyType({})


class NewTables:
    """One for the process. `compare` is called in a thread, the other methods on the loop."""

    def __init__(
        self, policy: NewTablesPolicy, rewritten_policy: RewrittenTablesPolicy = "stream_only"
    ) -> None:
        self.policy, self.rewritten_policy = policy, rewritten_policy
        self.joined: Mapping[int, bool] = {}
        """The oids of those that have joined, and wait, each with whether a truncate event precedes its copy."""
        self.rewritten: Mapping[int, bool] = {}
        """The same of those whose rows have changed unsent: a copy at work begins anew. Both are stored."""
        self.waiting: Mapping[int, bool] = {}
        """All that wait."""
        self.forms: Forms = {}
        """The forms of the last accepted comparison. Stored when the columns of a table change."""
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
        if self._known is None or relid in self.waiting:
            return self._known is not None
        return self.policy == "snapshot" and not (relid in self._published or relid in self._copied)

    def columns_of(self, relid: int) -> object:
        """Return what differs after another change of a table's columns, as far as a comparison has found it."""
        form = self.forms.get(relid)
        return form and (form.columns, form.highest)

    @property
    def stored(self) -> StoredTables:
        """What is stored with the accepted state."""
        return StoredTables(self.joined, self.gone, self.rewritten, self.forms)

    @property
    def copies_any(self) -> bool:
        """Whether tables are copied by themselves."""
        return "snapshot" in (self.policy, self.rewritten_policy)

    def begin(
        self,
        known: Published | None,
        stored: StoredTables = NOTHING_STORED,
        *,
        has_gap: bool = False,
    ) -> None:
        """Compare with this stored state from now on, None: with nothing.

        `has_gap`: the stream does not have all changes since then. Without a stored state there is no slot yet: it
        may be created at any time until `streams`.
        """
        self._known, self._has_gap = known, has_gap
        self._published = frozenset(table_names(known or {}))
        self._is_before_slot = known is None and has_gap
        if known is not None:
            self.gone = stored.gone
        self.forms = stored.forms
        self._set(
            stored.waiting if self.policy == "snapshot" else {},
            stored.rewritten if self.rewritten_policy == "snapshot" else {},
            {},
        )

    def compare(
        self,
        connection: Any,
        now: Published,
        has_records: Callable[[str], bool],
        incomplete: Collection[int] = (),
        forms: FoundForms = NO_FORMS,
    ) -> TableChanges:
        """Compare. Blocking; raises Source errors. `has_records`: whether the topic of a table's name has some.

        `incomplete`: tables that lack rows without a copy to come, and so have been in the publications before.
        `forms`: read after `now`.
        """
        found = self._compare_tables(connection, now, has_records, incomplete)
        return found._replace(rewritten=rewritten(self.forms, forms), forms=forms.forms)

    def _compare_tables(
        self, connection: Any, now: Published, has_records: Callable[[str], bool], incomplete: Collection[int]
    ) -> TableChanges:
        known, has_gap, gone = self._known, self._has_gap, self.gone
        if known is None:
            return TableChanges(gone=gone)
        published, before = table_names(now), table_names(known)
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
        before, published = self._to_store(), table_names(now)
        self._published = frozenset(published)
        self._known, self._has_gap, self.gone = now, self._is_before_slot, found.gone
        new = {relid: is_again for relid, is_again in found.new.items() if relid not in self._copied}
        changed = found.rewritten if self.rewritten_policy == "snapshot" else {}
        self.forms = found.forms
        self._set(_either(new, self.joined), _either(changed, self.rewritten), published, of=published)
        self._copied -= published.keys()
        return self._to_store() != before

    def _to_store(self) -> tuple[object, ...]:
        """Return what is stored at once: another file of a table is stored when something else is."""
        columns = {relid: self.columns_of(relid) for relid in self.forms}
        return self.joined, self.gone, self.rewritten, columns

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
            self._set({**self.joined, relid: True}, self.rewritten, self.names)

    def begun(self, relids: Collection[int]) -> None:
        """Note that nothing more has to be begun for these tables."""
        left = self.waiting.keys() - frozenset(relids)
        self._set(self.joined, self.rewritten, self.names, of=left)

    def _set(
        self,
        joined: Mapping[int, bool],
        rewritten: Mapping[int, bool],
        names: Mapping[int, str],
        *,
        of: Collection[int] | None = None,
    ) -> None:
        """Set those that wait, among the tables `of`; None: all."""
        self.joined, self.rewritten = (
            {relid: one for relid, one in tables.items() if of is None or relid in of}
            for tables in (joined, rewritten)
        )
        self.waiting = _either(self.joined, self.rewritten)
        self.names = {relid: names[relid] for relid in self.waiting if relid in names}
        if self.names:
            self.is_any.set()
        else:
            self.is_any.clear()


def _either(tables: Mapping[int, bool], others: Mapping[int, bool]) -> dict[int, bool]:
    """Return all of these tables, each with whether one of its values is true."""
    return {
        relid: tables.get(relid, False) or others.get(relid, False) for relid in tables.keys() | others.keys()
    }
