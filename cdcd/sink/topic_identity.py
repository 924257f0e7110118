"""The identities of the topics that a slot has written to: topic id and number of partitions.

In: the topics as the brokers describe them.  Out: an error where a topic has changed since it got records.
Also: `owner`, the slot that writes to the topics (F80), read by other slots' starts, None in records of older
versions; `published`, the state of the publications for the next start, as opaque text; `_left`, topics that have
records but whose identity no longer matters, because the tables were copied again since; `incomplete`, topics that
lack rows of their tables, which readers of the topics need as well.
Invariant: a topic that has held records is never silently recreated, nor written to after its identity changed (F66,
F67). The identities are one record in the progress topic, under the key `<slot>/topics`, written in the Kafka
transaction of the first records that depend on it; the progress record has its offset. The value is JSON compressed
with zlib, so that tens of thousands of topics fit in a client's default record size (F65); the first versions wrote
plain JSON.
Must not: do I/O.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

from cdcd.bounded import decompress, json_of, printable
from cdcd.errors import ProgressUnreadable, SinkError, TopicMismatch, TopicMissing, TopicReplaced
from cdcd.sink.incomplete_topics import IncompleteTopics

__all__ = ["TopicIdentities", "TopicIdentity", "TopicOwner", "key_of_topics", "next_turn"]

FORMAT = 1
RESOLUTION_HINT = (
    "run `cdcd resume --accept-topic NAME` to continue with the topic as it is, or "
    "`cdcd resnapshot` to copy the tables again"
)


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """A topic's id, which differs from the id of a later topic with the same name, and its partitions."""

    topic_id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class TopicOwner:
    """The slot that writes to the topics, with its server and database."""

    system_identifier: str
    database: str
    slot: str


class TopicIdentities:
    """The topics of one slot. `is_changed`: the record has to be written; `at`: offset of the last written one."""

    def __init__(self, known: dict[str, TopicIdentity] | None = None, at: int = -1) -> None:
        self._known = known or {}
        self._left: set[str] = set()
        self.at = at
        self._is_changed = False
        self.published = ""
        self.incomplete = IncompleteTopics()
        self.owner: TopicOwner | None = None

    @property
    def is_changed(self) -> bool:
        """Whether the record has to be written."""
        return self._is_changed or self.incomplete.is_changed

    @is_changed.setter
    def is_changed(self, is_changed: bool) -> None:
        self._is_changed = is_changed

    def names(self) -> tuple[str, ...]:
        """Return the names of the topics with an identity."""
        return tuple(self._known)

    def with_records(self) -> tuple[str, ...]:
        """Return the names of all topics that have records of this slot, with or without an identity."""
        return (*self._known, *sorted(self._left))

    def known(self, names: Iterable[str]) -> set[str]:
        """Return the topics in `names` that have held records."""
        return {name for name in names if name in self._known}

    def refuse_missing(self, missing: Iterable[str]) -> None:
        """Raise TopicMissing for a missing topic that has held records."""
        for name in missing:
            if name in self._known:
                raise TopicMissing(
                    "a topic that held records was deleted: readers have lost its records",
                    hint=RESOLUTION_HINT,
                    topic=name,
                )

    def check(self, name: str, now: TopicIdentity) -> None:
        """Raise the error of a topic whose identity has changed. A topic without an identity has no error."""
        was = self._known.get(name)
        failure = None if was is None else difference(name, was, now)
        if failure is not None:
            raise failure

    def take(self, name: str, now: TopicIdentity) -> None:
        """Check a topic, and store its identity when it is new."""
        self.check(name, now)
        if name not in self._known:
            self._known[name] = now
            self._left.discard(name)
            self.is_changed = True

    def forget(self, names: Iterable[str]) -> None:
        """Discard the identities of these topics: their next ones are accepted."""
        for name in names:
            is_known = name in self._left or name in self._known
            self._known.pop(name, None)
            self._left.discard(name)
            self.incomplete.forget(name)
            self.is_changed |= is_known

    def reset(self) -> None:
        """Discard all identities, because all tables are copied again; the names of the topics remain."""
        self.is_changed |= bool(self._known) or bool(self.published)
        self._left |= self._known.keys()
        self._known, self.published = {}, ""
        self.incomplete.clear()

    def publish(self, published: str) -> None:
        """Store the state of the publications."""
        if published != self.published:
            self.published = published
            self.is_changed = True

    def set_owner(self, owner: TopicOwner) -> None:
        """Set the owner of the topics."""
        if owner != self.owner:
            self.owner = owner
            self.is_changed = bool(self._known or self._left) or self.is_changed

    def dump(self) -> bytes:
        """Return the record's value, and reset `is_changed`."""
        self.is_changed = False
        known = sorted(dict(self._known).items())
        topics = {
            name: {"id": identities.topic_id, "partitions": identities.partitions}
            for name, identities in known
        }
        document: dict[str, object] = {"format": FORMAT, "topics": topics}
        if self._left:
            document["left"] = sorted(self._left)
        if self.published:
            document["published"] = self.published
        if incomplete := self.incomplete.dump():
            document["incomplete"] = incomplete
        if self.owner is not None:
            document["owner"] = asdict(self.owner)
        return zlib.compress(json.dumps(document, separators=(",", ":")).encode())

    @classmethod
    def load(cls, value: bytes, at: int) -> TopicIdentities:
        """Return the identities in a record that `dump` has written. Raises ProgressUnreadable."""
        try:
            document = json_of(value if value.startswith(b"{") else decompress(value))
            if document["format"] != FORMAT:
                found = printable(document["format"])
                raise ProgressUnreadable(
                    f"the record of the topics has format {found}, this version reads {FORMAT}",
                    hint="run the version of cdcd that wrote the record, or a newer version",
                )
            known = {
                str(name): TopicIdentity(str(topic["id"]), int(topic["partitions"]))
                for name, topic in document["topics"].items()
            }
            identities = cls(known, at)
            identities.published = str(document.get("published", ""))
            identities._left = {str(name) for name in document.get("left", ())} - known.keys()
            identities.incomplete = IncompleteTopics.load(document.get("incomplete", {}))
            if (owner := document.get("owner")) is not None:
                identities.owner = TopicOwner(*(str(owner[one.name]) for one in fields(TopicOwner)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProgressUnreadable(
                "the record of the topics does not match its format",
                hint="cdcd did not write the record: run `cdcd resnapshot`, which copies the tables and "
                "replaces the record",
            ) from error
        return identities


def key_of_topics(slot: str) -> bytes:
    """Return the record key of a slot's topics. No slot has a / in its name, so it is not the progress of a slot."""
    return f"{slot}/topics".encode()


def difference(name: str, was: TopicIdentity, now: TopicIdentity) -> SinkError | None:
    """Return the error of a topic whose identity has changed, None when it is the same."""
    if was.topic_id != now.topic_id:
        return TopicReplaced(
            "the topic was deleted and recreated: readers have lost its earlier records",
            hint=RESOLUTION_HINT,
            topic=name,
            was=was.topic_id,
            now=now.topic_id,
        )
    if was.partitions != now.partitions:
        return TopicMismatch(
            f"the topic has {now.partitions} partitions, but had {was.partitions} when its records were written",
            hint=f"a new number of partitions breaks the order per key: {RESOLUTION_HINT}",
            topic=name,
        )
    return None


def next_turn(names: Iterable[str], last: str, limit: int) -> list[str]:
    """Return the next names after `last`, sorted, at most `limit`; after the last name it starts again."""
    ordered = sorted(names)
    return ([name for name in ordered if name > last] or ordered)[:limit]
