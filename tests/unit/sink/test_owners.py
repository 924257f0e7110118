"""The owner of a topic, from the records of progress topics, including those of older versions (F80)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cdcd.errors import OwnedByAnother, ProgressUnreadable
from cdcd.model import Progress, SourceIdentity
from cdcd.sink.owners import (
    Owner,
    ProgressKey,
    Record,
    conflict,
    owners_of,
    progress_of,
    same_id,
    topics_elsewhere,
)
from cdcd.sink.progress import dump
from cdcd.sink.topic_identity import TopicIdentities, TopicIdentity, TopicOwner, key_of_topics

OWN = ProgressKey("shop.__progress", "cdcd_shop")
OTHER = ProgressKey("shop.__progress", "cdcd_b")
ABROAD = ProgressKey("eu.__progress", "cdcd_shop")


def a_progress(slot: str, **more: Any) -> Progress:
    identity = SourceIdentity("7001", 1, "db_b", slot)
    return Progress(identity, "streaming", 1, 2, 3, **more)


def of_topics(*names: str) -> bytes:
    identities = TopicIdentities({name: TopicIdentity("id", 1) for name in names})
    identities.set_owner(TopicOwner("7001", "db_b", "cdcd_b"))
    return identities.dump()


OF_AN_OLDER_VERSION = json.dumps(
    {"format": 1, "topics": {"shop.public.t": {"id": "x", "partitions": 6}}}
).encode()
OF_FORMAT_1 = json.loads(dump(a_progress("cdcd_b", offsets={"shop.public.t": {0: 1}})))
OF_FORMAT_1 = {name: OF_FORMAT_1[name] for name in OF_FORMAT_1.keys() - {"plugin", "two_phase", "slot_lsn"}}


@pytest.mark.parametrize(
    ("progress", "topics", "expected"),
    [
        (dump(a_progress("cdcd_b", topics_at=4)), of_topics("shop.public.t", "x"), {"shop.public.t", "x"}),
        (dump(a_progress("cdcd_b", topics_at=4)), OF_AN_OLDER_VERSION, {"shop.public.t"}),
        (json.dumps(OF_FORMAT_1 | {"format": 1}).encode(), None, {"shop.public.t"}),
        (dump(a_progress("cdcd_b", snapshot_tables=("a", "b"))), of_topics("c"), {"a", "b"}),
        (dump(a_progress("cdcd_b", offsets={"shop.__dead_letters": {0: 1}, "a": {0: 1}})), None, {"a"}),
    ],
    ids=["now", "topics before owners", "progress of format 1", "a snapshot begins again", "dead letters"],
)
def test_an_owner_is_read_from_what_each_version_wrote(
    progress: bytes, topics: bytes | None, expected: set[str]
) -> None:
    records: dict[bytes, Record] = {b"cdcd_b": (5, progress), b"cdcd_b/joining": (6, None)}
    if topics is not None:
        records[key_of_topics("cdcd_b")] = (4, topics)
    found = progress_of(records)
    assert topics_elsewhere(found, records) == {}
    (owner,) = owners_of("shop.__progress", found, records, OWN)
    assert (owner.progress_key, owner.system_identifier, owner.database) == (OTHER, "7001", "db_b")
    assert owner.topics == expected


def test_a_record_of_topics_that_was_not_read_is_asked_for_where_the_progress_says() -> None:
    records: dict[bytes, Record] = {b"cdcd_b": (5, dump(a_progress("cdcd_b", topics_at=4)))}
    assert topics_elsewhere(progress_of(records), records) == {"cdcd_b": 4}


def test_a_slot_whose_progress_was_taken_back_owns_nothing_and_one_that_is_not_read_is_an_error() -> None:
    assert progress_of({b"cdcd_b": (5, None)}) == {}
    with pytest.raises(ProgressUnreadable):
        progress_of({b"cdcd_b": (5, b"\x00\x01")})


def test_what_is_no_slots_name_is_no_slots_progress() -> None:
    """Any program may create such a topic or write to it: a key that was not text once prevented every start."""
    keys = (b"\xff\xfe", b"\x00\x80", b"cdcd_b/topics")
    assert progress_of(dict.fromkeys(keys, (5, b"\x00\x01"))) == {}


def test_another_name_owns_what_its_progress_says_also_where_its_record_of_topics_is_unreadable() -> None:
    progress = dump(a_progress("s", topics_at=4, offsets={"eu.public.t": {0: 1}}))
    records: dict[bytes, Record] = {b"s": (5, progress), key_of_topics("s"): (4, b"{}")}
    (owner,) = owners_of("eu.__progress", progress_of(records), records, OWN)
    assert {"eu.public.t", "eu.message"} <= owner.topics
    with pytest.raises(ProgressUnreadable):
        owners_of(OWN.progress_topic, progress_of(records), records, OWN)


def test_another_name_owns_its_own_topics_whatever_was_written_to_them() -> None:
    records: dict[bytes, Record] = {b"s": (5, dump(a_progress("s")))}
    (owner,) = owners_of("shop.eu.__progress", progress_of(records), records, OWN)
    assert {"shop.eu.message", "shop.eu.transaction", "shop.eu.__schemas"} <= owner.topics


def an_owner(place: ProgressKey, *topics: str, transactional_id: str = "id") -> Owner:
    return Owner(place, "7001", "db_b", transactional_id, frozenset(topics))


@pytest.mark.parametrize(
    ("owners", "shared_with", "is_refused"),
    [
        ([], (), False),
        ([an_owner(OWN, "t")], (), False),
        ([an_owner(OTHER, "u")], (), False),
        ([an_owner(OTHER, "t")], (), True),
        ([an_owner(OTHER, "t")], ("cdcd_b",), False),
        ([an_owner(OTHER, "t")], ("cdcd_c",), True),
        ([an_owner(OTHER, "t"), an_owner(ProgressKey("shop.__progress", "cdcd_c"), "t")], ("cdcd_b",), True),
        ([an_owner(ABROAD, "t")], (), True),
        ([an_owner(ABROAD, "t")], ("cdcd_shop",), False),
    ],
)
def test_a_topic_has_one_slot_that_writes_to_it(
    owners: list[Owner], shared_with: tuple[str, ...], is_refused: bool
) -> None:
    refusal = conflict({"t"}, owners, OWN, shared_with)
    assert (refusal is not None) is is_refused
    assert refusal is None or "drop" not in refusal.advice


def test_the_refusal_says_whose_it_is_and_what_to_set_and_names_few_of_many() -> None:
    names = [f"t{number}" for number in range(9)]
    refusal = conflict(names, [an_owner(OTHER, *names)], OWN, ())
    assert isinstance(refusal, OwnedByAnother)
    assert "t0, t1, t2, t3, t4 and 4 more: slot cdcd_b of database db_b, system identifier 7001" in str(
        refusal
    )
    assert "sink.topics.shared_with: [cdcd_b]" in refusal.advice


@pytest.mark.parametrize(
    ("transactional_id", "owners", "is_refused"),
    [
        ("id", [an_owner(OTHER)], True),
        ("id", [an_owner(ABROAD)], True),
        ("id", [an_owner(OTHER, transactional_id="other")], False),
        ("id", [an_owner(OTHER), an_owner(OWN)], False),
        ("", [an_owner(OTHER, transactional_id="")], False),
    ],
    ids=["of another slot", "of another name", "unused", "already ours", "at least once"],
)
def test_a_transactional_id_has_one_slot(
    transactional_id: str, owners: list[Owner], is_refused: bool
) -> None:
    assert (same_id(transactional_id, owners, OWN) is not None) is is_refused
