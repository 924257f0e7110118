"""Which tables lack rows that cdcd is to copy: those that have joined, and those whose topics a copy has to complete.

In: the tables that wait (`NewTables`), the rows of the stream, the copies, what an interrupted snapshot leaves.
Out: `IncompleteTopics`.
Invariant: a table that has joined is listed before its first row is written, whether a comparison of the publications
has found it or not: the stream has its rows up to ten seconds earlier. It is listed until its copy is complete, or
until it is certain that none follows. One that is streamed only, by its rule or `snapshot.new_tables`, is not listed.
Must not: do I/O; be called from another thread than the loop's, except the methods `..._now`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping

from cdcd.monitoring.new_tables import NewTables
from cdcd.sink.incomplete_topics import IncompleteTopics

__all__ = ["IncompleteTables"]

MOST_TOPICS = 50
_WAITS = "the table has joined the publications, and its copy has not begun"
_BEGUN = "the last copy of the table is not complete, or was stopped"


class IncompleteTables:
    """One for the process. `is_due`: tables have left the list without a record that says so."""

    def __init__(self, new: NewTables, topic_of: Callable[[str, str], str] | None = None) -> None:
        self._new = new
        self._topic_of = topic_of
        self._topics = IncompleteTopics()
        self._is_wanted = asyncio.Event()
        self._waiting_topics: dict[tuple[int, str], str] = {}
        """By relid and name, the topics of the tables that wait: there may be tens of thousands."""
        self.is_due = asyncio.Event()

    def begin(self, topics: IncompleteTopics) -> None:
        """Continue with the stored topics of a session."""
        self._topics = topics

    async def comparison_wanted(self, timeout_s: float) -> None:
        """Return when a table has joined that no comparison has found, or was altered; after this time at the latest.

        At once if there is one already: the last comparison may have failed because of a lock, or was too early.
        """
        if any(relid not in self._new.waiting for relid in self.joined_now()):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._is_wanted.wait()
        self._is_wanted.clear()

    @property
    def is_unwritten(self) -> bool:
        """Whether the record of the topics has to be written."""
        return self._topics.is_changed

    def page(self) -> list[dict[str, str]]:
        """Return what /status shows: some of the topics, each with the reason."""
        reasons = dict.fromkeys(self._topics.joined.values(), _WAITS)
        reasons |= dict.fromkeys(self._topics.begun.values(), _BEGUN)
        return [{"topic": topic, "reason": reason} for topic, reason in sorted(reasons.items())][:MOST_TOPICS]

    # --- the stream and the copies ---

    def written(self, relid: int, topic: str) -> None:
        """Note that rows of the stream follow in the topic of a table, and in no other one any more."""
        self._topics.moves(relid, topic)
        if self._new.is_new(relid):
            self._topics.join(relid, topic)
            if relid not in self._new.waiting:
                self._is_wanted.set()

    def altered(self) -> None:
        """Note that a table of the stream has other columns: its earlier rows may have changed unsent."""
        self._is_wanted.set()

    def begins(self, relid: int, topic: str, *, is_needed: bool) -> None:
        """Note that a copy begins. `is_needed`: without it readers lack rows that they had, or are to get."""
        if is_needed or relid in self._new.waiting or relid in self._topics.joined:
            self._topics.begins(relid, topic)

    def moves(self, relid: int, topic: str) -> None:
        """Note that a copy continues in another topic."""
        self._topics.moves(relid, topic)

    def completes(self, relid: int, topic: str) -> None:
        """Note that a copy is complete; the position that says so follows."""
        self._topics.completes(relid, topic)

    def emptied(self, relid: int) -> None:
        """Note that the stream empties a table; the position that has it follows.

        A table that waits for its copy is left to it. One that shares its topic with another one that lacks rows
        remains, too: the topic lacks those of the other one.
        """
        begun = self._topics.begun.copy()
        topic = begun.get(relid)
        if topic is not None and list(begun.values()).count(topic) == 1:
            self._topics.completes(relid, topic)

    @property
    def noted(self) -> int:
        """What a position has that is made now, see `IncompleteTopics.recorded`."""
        return self._topics.noted

    # --- the first snapshot ---

    def topic_of(self, title: str) -> str | None:
        """Return the topic of a table SCHEMA.TABLE by its name, None if it is not known."""
        schema, _, table = title.partition(".")
        return None if self._topic_of is None else self._topic_of(schema, table)

    def lacks_rows(self, relid: int, topic: str) -> None:
        """Note, at once, that the first copy of a table goes on while the stream runs, or is given up."""
        self._topics.begin(relid, topic)

    def copied_now(self, relids: Collection[int]) -> None:
        """Note that a snapshot copies these tables: its own records say so until it is complete."""
        self._topics.drop(relids)

    # --- the publications ---

    def joined_now(self) -> Mapping[int, str]:
        """Return the topics of tables that have joined, before a comparison reads the publications."""
        return self._topics.joined.copy()

    def begun_now(self) -> Collection[int]:
        """Return the tables whose topics only a copy that has begun, or is to begin, makes complete."""
        return self._topics.begun.copy().keys()

    def listed_now(self) -> Collection[int]:
        """Return all tables whose topics are listed."""
        return self._topics.joined.copy().keys() | self._topics.begun.copy().keys()

    def settle(
        self,
        seen: Mapping[int, str],
        waited: Collection[int],
        has_records: Collection[str],
        dropped: Collection[int] = (),
    ) -> None:
        """Take the result of a comparison. `seen`: `joined_now` before it; a later table may not be in the result.

        `waited`: the tables that waited for their copy before it. One that has left the publications meanwhile still
        lacks its earlier rows. Of one that has joined and left before any comparison nobody knows that: it may have
        been created, and dropped or detached, in between. `has_records`: the topics with records. `dropped`: the
        tables that do not exist any more, whether their copy waited, had begun or was stopped: nothing can bring
        their rows.
        """
        if self._topics.drop(dropped):
            self.is_due.set()
        joined = self._topics.joined
        settled = [relid for relid in seen if relid not in self._new.waiting and relid in joined]
        for relid in settled:
            topic = joined[relid]
            if relid in waited and topic in has_records:
                self._topics.begin(relid, topic)
        self._leave(settled)
        for relid, topic in self._topics_of_waiting(has_records).items():
            if relid not in self._topics.joined:  # else the stream has said where its rows go
                self._topics.join(relid, topic)

    def _topics_of_waiting(self, has_records: Collection[str]) -> dict[int, str]:
        """Return the topics with records of the tables that wait.

        Readers do not have a table without records; to list it would only make the record larger.
        """
        if self._topic_of is None or not has_records:
            return {}
        known, self._waiting_topics = self._waiting_topics, {}
        for relid, name in self._new.names.items():
            schema, _, table = name.partition(".")
            topic = known.get((relid, name)) or self._topic_of(schema, table)
            self._waiting_topics[relid, name] = topic
        return {relid: topic for (relid, _), topic in self._waiting_topics.items() if topic in has_records}

    def begun(self, relids: Collection[int]) -> None:
        """Note that these tables do not wait any more: their copies have begun, or they are streamed only."""
        self._leave([relid for relid in self.joined_now() if relid in relids])

    def _leave(self, relids: Collection[int]) -> None:
        if relids:
            self._topics.leave(relids)
            self.is_due.set()
