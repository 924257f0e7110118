"""The topics that lack rows of their tables until a copy brings them. Stored with the identities of the topics.

In: what the stream, the comparisons of the publications and the copies find out.  Out: the topics; JSON.
Invariant: a topic is listed before the first record of a table that has joined, and before the truncate event of a
copy that empties it; it is removed when the copy is complete, or when it is certain that there is none to wait for.
The begin and the end of a copy take effect in the Kafka transaction whose progress record has them, so that neither
a reader nor the next session sees one without the other.
Readers treat these topics as those of tables that are being copied.
Must not: do I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from cdcd.model import CopyState

__all__ = ["IncompleteTopics"]


class IncompleteTopics:
    """The topics of one slot. `is_changed`: they have to be written.

    `joined`: by topic, the relid of its table, which has joined the publications: its copy waits, or no comparison
    has decided yet whether it needs one. `begun`: the topics that are complete only with a copy that has begun, also
    if it was stopped.
    """

    def __init__(self, joined: Mapping[str, int] | None = None, begun: Collection[str] = ()) -> None:
        self.joined: dict[str, int] = dict(joined or {})
        self.begun: dict[str, None] = dict.fromkeys(begun)
        self.is_changed = False
        self._beginning: dict[str, None] = {}
        self._completing: dict[str, None] = {}
        """The topics of copies whose begin, or whose end, no progress record has yet."""

    def names(self) -> tuple[str, ...]:
        """Return all topics."""
        return (*self.joined, *self.begun)

    def join(self, topic: str, relid: int) -> None:
        """Add the topic of a table that has joined."""
        if topic not in self.begun and self.joined.get(topic) != relid:
            self.joined[topic] = relid
            self.is_changed = True

    def begins(self, topic: str) -> None:
        """Note that the topic is complete only with the copy that the next progress record has."""
        self._completing.pop(topic, None)
        self._beginning[topic] = None

    def stops(self, topic: str) -> None:
        """Note that a copy ends before its last row, perhaps before a progress record has its begin."""
        if topic in self._beginning:
            self.begin(topic)

    def completes(self, topic: str) -> None:
        """Note that the topic is complete with the next progress record that does not have its copy any more."""
        self._beginning.pop(topic, None)
        self._completing[topic] = None

    def recorded(self, copy: CopyState | None) -> None:
        """Note the state of the copies in the progress record that is being written."""
        if not (self._beginning or self._completing):
            return
        copied = set() if copy is None else copy.topics
        for topic in [one for one in self._beginning.copy() if one in copied]:
            self.begin(topic)
        for topic in [one for one in self._completing.copy() if one not in copied]:
            self.complete(topic)

    def begin(self, topic: str) -> None:
        """Add a topic that is complete only with a copy."""
        self._beginning.pop(topic, None)
        self.joined.pop(topic, None)
        if topic not in self.begun:
            self.begun[topic] = None
            self.is_changed = True

    def complete(self, topic: str) -> None:
        """Remove a topic."""
        was = len(self.joined) + len(self.begun)
        self._completing.pop(topic, None)
        self.joined.pop(topic, None)
        self.begun.pop(topic, None)
        self.is_changed |= was > len(self.joined) + len(self.begun)

    def leave(self, topics: Collection[str]) -> None:
        """Remove topics of tables that have joined, and that no copy is to follow."""
        for topic in topics:
            self.is_changed |= self.joined.pop(topic, None) is not None

    def clear(self) -> None:
        """Remove all: every table is copied again."""
        self.is_changed |= bool(self.joined or self.begun)
        self.joined, self.begun = {}, {}
        self._beginning, self._completing = {}, {}

    def dump(self) -> dict[str, Any]:
        """Return the JSON object, empty without topics, and reset `is_changed`."""
        self.is_changed = False
        # The event loop may change them meanwhile; a copy is made at once.
        joined, begun = self.joined.copy(), self.begun.copy()
        document: dict[str, Any] = {}
        if joined:
            document["joined"] = dict(sorted(joined.items()))
        if begun:
            document["begun"] = sorted(begun)
        return document

    @classmethod
    def load(cls, document: Mapping[str, Any]) -> IncompleteTopics:
        """Return the topics that `dump` has written. Raises ValueError, TypeError, AttributeError."""
        joined = {str(topic): int(relid) for topic, relid in document.get("joined", {}).items()}
        return cls(joined, [str(topic) for topic in document.get("begun", ())])
