"""Two slots that claim one topic at the same moment: only the one committed first writes (F80)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.errors import OwnedByAnother, ProgressUnreadable, SinkUnavailable
from cdcd.model import Record
from cdcd.sink.kafka_sink import KafkaSink
from cdcd.sink.progress import dump
from cdcd.sink.reader import read_topic_identities
from cdcd.sink.settings import SinkSettings
from cdcd.sink.topic_identity import TopicIdentities, TopicIdentity, TopicOwner, key_of_topics
from cdcd.sink.topic_ownership import TopicOwnership, read_owners
from tests.support.sinks import make_topics, progress, sink_settings
from tests.support.topics import committed_values, new_name, transactional_producer


class Slot:
    """A sink that has queried the topic's owner, and claims the topic with its first record."""

    def __init__(self, settings: SinkSettings, topic: str) -> None:
        self.settings, self.topic = settings, topic
        self.ownership = TopicOwnership(settings, ())
        self.sink = KafkaSink(settings)
        self.sink.open()
        self.look()
        self.sink.ownership = self.ownership

    def look(self) -> None:
        """Query the owners, as a start does."""
        self.ownership.refuse_owned([self.topic])
        self.sink.identities = TopicIdentities()
        self.sink.identities.set_owner(TopicOwner("7001", "shop", self.settings.slot))
        self.sink.identities.take(self.topic, TopicIdentity("id", 1))

    def write(self) -> None:
        """Write one group."""
        self.sink.begin()
        self.sink.produce([Record(self.topic, 0, b"k", self.settings.slot.encode())], 0)
        self.sink.commit(progress(self.settings.slot))


@pytest.fixture
def slots(kafka: KafkaBroker) -> tuple[Slot, Slot]:
    """Return two slots of one name; both have queried before either wrote."""
    kafka.start()
    first = sink_settings(kafka.bootstrap)
    topic = make_topics(first)
    second = sink_settings(kafka.bootstrap, progress_topic=first.progress_topic)
    return Slot(first, topic), Slot(second, topic)


def test_the_second_claimant_writes_nothing_and_then_finds_the_owner(
    kafka: KafkaBroker, slots: tuple[Slot, Slot]
) -> None:
    first, second = slots
    first.write()
    with pytest.raises(SinkUnavailable, match=f"slot {first.settings.slot} claims {first.topic}"):
        second.write()
    second.sink.abort()
    second.sink.renew_epoch()
    with pytest.raises(OwnedByAnother, match=f"slot {first.settings.slot} of database shop"):
        second.look()
    first.write()
    assert committed_values(kafka.bootstrap, first.topic, 2) == [first.settings.slot.encode()] * 2


def test_a_claim_that_is_not_decided_counts_until_it_is_taken_back(
    kafka: KafkaBroker, slots: tuple[Slot, Slot]
) -> None:
    first, second = slots
    first.sink.begin()
    assert first.sink.identities is not None
    record = (key_of_topics(first.settings.slot), first.sink.identities.dump())
    first.sink.write_ahead(first.settings.progress_topic, [record], "claiming")
    with pytest.raises(SinkUnavailable, match="at the same time"):
        second.write()
    for one in (second, first):
        one.sink.abort()
    for one in (second, first):
        one.sink.renew_epoch()
    second.look()
    second.write()
    assert committed_values(kafka.bootstrap, first.topic, 1) == [second.settings.slot.encode()]


def test_owners_are_found_behind_any_number_of_other_records_and_open_transactions(
    kafka: KafkaBroker, slots: tuple[Slot, Slot]
) -> None:
    """A first start reads the complete topic, and waits for no transaction."""
    first, second = slots
    first.write()
    filling = transactional_producer(kafka.bootstrap, new_name("filling"))
    filling.begin_transaction()
    for number in range(25_000):
        filling.produce(first.settings.progress_topic, None, f"x{number % 7}/joining")
        filling.poll(0)
    filling.commit_transaction(60)
    filling.begin_transaction()
    filling.produce(first.settings.progress_topic, None, "x/joining")
    filling.flush()
    _, owners = read_owners(second.settings)
    (owner,) = [one for one in owners if one.progress_key.progress_topic == first.settings.progress_topic]
    assert (owner.progress_key.slot, owner.topics) == (first.settings.slot, {first.topic})
    filling.abort_transaction()


