"""The ids of topics, which distinguish a topic that was deleted and created again from the former topic of its name.

In: a cluster; the records in which a slot describes its topics (`<slot>/topics` in the progress topic), in order.
Out: the id of each topic, and whether offsets that a record names are of another one.
Invariant: an unknown id proves nothing: brokers without ids, records of earlier versions, missing topics. An
id that a slot has replaced by another id stays former, also if a broker that lags still answers it. Offsets
are stored with the id by which a slot described their topic.
Wire source: the daemon's record of its topics (cdcd/sink/topic_identity.py).
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from cdcd.bounded import decompress
from cdcd.errors import PositionUnavailable
from cdcd.spark.clients.kafka import Cluster
from cdcd.spark.source.cuts import ID_BITS, Offsets, has_records, ids_of, of_topics, with_ids

log = logging.getLogger("cdcd.spark.data_source")
ASK_AGAIN_AFTER_S = 30.0
LOOK_AGAIN_S = 1.0
_AGAIN_HINT = (
    "start a new query, with a new checkpoint, at `earliest`; a mirror needs an empty target: the rows of the former "
    "topic are not in Kafka any more"
)


def number_of(topic_id: str) -> int:
    """Return an id as a number that Spark's offsets can have, and every reader of JSON."""
    return int.from_bytes(hashlib.sha256(topic_id.encode()).digest()[: ID_BITS // 8], "big")


class Described(NamedTuple):
    """A slot's record of its topics.

    `incomplete`: those that lack rows of their tables until a copy brings them. Earlier versions list none.
    """

    ids: dict[str, int]
    incomplete: frozenset[str]


def described_in(value: bytes) -> Described:
    """Return what a slot's record of its topics has; nothing if its form is not known."""
    try:
        document = json.loads(value if value.startswith(b"{") else decompress(value))
        ids = {name: number_of(str(one["id"])) for name, one in document["topics"].items()}
        incomplete = document.get("incomplete", {})
        names = (*incomplete.get("joined", {}).values(), *incomplete.get("begun", {}).values())
        return Described(ids, frozenset(map(str, names)))
    except Exception as error:  # noqa: BLE001 - a record of another program must not end the query
        log.warning("a record of the topics is not readable: %s", type(error).__name__)
        return Described({}, frozenset())


class TopicIds:
    """The ids of the topics that a query reads. `topics` None: of all.

    A broker is asked once for each topic; for one without an id again after some time.
    """

    def __init__(self, cluster: Cluster, topics: frozenset[str] | None = None) -> None:
        self._cluster = cluster
        self._topics = topics
        self._present: dict[str, int] = {}
        self._ask_again_s: dict[str, float] = {}
        self._described: dict[str, dict[str, int]] = {}
        """By topic and slot, the id by which the slot has described the topic last; the newest record is the last."""
        self._former: dict[str, set[int]] = {}

    @property
    def described_topics(self) -> frozenset[str]:
        """The topics that slots have described."""
        return frozenset(self._described)

    def note(self, slot: str, recorded: Mapping[str, int]) -> set[str]:
        """Note a slot's record of its topics; return those that were created again since offsets of them were read.

        All offsets that were read before this record are then those of the former topic.
        """
        changed = set()
        for topic, one in recorded.items():
            if self._is_former(topic, one):
                continue  # the slot did not know of the new topic yet
            by_slot = self._described.setdefault(topic, {})
            was = by_slot.pop(slot, None)
            if was is None:
                was = self._answered_before(topic, one)
            by_slot[slot] = one
            if was is not None and was != one:
                self._former.setdefault(topic, set()).add(was)
                changed.add(topic)
        return changed

    def _answered_before(self, topic: str, one: int) -> int | None:
        """Return the id that a broker has answered if it is not this one, and the broker answers another one now."""
        was = self._present.get(topic, one)
        if was == one:
            return None
        self._look_up([topic])
        return was if self._present[topic] != was else None

    def _newest(self, topic: str) -> int | None:
        """Return the id by which a topic was described last."""
        known = [one for one in self._described.get(topic, {}).values() if not self._is_former(topic, one)]
        return known[-1] if known else None

    def _current(self, topics: Collection[str]) -> dict[str, int]:
        """Return the present ids of these topics, of those that have one."""
        unknown = [topic for topic in topics if topic not in self._present and self._is_read(topic)]
        if unknown:
            now_s = time.monotonic()
            self._look_up([topic for topic in unknown if now_s >= self._ask_again_s.get(topic, now_s)])
        found = {}
        for topic in topics:
            one = self._present.get(topic)
            if one is None or self._is_former(topic, one):
                one = self._newest(topic)
            if one is not None:
                found[topic] = one
        return found

    def _is_read(self, topic: str) -> bool:
        return self._topics is None or topic in self._topics

    def _is_former(self, topic: str, one: int) -> bool:
        return one in self._former.get(topic, ())

    def _look_up(self, topics: Sequence[str]) -> None:
        found = self._cluster.ids(topics)
        self._present |= {topic: number_of(one) for topic, one in found.items()}
        until_s = time.monotonic() + ASK_AGAIN_AFTER_S
        self._ask_again_s |= {topic: until_s for topic in topics if topic not in found}

    def former(self, recorded: Mapping[str, int], topics: Iterable[str]) -> frozenset[str]:
        """Return the topics that had other ids when a slot described them so."""
        known = [topic for topic in topics if topic in recorded]
        current = self._current(known)
        return frozenset(topic for topic in known if current.get(topic, recorded[topic]) != recorded[topic])

    def was_created_again(self, topic: str) -> bool:
        """Return whether a slot has described a topic by several ids."""
        return topic in self._former

    def with_ids(self, offsets: Offsets, start: Offsets) -> Offsets:
        """Return offsets with the ids of the topics. `start`: the offsets before them, whose ids remain."""
        before = ids_of(start)
        topics = [
            topic for topic in of_topics(offsets) if topic not in before and has_records(offsets, topic)
        ]
        found = self._current(topics)
        for topic in topics:
            described = self._described.get(topic, {}).values()
            newest = self._newest(topic)
            if newest is not None and found[topic] not in described:
                found[topic] = newest  # the slot has not written to the present topic yet
        return with_ids(offsets, found | before)

    def look_again(self, offsets: Offsets, topics: Collection[str]) -> None:
        """Ask for the present ids of these topics, of those with an id in `offsets`.

        One that has changed is asked for twice: a broker that is late does not know the present one.
        """
        known = {
            topic: one for topic, one in ids_of(offsets).items() if topic in topics and self._is_read(topic)
        }
        found = self._cluster.ids(list(known))
        changed = [topic for topic, one in found.items() if number_of(one) != known[topic]]
        if changed:
            time.sleep(LOOK_AGAIN_S)
            self._look_up(changed)

    def check(self, offsets: Offsets) -> None:
        """Raise PositionUnavailable if offsets are of a former topic."""
        asked = {topic: one for topic, one in ids_of(offsets).items() if self._is_read(topic)}
        current = self._current([topic for topic in of_topics(offsets) if topic in asked])
        for topic, one in current.items():
            if asked[topic] != one:
                raise created_again(topic)


def created_again(topic: str) -> PositionUnavailable:
    """Return the error of a position in a topic that was deleted and created again."""
    return PositionUnavailable(
        "a topic was recreated: the rows after this position were in the former topic",
        hint=_AGAIN_HINT,
        topic=topic,
    )
