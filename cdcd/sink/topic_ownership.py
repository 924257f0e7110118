"""The topics that a slot may write to, by the progress records of all slots on the cluster.

In: the sink's settings.  Out: nothing, or OwnedByAnother.
Invariant: a slot neither creates nor writes a topic that another slot owns (F80). Two slots that claim a topic at
once meet in the log of the progress topic: the slot whose claim is later reads the other claim, committed or not.
The progress topic of another name has the owners under that name. A progress topic that this principal may not read
is skipped: where ACLs are granted by name, the broker refuses its data topics as well.
Must not: write, join a consumer group, wait for another slot's open transaction.
Every function here blocks and belongs in a thread.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping

from confluent_kafka import Consumer, IsolationLevel, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec

from cdcd.errors import OwnedByAnother, ProgressUnreadable, SinkError, SinkUnavailable
from cdcd.model import Progress
from cdcd.sink.admin import Admin
from cdcd.sink.client_log import CLIENT_LOG
from cdcd.sink.error_map import making_client
from cdcd.sink.listed_offset import listed_offset
from cdcd.sink.names import progress_topic
from cdcd.sink.owners import (
    Owner,
    ProgressKey,
    Record,
    conflict,
    is_slots,
    owners_of,
    progress_of,
    same_id,
    topics_elsewhere,
)
from cdcd.sink.progress import key_of
from cdcd.sink.reader import ReadTimeout, next_messages, position_of
from cdcd.sink.settings import READS_TO_END, SinkSettings, reader_properties
from cdcd.sink.topic_identity import TopicIdentities, key_of_topics

__all__ = ["TopicOwnership", "read_owners"]

_LOG = logging.getLogger("cdcd.sink.topic_ownership")
_PARTITION = 0
_WINDOW = 1_000
_WINDOW_OF_OTHERS = 100
"""There may be hundreds of other names; an active slot's last progress is among the last few records."""
_WINDOW_GROWTH = 4
_OF_OTHERS_WITHIN_S = 10.0
_OTHERS_ASKED_EVERY_S = 60.0
_TOPICS = b"/topics"
Span = tuple[int, int]
"""First offset, and the offset after the last one."""
Records = dict[bytes, Record]


class TopicOwnership:
    """The topics of one slot, for one session. `shared_with`: slots whose topics it may write to as well."""

    def __init__(self, settings: SinkSettings, shared_with: Collection[str]) -> None:
        self._settings = settings
        self._shared_with = frozenset(shared_with)
        self._own = ProgressKey(settings.progress_topic, settings.slot)
        self._had: frozenset[str] = frozenset()
        self._since = 0
        self._others: list[Owner] = []
        self._others_due_s = 0.0

    def renew(self, settings: SinkSettings) -> None:
        """Use these settings from now on."""
        self._settings = settings

    def refuse_owned(self, names: Collection[str]) -> OwnedByAnother | None:
        """Raise OwnedByAnother where another slot writes to one of these topics, or under our transactional id.

        Return the error, instead of raising it, for a topic that our own record already has: the rows of both slots
        are in it, and a halt would not remove them.
        """
        is_due = time.monotonic() >= self._others_due_s
        self._since, owners = read_owners(self._settings, is_own_alone=not is_due)
        if is_due:
            self._others = [
                owner for owner in owners if owner.progress_key.progress_topic != self._own.progress_topic
            ]
            self._others_due_s = time.monotonic() + _OTHERS_ASKED_EVERY_S
        else:
            owners = owners + self._others
        own = next((owner for owner in owners if owner.progress_key == self._own), None)
        self._had |= frozenset() if own is None else own.topics
        own_id = self._settings.transactional_id if self._settings.is_exactly_once else ""
        refusal = same_id(own_id, owners, self._own) or self._conflict(set(names) - self._had, owners)
        if refusal is not None:
            raise refusal
        return self._conflict(self._had.intersection(names), owners)

    def refuse_slot_of_another(self, system_identifier: str, database: str) -> None:
        """Raise OwnedByAnother where the progress of another name says that its daemon reads our slot.

        For a caller that is about to drop the slot.
        """
        _, owners = read_owners(self._settings)
        for owner in owners:
            if owner.progress_key != self._own and owner.reads(self._own.slot, system_identifier, database):
                raise OwnedByAnother(
                    f"a daemon with another name reads the slot: {owner}",
                    hint="choose another source.slot.name; or, if that daemon is retired, run "
                    "`cdcd drop-slot` with its configuration",
                    slot=self._own.slot,
                )

    def _conflict(self, names: Collection[str], owners: list[Owner]) -> OwnedByAnother | None:
        return conflict(names, owners, self._own, self._shared_with)

    def refuse_claimed_since(self, names: Collection[str], until: int) -> None:
        """Raise SinkUnavailable where another slot claimed one of these topics before our claim at offset `until`.

        The other claim may still be open or be aborted later: the next session reads its result.
        """
        new = frozenset(names) - self._had
        if new and self._since < until:
            for slot, claimed in self._claims_between(self._since, until).items():
                if slot != self._own.slot and slot not in self._shared_with and (both := new & claimed):
                    raise SinkUnavailable(
                        f"slot {slot} claims {', '.join(sorted(both))} at the same time",
                        hint="no row was written. cdcd tries again, and the next session determines the owner "
                        "of the topic",
                        topic=self._own.progress_topic,
                    )
        self._since, self._had = until + 1, self._had | new

    def _claims_between(self, since: int, until: int) -> dict[str, frozenset[str]]:
        consumer = _consumer(self._settings, is_committed=False)
        try:
            timeout = _own_timeout(self._settings)
            found = _read(consumer, {self._own.progress_topic: (since, until)}, timeout)
        finally:
            consumer.close()
        return {
            slot.decode(): frozenset(TopicIdentities.load(value, offset).names())
            for key, (offset, value) in found[self._own.progress_topic].items()
            if value is not None and key.endswith(_TOPICS) and is_slots(slot := key.removesuffix(_TOPICS))
        }


