"""What the records of a slot count on in their topics: which topic it was, and over how many partitions keys go.

In: the topics as the brokers describe them.  Out: an error where one is no longer what it was when it got records.
Besides: `owner`, who writes to them (F80), for other slots' starts, None in records of older versions; `published`, a
text that is not understood here: what the publications were, for the next start; and what was left (`leave`): topics
that hold records, and of which nothing is counted on, because the tables were copied again since.
Invariant: a topic that has held records is never made again silently, nor written to as another than it was (F66,
F67). What is known is one record in the progress topic, under the key `<slot>/topics`, written in the Kafka
transaction of the first records that count on it; the progress record names its offset. It is JSON in zlib's format,
so that tens of thousands of topics stay below what a client takes by default (F65); the first ones were JSON alone.
Must not: do I/O.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

from cdcd.bounded import json_of, shown, unpacked
from cdcd.errors import ProgressUnreadable, SinkError, TopicMismatch, TopicMissing, TopicReplaced

__all__ = ["TopicIdentities", "TopicIdentity", "TopicOwner", "key_of_topics", "next_turn"]

FORMAT = 1
RESOLUTION_HINT = (
    "`cdcd resume --accept-topic NAME` goes on with it as it is; "
    "`cdcd resnapshot` has the tables copied again"
)


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """A topic's id, which a topic of the same name that is made later does not have, and its partitions."""

    topic_id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class TopicOwner:
    """Who writes to the topics: a slot, of a database of a server."""

    system_identifier: str
    database: str
    slot: str


class TopicIdentities:
    """The topics of one slot. `is_changed`: something is to be written; `at`: the offset of what was written."""

    def __init__(self, known: dict[str, TopicIdentity] | None = None, at: int = -1) -> None:
        self._known = known or {}
        self._left: set[str] = set()
        self.at = at
        self.is_changed = False
        self.published = ""
        self.owner: TopicOwner | None = None

    def names(self) -> tuple[str, ...]:
        """Return the names of the topics that are known."""
        return tuple(self._known)

    def with_records(self) -> tuple[str, ...]:
        """Return the names of the topics that hold records of this slot, also of those that were left."""
        return (*self._known, *sorted(self._left))

    def known(self, names: Iterable[str]) -> set[str]:
        """Return those of these topics that have held records."""
        return {name for name in names if name in self._known}

    def refuse_missing(self, missing: Iterable[str]) -> None:
        """Raise TopicMissing for a topic that has held records and is gone."""
        for name in missing:
            if name in self._known:
                raise TopicMissing(
                    "the topic has held records and is gone: readers can no longer have them",
                    hint=RESOLUTION_HINT,
                    topic=name,
                )

    def check(self, name: str, now: TopicIdentity) -> None:
        """Raise what is wrong with a topic. One that is not known yet is right as it is."""
        was = self._known.get(name)
        failure = None if was is None else difference(name, was, now)
        if failure is not None:
            raise failure

    def take(self, name: str, now: TopicIdentity) -> None:
        """Check a topic, and keep it in mind when it is new."""
        self.check(name, now)
        if name not in self._known:
            self._known[name] = now
            self._left.discard(name)
            self.is_changed = True

    def forget(self, names: Iterable[str]) -> None:
        """Take these topics as they are from now on."""
        for name in names:
            is_known = name in self._left or name in self._known
            self._known.pop(name, None)
            self._left.discard(name)
            self.is_changed |= is_known

    def reset(self) -> None:
        """Count on nothing any more, because all tables are copied again; what holds records stays known by name."""
        self.is_changed |= bool(self._known) or bool(self.published)
        self._left |= self._known.keys()
        self._known, self.published = {}, ""

    def publish(self, published: str) -> None:
        """Keep what the publications are."""
        if published != self.published:
            self.published = published
            self.is_changed = True

    def set_owner(self, owner: TopicOwner) -> None:
        """Say whose they are."""
        if owner != self.owner:
            self.owner = owner
            self.is_changed = bool(self._known or self._left) or self.is_changed

    def dump(self) -> bytes:
        """Return the record's value; nothing is to be written any more but what changes from now on."""
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
        if self.owner is not None:
            document["owner"] = asdict(self.owner)
        return zlib.compress(json.dumps(document, separators=(",", ":")).encode())

    @classmethod
    def load(cls, value: bytes, at: int) -> TopicIdentities:
        """Return what `dump` has written. Raises ProgressUnreadable."""
        try:
            document = json_of(value if value.startswith(b"{") else unpacked(value))
            if document["format"] != FORMAT:
                raise ProgressUnreadable(
                    f"the record of the topics has format {shown(document['format'])}, this version reads {FORMAT}",
                    hint="run the version of cdcd that wrote it, or a newer one",
                )
            known = {
                str(name): TopicIdentity(str(topic["id"]), int(topic["partitions"]))
                for name, topic in document["topics"].items()
            }
            identities = cls(known, at)
            identities.published = str(document.get("published", ""))
            identities._left = {str(name) for name in document.get("left", ())} - known.keys()
            if (owner := document.get("owner")) is not None:
                identities.owner = TopicOwner(*(str(owner[one.name]) for one in fields(TopicOwner)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProgressUnreadable(
                "the record of the topics is not in its format",
                hint="cdcd did not write it: `cdcd resnapshot` copies the tables again and writes another",
            ) from error
        return identities


def key_of_topics(slot: str) -> bytes:
    """Return the record key of a slot's topics. No slot has a / in its name, so it is no slot's progress."""
    return f"{slot}/topics".encode()


def difference(name: str, was: TopicIdentity, now: TopicIdentity) -> SinkError | None:
    """Return the error of a topic that is another than it was, None when it is the same."""
    if was.topic_id != now.topic_id:
        return TopicReplaced(
            "the topic was deleted and made again: what it held before is lost to readers",
            hint=RESOLUTION_HINT,
            topic=name,
            was=was.topic_id,
            now=now.topic_id,
        )
    if was.partitions != now.partitions:
        return TopicMismatch(
            f"the topic has {now.partitions} partitions, keys were hashed over {was.partitions}",
            hint=f"the order per key breaks where the number changes: {RESOLUTION_HINT}",
            topic=name,
        )
    return None


def next_turn(names: Iterable[str], last: str, limit: int) -> list[str]:
    """Return those that come after `last`, at most so many, sorted; after the last of all the first ones again."""
    ordered = sorted(names)
    return ([name for name in ordered if name > last] or ordered)[:limit]
