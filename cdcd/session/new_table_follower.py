"""Begin the copies of tables that have joined the publications, or were rewritten, while a session streams.

In: the tables that wait (`NewTables`), the rules of the configuration.
Out: commands for the session's incremental snapshots.
Invariant: a table waits until the progress record has its copy. A table that cannot be copied in this way is only
streamed, with one line in the log. A few tables are begun at a time: every progress record has the state of each
begun one. Until all of its rows are copied, the record says that a table's topic lacks rows, whatever comes between.
A table that fails is tried again, and holds back no other one.
Must not: end the session because of one table.
"""

from __future__ import annotations

import asyncio

import structlog

from cdcd.errors import CdcdError, Retry, SnapshotRefused, SourceSetup
from cdcd.failpoints import hit
from cdcd.monitoring.publication_monitor import PublicationMonitor
from cdcd.session.incremental import IncrementalSnapshots
from cdcd.snapshot.chunk_reader import GRANT_HINT, NO_PRIVILEGE
from cdcd.snapshot.chunk_values import NotPublished
from cdcd.snapshot.control import SnapshotCommand
from cdcd.snapshot.selection import Choice, Selection

_LOG = structlog.stdlib.get_logger("cdcd.snapshot")
MOST_AT_ONCE = 16
LOOK_S = 1.0
RETRY_S = 10.0
_RIGHT_HINT = f"{GRANT_HINT}. cdcd tries again; until then the table's changes are streamed only"
_RULES_HINT = (
    "correct snapshot.overrides for this table, and restart cdcd; until then its changes are streamed only"
)
_FULL_HINT = (
    f"{MOST_AT_ONCE} tables are being copied, paused ones included; the others follow. `cdcd snapshot status` shows "
    "what they wait for"
)


class NewTableFollower:
    """The new tables of one session."""

    def __init__(
        self, copying: IncrementalSnapshots, publications: PublicationMonitor, selection: Selection
    ) -> None:
        self._copying = copying
        self._publications = publications
        self._new = publications.new_tables
        self._selection = selection
        self._is_reported = False
        self._blocking: set[int] = set()
        """Tables whose blocking copy was stopped, to begin it again."""

    async def run(self) -> None:
        """Begin copies until cancelled."""
        while True:
            if not self._new.is_any.is_set():
                self._is_reported = False
            await self._new.is_any.wait()
            try:
                has_failed = await self._begin_some()
            except CdcdError as error:
                _LOG.warning("new_table_not_begun", error=str(error), hint=error.advice, pause_s=RETRY_S)
                has_failed = True
            if self._new.is_any.is_set():
                await asyncio.sleep(RETRY_S if has_failed else LOOK_S)

    async def _begin_some(self) -> bool:
        """Begin the first of the tables that wait; return whether one failed and has to be tried again.

        Raises the error of the first one if each fails for a reason that passes, and errors that end the process.
        """
        chosen = {relid: (self._selection.choice(name), name) for relid, name in self._new.names.items()}
        # Excluded ones first: the limit does not concern them, and readers take a table that waits for a loading one.
        ordered = sorted(
            chosen,
            key=lambda relid: (chosen[relid][0].is_included, -chosen[relid][0].priority, chosen[relid][1]),
        )
        done: list[int] = []
        failed: dict[str, CdcdError] = {}
        included = [relid for relid in ordered if chosen[relid][0].is_included]
        await self._copying.note_uncopied(included, self._new.published)
        try:
            for relid in ordered:
                is_begun = relid in self._copying.relids
                if chosen[relid][0].is_included and not is_begun and self._is_limit_reached():
                    break
                is_again, columns = self._is_emptied(relid, chosen[relid][0]), self._new.columns_of(relid)
                if not is_begun or is_again or relid in self._new.rewritten:
                    hit("new_table_found")
                    error = await self._begin(relid, *chosen[relid], is_again=is_again)
                    if error is not None:
                        failed[chosen[relid][1]] = error
                        continue
                    hit("new_table_begun")
                if self._new.columns_of(relid) == columns:  # else it was rewritten again meanwhile
                    done.append(relid)
        finally:
            if done:
                self._publications.begun(done)
        if failed and not done and all(error.retry is not Retry.OPERATOR for error in failed.values()):
            raise next(iter(failed.values()))
        for name, error in failed.items():
            hint = _hint_of(error)
            _LOG.warning("new_table_not_begun", table=name, error=str(error), hint=hint, pause_s=RETRY_S)
        return bool(failed)

    def _is_emptied(self, relid: int, choice: Choice) -> bool:
        """Return whether a truncate event precedes the copy of a table that waits.

        Not of a rewritten one that is copied by a condition: readers may have other rows, from the stream.
        """
        is_whole = choice.where is None
        return self._new.joined.get(relid, False) or (is_whole and self._new.rewritten.get(relid, False))

    def _is_limit_reached(self) -> bool:
        """Return whether the tables that are being copied hold new ones back; log it once while tables wait."""
        is_full = len(self._copying.live) >= MOST_AT_ONCE
        if is_full and not self._is_reported:
            self._is_reported = True
            _LOG.info("new_tables_wait", waiting=len(self._new.names), hint=_FULL_HINT)
        return is_full

    async def _begin(self, relid: int, choice: Choice, name: str, *, is_again: bool) -> CdcdError | None:
        """Begin the copy of a table, or decide that there is none; return the error if it cannot begin now.

        A copy that is left from before lacks changes of the rows that it has: it is not continued, whatever follows.
        """
        if relid in self._copying.blocking:
            self._blocking.add(relid)
        is_blocking = relid in self._blocking
        recopy = is_again or is_blocking  # a blocking copy of a table without a key would have its rows twice
        command = SnapshotCommand(
            "start", relids=(relid,), where=choice.where, recopy=recopy, is_blocking=is_blocking
        )
        try:
            if relid in self._copying.relids:
                await self._copying.execute(SnapshotCommand("stop", relids=(relid,)))
            if not choice.is_included:
                _LOG.info("new_table_streamed_only", table=name, reason="snapshot.overrides excludes it")
                return None
            await self._copying.execute(command)
        except NotPublished as error:
            return error  # the next comparison of the publications decides
        except SnapshotRefused as refusal:
            _LOG.warning("new_table_streamed_only", table=name, reason=refusal.message, hint=refusal.advice)
        except CdcdError as error:
            if error.retry is Retry.NEVER:
                raise
            return error
        self._blocking.discard(relid)
        return None


def _hint_of(error: CdcdError) -> str:
    if not isinstance(error, SourceSetup):
        return error.advice
    return _RIGHT_HINT if error.context.get("sqlstate") == NO_PRIVILEGE else _RULES_HINT
