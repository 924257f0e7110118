"""The stored identity of topics: the topic id and the number of partitions."""

from __future__ import annotations

import base64
import json
import random
import zlib

import pytest

from cdcd.errors import ProgressUnreadable, SinkError, TopicMismatch, TopicMissing, TopicReplaced
from cdcd.sink.topic_identity import TopicIdentities, TopicIdentity, difference, key_of_topics, next_turn
from cdcd.source.publication_diff import Publication, PublicationEntry
from cdcd.source.publication_diff import dump as dump_published

WAS = TopicIdentity("id-1", 6)


@pytest.mark.parametrize(
    ("now", "cls"),
    [
        (TopicIdentity("id-1", 6), None),
        (TopicIdentity("id-2", 6), TopicReplaced),
        (TopicIdentity("id-2", 7), TopicReplaced),
        (TopicIdentity("id-1", 7), TopicMismatch),
    ],
)
def test_a_topic_is_the_one_that_it_was(now: TopicIdentity, cls: type[SinkError] | None) -> None:
    """F66, F67; the error names the resolution."""
    failure = difference("t", WAS, now)
    assert (None if failure is None else type(failure)) is cls
    assert failure is None or "--accept-topic" in str(failure)


def test_what_is_known_is_written_once_and_read_back() -> None:
    identities = TopicIdentities()
    identities.take("a", WAS)
    identities.take("b", TopicIdentity("id-9", 1))
    assert identities.is_changed
    again = TopicIdentities.load(identities.dump(), 7)
    assert not identities.is_changed
    identities.take("a", WAS)
    assert not identities.is_changed
    assert (again.names(), again.at, again.is_changed) == (("a", "b"), 7, False)
    with pytest.raises(TopicReplaced):
        again.take("a", TopicIdentity("id-2", 6))


def test_topics_before_a_reset_are_only_known_to_hold_records() -> None:
    identities = TopicIdentities({"a": WAS, "b": WAS})
    identities.publish("so")
    identities.dump()
    identities.reset()
    assert identities.is_changed
    again = TopicIdentities.load(identities.dump(), 7)
    assert (again.names(), again.with_records(), again.published) == ((), ("a", "b"), "")
    again.refuse_missing(["a"])
    again.take("a", TopicIdentity("id-2", 7))
    assert (again.names(), again.with_records()) == (("a",), ("a", "b"))
    again.dump()
    again.forget(["b"])
    assert again.is_changed
    assert TopicIdentities.load(again.dump(), 8).with_records() == ("a",)


def test_the_record_has_the_published_tables_and_an_older_record_has_none() -> None:
    identities = TopicIdentities({"a": WAS})
    without = identities.dump()
    identities.publish("so")
    assert identities.is_changed
    again = TopicIdentities.load(identities.dump(), 7)
    again.publish("so")
    assert (again.published, again.is_changed) == ("so", False)
    assert TopicIdentities.load(without, 7).published == ""


def test_a_record_of_before_it_was_compressed_is_read() -> None:
    old = b'{"format":1,"topics":{"a":{"id":"id-1","partitions":6}},"published":"so"}'
    identities = TopicIdentities.load(old, 7)
    identities.take("a", WAS)
    identities.publish("so")
    assert (identities.names(), identities.at, identities.is_changed) == (("a",), 7, False)
    assert json.loads(zlib.decompress(identities.dump())) == json.loads(old)


def test_forty_thousand_tables_are_smaller_than_a_client_takes_by_default() -> None:
    """953 kB of 1 MB: mostly the topic ids, which cannot be compressed."""
    tables = range(40_000)
    chance = random.Random(0)
    identities = TopicIdentities()
    for number in tables:
        topic_id = base64.urlsafe_b64encode(chance.randbytes(16)).decode().rstrip("=")
        identities.take(f"shop.public.table_{number:05}", TopicIdentity(topic_id, 6))
    published = {20_000 + 7 * number: PublicationEntry(f"public.table_{number:05}") for number in tables}
    identities.publish(
        dump_published({"cdcd_shop": Publication(16_400, "iudt", version="700", tables=published)})
    )
    assert len(identities.dump()) < 1_000_000


def test_a_topic_that_had_records_is_not_recreated() -> None:
    identities = TopicIdentities({"a": WAS})
    identities.refuse_missing(["b"])
    with pytest.raises(TopicMissing):
        identities.refuse_missing(["b", "a"])


def test_what_is_accepted_counts_from_then_on() -> None:
    identities = TopicIdentities({"a": WAS})
    identities.forget(["a"])
    assert identities.is_changed
    identities.refuse_missing(["a"])
    identities.take("a", TopicIdentity("id-2", 7))
    with pytest.raises(TopicMismatch):
        identities.check("a", TopicIdentity("id-2", 6))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format":2,"topics":{}}',
        b'{"format":1,"topics":{"a":{"id":"x"}}}',
        zlib.compress(b"[]"),
        zlib.compress(b'{"format":1,"topics":{}}')[:-1],
    ],
)
def test_a_record_that_is_not_understood_is_an_error(value: bytes) -> None:
    with pytest.raises(ProgressUnreadable):
        TopicIdentities.load(value, 0)


def test_the_key_is_not_a_slot_name() -> None:
    """Readers of the progress topic skip keys with a slash."""
    assert key_of_topics("cdcd_shop") == b"cdcd_shop/topics"


@pytest.mark.parametrize("count", [0, 1, 19, 20, 21, 50])
def test_each_topic_has_its_turn(count: int) -> None:
    """A few topics are all checked each time; of many topics a fixed number is checked in turn."""
    names = [f"t{number}" for number in random.Random(count).sample(range(1000), count)]
    looks = -(-count // 20)
    last, seen = "", list[str]()
    for _ in range(3 * looks):
        turn = next_turn(names, last, 20)
        assert len(turn) <= 20
        seen += turn
        last = turn[-1]
    assert sorted(seen) == sorted(3 * names)


def test_a_topic_that_comes_or_goes_keeps_no_other_from_its_turn() -> None:
    assert next_turn(["a", "b", "c", "d"], "b", 1) == ["c"]
    assert next_turn(["a", "d"], "c", 1) == ["d"]
    assert next_turn(["a", "d", "e"], "d", 1) == ["e"]
    assert next_turn(["a"], "e", 1) == ["a"]