def test_another_names_progress_topic_that_holds_anything_else_is_passed_over(
    kafka: KafkaBroker, slots: tuple[Slot, Slot]
) -> None:
    first, _ = slots
    foreign = f"{new_name('foreign')}.__progress"
    abroad = sink_settings(kafka.bootstrap, progress_topic=foreign)
    make_topics(abroad)
    producer = transactional_producer(kafka.bootstrap, new_name("foreign"))
    producer.begin_transaction()
    producer.produce(foreign, b"\x00no progress", b"key")
    producer.produce(foreign, b"\x00no progress", b"\xff\x00\xfe")  # not a text either
    producer.commit_transaction(30)
    first.write()
    _, owners = read_owners(first.settings)
    assert first.settings.slot in {owner.progress_key.slot for owner in owners}
    assert foreign not in {owner.progress_key.progress_topic for owner in owners}
    # A slot of theirs with an unreadable record, for example of a later version, hides no other slot.
    producer.begin_transaction()
    producer.produce(foreign, dump(progress("theirs")), "theirs")
    producer.commit_transaction(30)
    _, owners = read_owners(first.settings)
    assert [owner.progress_key.slot for owner in owners if owner.progress_key.progress_topic == foreign] == [
        "theirs"
    ]


@pytest.mark.nightly
def test_a_progress_topic_that_was_copied_takes_nothing_away_from_the_others(
    kafka: KafkaBroker, slots: tuple[Slot, Slot]
) -> None:
    """A copy, for example in another cluster, has its records at other offsets than those they contain."""
    theirs, copied = (f"{new_name('foreign')}.__progress" for _ in range(2))
    identities = TopicIdentities()
    identities.set_owner(TopicOwner("7002", "theirs", "theirs"))
    identities.take("a topic of theirs", TopicIdentity("id", 1))
    producer = transactional_producer(kafka.bootstrap, new_name("foreign"))
    for topic, at in ((theirs, 0), (copied, 100_000)):
        make_topics(sink_settings(kafka.bootstrap, progress_topic=topic))
        producer.begin_transaction()
        producer.produce(topic, identities.dump(), key_of_topics("theirs"))
        for _ in range(200):
            producer.produce(topic, dump(replace(progress("theirs"), topics_at=at)), "theirs")
        producer.commit_transaction(30)
    _, owners = read_owners(slots[0].settings)
    found = {owner.progress_key.progress_topic: owner.topics for owner in owners}
    assert "a topic of theirs" in found[theirs]
    assert "a topic of theirs" not in found[copied]


@pytest.mark.parametrize("at", [0, 1, 100_000])
def test_a_topics_record_that_is_not_at_its_recorded_offset_halts(
    kafka: KafkaBroker, slots: tuple[Slot, Slot], at: int
) -> None:
    """cdcd does not wait for a record beyond the log's end, and accepts no record of another slot or time."""
    first, second = slots
    producer = transactional_producer(kafka.bootstrap, new_name("restored"))
    producer.begin_transaction()
    producer.produce(
        first.settings.progress_topic, TopicIdentities().dump(), key_of_topics(second.settings.slot)
    )
    producer.produce(first.settings.progress_topic, b"x", "another/joining")
    producer.produce(
        first.settings.progress_topic, TopicIdentities().dump(), key_of_topics(first.settings.slot)
    )
    producer.commit_transaction(30)
    with pytest.raises(ProgressUnreadable, match="not at the offset that the progress names"):
        read_topic_identities(first.settings, at)
    assert read_topic_identities(first.settings, 2).names() == TopicIdentities().names()