def read_owners(settings: SinkSettings, *, is_own_alone: bool = False) -> tuple[int, list[Owner]]:
    """Return the end of our own progress topic, and every slot that owns topics on this cluster, ours among them.

    Our own progress topic is read backwards until our own record is found: a first start reads all of it.
    `is_own_alone`: skip the slots of other names. Raises SinkUnavailable, SinkAuthorization, ProgressUnreadable (for
    our own topic).
    """
    own = ProgressKey(settings.progress_topic, settings.slot)
    spans = _spans(settings, is_own_alone=is_own_alone)
    consumer = _consumer(settings)
    try:
        records = _last_records(consumer, settings, spans)
        found = {topic: _progress_in(topic, last, own) for topic, last in records.items()}
        _add_topics(consumer, settings, found, records, spans)
    finally:
        consumer.close()
    owners = [owners_of(topic, found[topic], records[topic], own) for topic in found]
    return spans.get(own.progress_topic, (0, 0))[1], [owner for some in owners for owner in some]


def _progress_in(topic: str, records: Records, own: ProgressKey) -> dict[str, Progress]:
    if topic == own.progress_topic:
        return progress_of(records)
    found: dict[str, Progress] = {}
    for key, record in records.items():
        with contextlib.suppress(ProgressUnreadable):  # the topic of another name may hold other data
            found |= progress_of({key: record})
    return found


def _add_topics(
    consumer: Consumer,
    settings: SinkSettings,
    found: Mapping[str, dict[str, Progress]],
    records: Mapping[str, Records],
    ends: Mapping[str, Span],
) -> None:
    """Read the records of topics that the progress refers to and that `records` lacks.

    A progress topic that was copied, for example to another cluster, has them at other offsets, or has none.
    """
    needed = {
        topic: {
            slot: at for slot, at in topics_elsewhere(slots, records[topic]).items() if at < ends[topic][1]
        }
        for topic, slots in found.items()
    }
    while any(needed.values()):
        places = {topic: slots.popitem() for topic, slots in needed.items() if slots}
        spans = {topic: (at, at + 1) for topic, (_, at) in places.items()}
        own = {topic: span for topic, span in spans.items() if topic == settings.progress_topic}
        read = _read_of_others(consumer, {topic: spans[topic] for topic in spans.keys() - own.keys()})
        if own:
            read |= _read(consumer, own, _own_timeout(settings))
        for topic, (slot, _) in places.items():
            key = key_of_topics(slot)
            if (record := read.get(topic, {}).get(key)) is not None:
                records[topic][key] = record


