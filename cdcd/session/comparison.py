"""The keys that only a topic may have, and the texts with which their table is queried for them.

In: a reader of the topic, the table's plan.  Out: keys to look up in the table.
Invariant: keys are returned again until they are done. The stream never waits for Kafka: reads are in threads, and a
session that ends does not wait for them.
Must not: decide that a row is gone.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from cdcd.avro.key_text import KeyTexts, refuse_keys_without_text
from cdcd.avro.plan import RelationPlan
from cdcd.errors import SnapshotRefused
from cdcd.model import KeyValues
from cdcd.pipeline.table_copies import KEYS_PER_CHUNK
from cdcd.sink.stale_keys import StaleKeys
from cdcd.snapshot.units import CopiedTable
from cdcd.threads import in_thread, start_in_thread

_CONDITION = "the rows of this table cannot be compared: snapshot.overrides copies only a part of them"
_CONDITION_HINT = (
    "remove `where` of the table from snapshot.overrides and restart cdcd; or name the other tables"
)


def check_comparable(table: CopiedTable, plan: RelationPlan) -> None:
    """Raise SnapshotRefused if the rows of a table cannot be compared with the keys in its topic."""
    if table.where is not None:  # its other rows would look as if deleted
        raise SnapshotRefused(_CONDITION, hint=_CONDITION_HINT, table=table.title)
    refuse_keys_without_text(plan)


class TopicKeys(Protocol):
    """The keys of topics: see `cdcd.sink.stale_keys`. `ends_of` blocks."""

    def ends_of(self, plan: RelationPlan) -> tuple[int, ...]: ...  # noqa: D102
    def stale(self, plan: RelationPlan, starts: Sequence[int]) -> StaleKeys: ...  # noqa: D102


class Comparison:
    """The keys that only a topic may have, read once in a session. `deleted`: rows."""

    def __init__(self, topics: TopicKeys, plan: RelationPlan, starts: tuple[int, ...]) -> None:
        """Raises SnapshotRefused if the text of the keys is not known."""
        self._texts = KeyTexts(plan)
        self._plan, self._starts = plan, starts
        self._keys = topics.stale(plan, starts)
        self._is_read = False
        self._taken: dict[bytes, KeyValues] = {}
        self._now: list[bytes] = []
        self.deleted = 0

    def is_of(self, plan: RelationPlan, starts: tuple[int, ...]) -> bool:
        """Return whether the keys are those of the table's present records, without one since `starts`."""
        mine = self._plan.topic, self._plan.key_header, self._starts
        return (plan.topic, plan.key_header, starts) == mine

    async def read(self, give_way: Callable[[float, int], Awaitable[None]]) -> bool:
        """Read the topic for a short time; return whether it is read to its end."""
        if not self._is_read:
            began_s, before = time.monotonic(), self._keys.read_bytes
            self._is_read = await in_thread(self._keys.read)
            await give_way(time.monotonic() - began_s, self._keys.read_bytes - before)
        return self._is_read

    async def next_keys(self, most: int) -> dict[bytes, KeyValues]:
        """Return the keys to look up now: the same ones until they are done. Raises SnapshotRefused."""
        if not self._taken:
            found = await in_thread(self._keys.take, KEYS_PER_CHUNK)
            self._taken = {key: self._texts.of(key) for key in found}
        self._now = list(self._taken)[:most]
        return {key: self._taken[key] for key in self._now}

    def done(self, deleted: int) -> None:
        """Note that the keys were looked up, and the number of keys whose rows are deleted."""
        self.deleted += deleted
        for key in self._now:
            del self._taken[key]

    def end(self) -> None:
        """Close the reader in its thread: nobody waits for Kafka."""
        start_in_thread(self._keys.close)
