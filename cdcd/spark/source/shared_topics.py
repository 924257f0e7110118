"""The topics to which several slots write at the same time (`sink.topics.shared_with`).

In: progress records in order.  Out: by topic, its slots.
Invariant: a topic is shared if each of two slots has written to it again after the other one. A slot that replaces a
retired one does not share its topics, and one that is used again does not either. A copy of a table begins anew.
Must not: do I/O.

A mirror cannot have such a topic: the order of two slots' changes is not that of the records, so it would take a
change of one slot with a lower LSN than the last one of the other for a repetition, and leave it out.
"""

from __future__ import annotations

from collections.abc import Iterable

from cdcd.spark.source.cuts import Commit

__all__ = ["Writers"]


class Writers:
    """The slots that write to each topic."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        self._former: dict[str, set[str]] = {}
        self._again: dict[str, set[str]] = {}

    def add(self, record: Commit) -> None:
        """Note the topics of the next record."""
        copied = record.loading - record.waiting if record.waiting else record.loading
        self.forget(copied | (record.snapshot or frozenset()))
        for topic in record.offsets:
            last, self._last[topic] = self._last.get(topic, record.slot), record.slot
            if last == record.slot:
                continue
            former = self._former.setdefault(topic, set())
            former.add(last)
            if record.slot in former:
                self._again.setdefault(topic, set()).add(record.slot)

    def forget(self, topics: Iterable[str]) -> None:
        """Forget who has written to topics."""
        for topic in topics:
            for known in (self._last, self._former, self._again):
                known.pop(topic, None)

    @property
    def shared(self) -> dict[str, tuple[str, ...]]:
        """The slots of each topic that is shared."""
        return {topic: tuple(sorted(slots)) for topic, slots in self._again.items() if len(slots) > 1}