def _spans(settings: SinkSettings, *, is_own_alone: bool) -> dict[str, Span]:
    """Return the start and the last stable offset of each progress topic."""
    admin = Admin(settings)
    asked = settings.progress_topic if is_own_alone else None
    metadata = admin.metadata(asked, "looking for progress topics")
    suffixes = (settings.progress_topic, progress_topic(""))
    partitions = [
        TopicPartition(name, _PARTITION)
        for name, topic in metadata.topics.items()
        if name.endswith(suffixes) and topic.error is None and _PARTITION in topic.partitions
    ]
    ends: dict[str, list[int]] = {one.topic: [] for one in partitions}
    for spec in (OffsetSpec.earliest(), OffsetSpec.latest()):
        futures = admin.client.list_offsets(
            dict.fromkeys(partitions, spec),
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=settings.operation_timeout_s,
        )
        for partition, future in futures.items():
            try:
                ends[partition.topic].append(listed_offset(future, "looking up its end", partition.topic))
            except SinkError as failure:
                if partition.topic == settings.progress_topic:
                    raise SinkUnavailable(
                        "the broker did not report the end of the progress topic", topic=partition.topic
                    ) from failure
    return {name: (found[0], found[1]) for name, found in ends.items() if len(found) == 2}


def _last_records(
    consumer: Consumer, settings: SinkSettings, spans: Mapping[str, Span]
) -> dict[str, Records]:
    """Return the last record under each key of the progress topics; of other names, only from the latest records."""
    own, key = settings.progress_topic, key_of(settings.slot)
    others = {
        topic: (max(low, end - _WINDOW_OF_OTHERS), end) for topic, (low, end) in spans.items() if topic != own
    }
    found = _read_of_others(consumer, others)
    if own not in spans:
        return found
    low, end = spans[own]
    size, lower = _WINDOW, max(low, end - _WINDOW)
    records = _read(consumer, {own: (lower, end)}, _own_timeout(settings))[own]
    while lower > low and key not in records:
        size *= _WINDOW_GROWTH
        upper, lower = lower, max(low, lower - size)
        records = _read(consumer, {own: (lower, upper)}, _own_timeout(settings))[own] | records
    return found | {own: records}


def _read_of_others(consumer: Consumer, spans: Mapping[str, Span]) -> dict[str, Records]:
    """Read the readable topics: one without the ACL or without a leader does not prevent reading the others."""

    def pass_over(topic: str, error: SinkError) -> None:
        _LOG.info("the owners in %s cannot be read: %s", topic, error.message)

    return (
        _read(consumer, spans, ReadTimeout(time.monotonic() + _OF_OTHERS_WITHIN_S), pass_over)
        if spans
        else {}
    )


def _own_timeout(settings: SinkSettings) -> ReadTimeout:
    """Of a read of our own topic: other slots may have written any number of records since ours."""
    return ReadTimeout.of_silence(settings.operation_timeout_s)


def _read(
    consumer: Consumer,
    spans: Mapping[str, Span],
    timeout: ReadTimeout,
    pass_over: Callable[[str, SinkError], None] | None = None,
) -> dict[str, Records]:
    """Return the last record under each key in these spans.

    A topic that cannot be read in time is left out and passed to `pass_over`. Raises SinkError without `pass_over`.
    """
    found: dict[str, Records] = {topic: {} for topic in spans}
    left = {topic: upper for topic, (lower, upper) in spans.items() if lower < upper}
    consumer.assign([TopicPartition(topic, _PARTITION, spans[topic][0]) for topic in left])

    def give_up(topic: str, error: SinkError) -> None:
        if pass_over is None:
            raise error
        pass_over(topic, error)
        del left[topic], found[topic]

    while left:
        remaining_s = timeout.left_s
        if remaining_s <= 0:
            for topic in sorted(left):
                give_up(topic, SinkUnavailable("a progress topic could not be read in time", topic=topic))
            break
        for message in next_messages(consumer, min(remaining_s, 1.0)):
            topic = message.topic() or ""
            if topic not in left:
                continue
            try:
                position = position_of(message, topic)
            except SinkError as error:
                give_up(topic, error)
                continue
            if position is not None:
                timeout.renew()
                _take(found[topic], message, position, spans[topic])
                if position >= left[topic]:
                    del left[topic]
    return found


def _take(records: Records, message: Message, position: int, span: Span) -> None:
    """Store a record of the span; a consumer at an offset that no longer exists gets the log from its start."""
    key = message.key()
    if message.error() is None and key is not None and span[0] < position <= span[1]:
        records[key] = (position - 1, message.value())


def _consumer(settings: SinkSettings, *, is_committed: bool = True) -> Consumer:
    properties = READS_TO_END | reader_properties(settings)
    if not is_committed:
        properties["isolation.level"] = "read_uncommitted"
    with making_client():
        return Consumer(properties, logger=CLIENT_LOG)
