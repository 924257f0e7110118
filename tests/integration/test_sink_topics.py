"""Topics on a real broker: created with their settings, watched, and checked without a trace (F66, F67)."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, ResourceType

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.errors import SinkError, TopicMismatch, TopicMissing
from cdcd.findings import Finding
from cdcd.sink.kafka_sink import KafkaSink
from cdcd.sink.reader import read_last
from cdcd.sink.settings import TopicSettings
from cdcd.sink.topic_identity import TopicIdentities, TopicIdentity
from cdcd.sink.topics import PROGRESS_PROPERTIES, Topics
from tests.support.sinks import progress, sink_settings
from tests.support.topics import create_topic, new_name
from tests.support.waiting import eventually


def look(topics: Topics, names: list[str], own: dict[str, Any] | None = None, **more: Any) -> list[Finding]:
    """Return the state of these topics that a start finds."""
    return topics.checks.topics(topics.cluster_metadata(), names, own or {}, **more)


def make(bootstrap: str, *, create: bool = True, copies: int = 1, **properties: str) -> Topics:
    settings = sink_settings(bootstrap, operation_timeout_s=5.0)
    named = {name.replace("_", "."): value for name, value in properties.items()}
    return Topics(settings, TopicSettings(create, 3, copies, named))


def config_of(bootstrap: str, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})  # the object must outlive its result
    entries = admin.describe_configs([resource])[resource].result(30)
    return {name: entry.value for name, entry in entries.items()}


@pytest.fixture
def bootstrap(kafka: KafkaBroker) -> str:
    kafka.start()
    return kafka.bootstrap


def test_missing_topics_are_made_with_their_settings(bootstrap: str) -> None:
    names = [new_name("a"), new_name("b")]
    assert make(bootstrap, retention_ms="12345678").ensure(names) == dict.fromkeys(names, 3)
    assert config_of(bootstrap, names[0])["retention.ms"] == "12345678"


@pytest.mark.parametrize("how", ["ensure", "ensure_new"])
def test_two_topics_that_are_one_to_kafka_are_not_made_by_one_request_either(
    bootstrap: str, how: str
) -> None:
    """Kafka accepts both in one request, and refuses the second one alone: a later recreation would give only one."""
    base, topics = new_name("x"), make(bootstrap)
    names = [f"{base}.y_z", f"{base}_y.z"]
    with pytest.raises(SinkError, match="cannot be created together with") as caught:
        getattr(topics, how)(names)
    assert "sink.topics.template" in caught.value.advice
    assert topics.partitions(names) == {}
    topics.ensure(names[:1])
    with pytest.raises(SinkError, match="collides"):
        topics.ensure(names)


def test_a_broker_that_hears_of_a_new_topic_late_is_asked_again(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen with three brokers on a busy machine. Here the first answer comes early: the topic is created after it."""
    topics, name, times = make(bootstrap), new_name("late"), []
    topics.identities = TopicIdentities()
    describe = topics._cluster.client.describe_topics

    def early(*asked: Any, **options: Any) -> Any:
        times.append(1)
        if len(times) == 1:
            answers = describe(*asked, **options)
            assert answers[name].exception() is not None, "no broker knows the topic yet"
            make(bootstrap).ensure([name])
            return answers
        return describe(*asked, **options)

    monkeypatch.setattr(topics._cluster.client, "describe_topics", early)
    monkeypatch.setattr(topics._cluster, "ensure", lambda wanted: dict.fromkeys(wanted, 3))
    assert topics.ensure([name]) == {name: 3}
    assert topics.identities.names() == (name,)


def test_a_topic_that_gets_partitions_during_its_lookup_has_the_partitions_that_are_written_to(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F66: keys hashed over another number than the recorded one would go unnoticed from the next start on."""
    topics, name = make(bootstrap), new_name("widened")
    topics.identities = TopicIdentities()
    ensure = topics._cluster.ensure

    def widened(*wanted: Any) -> dict[str, int]:
        found = ensure(*wanted)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_partitions([NewPartitions(name, 5)])[name].result(30)
        eventually(lambda: make(bootstrap).partitions([name]) == {name: 5}, "the partition is added")
        return found

    monkeypatch.setattr(topics._cluster, "ensure", widened)
    partitions = topics.ensure([name])[name]
    topics.identities.check(name, TopicIdentity(topics._cluster.described([name])[name].topic_id, partitions))


def test_a_topic_with_records_is_not_missing_because_one_broker_does_not_list_it(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F67: otherwise the daemon would halt and need an operator."""
    topics, name, times = make(bootstrap), new_name("late"), []
    topics.identities = TopicIdentities()
    topics.ensure([name])
    partitions = topics._cluster.partitions

    def late(names: Any) -> dict[str, int]:
        times.append(1)
        return {} if len(times) == 1 else partitions(names)

    monkeypatch.setattr(topics._cluster, "partitions", late)
    assert topics.ensure([name]) == {name: 3}


def test_a_topic_that_exists_is_used_as_it_is(bootstrap: str) -> None:
    name = new_name("own")
    create_topic(bootstrap, name, partitions=5, config={"retention.ms": "777777"})
    assert make(bootstrap, retention_ms="12345678").ensure([name]) == {name: 5}
    assert config_of(bootstrap, name)["retention.ms"] == "777777"


def test_a_missing_topic_is_an_error_when_creating_is_off(bootstrap: str) -> None:
    name = new_name("missing")
    with pytest.raises(TopicMissing, match=name):
        make(bootstrap, create=False).ensure([name])
    assert make(bootstrap).partitions([name]) == {}


def test_the_progress_topic_is_one_compacted_partition(bootstrap: str) -> None:
    name = new_name("progress")
    make(bootstrap).ensure_progress(name)
    make(bootstrap, create=False).ensure_progress(name)
    assert make(bootstrap).partitions([name]) == {name: 1}
    config = config_of(bootstrap, name)
    assert config["cleanup.policy"] == "compact"
    assert int(config["min.compaction.lag.ms"]) == 7 * 24 * 3600 * 1000


def test_a_progress_topic_that_was_widened_is_used_as_before(bootstrap: str) -> None:
    """Kafka cannot remove a partition: reads and writes use only the first."""
    settings = sink_settings(bootstrap)
    topics = Topics(settings, TopicSettings(True, 1, 1))
    topics.ensure_progress(settings.progress_topic)
    with contextlib.closing(KafkaSink(settings)) as sink:
        sink.open()
        sink.begin()
        sink.commit(progress(settings.slot))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(settings.progress_topic, 3)])[settings.progress_topic].result(30)
    eventually(
        lambda: topics.partitions([settings.progress_topic]).popitem()[1] == 3, "the partition is added"
    )
    topics.ensure_progress(settings.progress_topic)
    with contextlib.closing(KafkaSink(settings)) as sink:
        stored = sink.open()
        assert stored is not None
        assert stored.end_lsn == progress(settings.slot).end_lsn
        sink.begin()
        sink.commit(progress(settings.slot, 0x900))
    last = read_last(settings)
    assert last is not None
    assert last.progress is not None
    assert last.progress.end_lsn == 0x900
    (finding,) = [
        one
        for one in look(topics, [], {settings.progress_topic: PROGRESS_PROPERTIES})
        if "3 part" in one.message
    ]
    assert finding.level == "warn"


@pytest.mark.parametrize(
    ("config", "is_refused"),
    [
        ({}, True),
        ({"cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": "1000000"}, True),
        ({"cleanup.policy": "compact,delete", "retention.ms": "-1"}, False),
        ({"retention.ms": "-1"}, False),
        ({"cleanup.policy": "compact"}, False),
    ],
)
def test_a_progress_topic_that_forgets_is_refused(
    bootstrap: str, config: dict[str, str], is_refused: bool
) -> None:
    """F67: a removed record looks like a first start. The start refuses the topic, and check reports it."""
    name = new_name("progress")
    create_topic(bootstrap, name, partitions=1, config=config)
    reported = [
        one for one in look(make(bootstrap), [], {name: PROGRESS_PROPERTIES}) if "will remove" in one.message
    ]
    assert [one.level for one in reported] == ["fail"] * is_refused
    if is_refused:
        with pytest.raises(TopicMismatch, match="will remove records that cdcd needs"):
            make(bootstrap).ensure_progress(name)
    else:
        make(bootstrap).ensure_progress(name)


def test_check_reports_topics_that_lose_records_with_a_broker(bootstrap: str) -> None:
    """F63: one line for each reason, whatever the number of topics."""
    names = [new_name("thin") for _ in range(5)]
    for name in names:
        create_topic(bootstrap, name, config={"unclean.leader.election.enable": "true"})
    topics = make(bootstrap)
    reported = topics.checks.durability(topics.cluster_metadata(), names)
    assert [(one.level, "5 topics" in one.message) for one in reported] == [("warn", True)]
    assert "one replica and unclean.leader.election.enable=true" in reported[0].message


def test_a_changed_number_of_partitions_is_found(bootstrap: str) -> None:
    """F66: keys would map to other partitions from then on."""
    name = new_name("grown")
    topics = make(bootstrap)
    known = topics.ensure([name])
    topics.verify(known)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(name, 4)])[name].result(30)
    eventually(lambda: make(bootstrap).partitions([name]) == {name: 4}, "the partition is added")
    with pytest.raises(TopicMismatch, match="4 partitions, but had 3"):
        topics.verify(known)


def test_a_deleted_topic_is_found(bootstrap: str) -> None:
    with pytest.raises(TopicMissing):
        make(bootstrap).verify({new_name("gone"): 3})


def test_more_replicas_than_brokers_cannot_be_made(bootstrap: str) -> None:
    with pytest.raises(SinkError, match=r"[Rr]eplication"):
        make(bootstrap, copies=3).ensure([new_name("wide")])


def test_check_names_every_finding_and_creates_nothing(bootstrap: str) -> None:
    absent, present, progress = new_name("absent"), new_name("present"), new_name("progress")
    create_topic(bootstrap, present)
    create_topic(bootstrap, progress, partitions=2)
    found = {
        finding.subject: finding.level
        for finding in look(make(bootstrap), [absent, present], {progress: PROGRESS_PROPERTIES})
    }
    assert found == {
        "sink.topics": "warn",
        f"topic {absent}": "ok",
        f"topic {present}": "ok",
        f"topic {progress}": "fail",
    }
    assert make(bootstrap).partitions([absent]) == {}


@pytest.mark.parametrize(("create", "copies"), [(False, 1), (True, 3)])
def test_check_says_that_a_topic_cannot_come_to_be(bootstrap: str, create: bool, copies: int) -> None:
    name = new_name("absent")
    levels = {
        finding.subject: finding.level
        for finding in look(make(bootstrap, create=create, copies=copies), [name])
    }
    assert levels[f"topic {name}"] == "fail"


def test_topic_names_that_collide_in_kafka_are_reported_with_a_resolution(bootstrap: str) -> None:
    """Kafka's metrics write a dot as an underscore, so it creates only one of two such topics."""
    prefix = new_name("shop")
    one, two = f"{prefix}.a.b_c", f"{prefix}.a_b.c"
    for exists in (False, True):
        if exists:
            create_topic(bootstrap, one)
        failed = [finding for finding in look(make(bootstrap), [one, two]) if finding.level == "fail"]
        assert [finding.subject for finding in failed] == [f"topic {two}"]
        assert "sink.topics.template" in failed[0].hint
    with pytest.raises(SinkError, match="collides") as caught:
        make(bootstrap).ensure([two])
    assert "sink.topics.template" in caught.value.advice


@pytest.mark.parametrize("exists", [True, False])
def test_a_compacted_topic_of_a_table_without_a_key_is_refused(bootstrap: str, exists: bool) -> None:
    """The broker refuses the first record without a key; the check covers new and existing topics."""
    keyless, keyed = new_name("keyless"), new_name("keyed")
    topics = make(bootstrap, cleanup_policy="compact")
    if exists:
        topics.ensure([keyless, keyed])
    failed = [one for one in look(topics, [keyless, keyed], keyless=[keyless]) if one.level == "fail"]
    assert [(one.subject, one.code) for one in failed] == [(f"topic {keyless}", "CDCD-SINK")]
    assert "cleanup.policy=delete" in failed[0].hint
    assert [one.level for one in look(make(bootstrap), [keyed]) if one.level == "fail"] == []


def test_a_topic_that_had_records_and_was_recreated_or_deleted_is_refused(bootstrap: str) -> None:
    """F66, F67: the plan of its table would be refused too, at its first row."""
    gone, again, same = new_name("gone"), new_name("again"), new_name("same")
    topics = make(bootstrap)
    topics.identities = TopicIdentities()
    topics.ensure([same])
    topics.identities.take(gone, TopicIdentity("id of before", 3))
    create_topic(bootstrap, again, partitions=3)
    topics.identities.take(again, TopicIdentity("id of before", 3))
    codes = {one.subject: one.code for one in look(topics, [gone, again, same]) if one.level == "fail"}
    assert codes == {f"topic {gone}": "CDCD-TOPIC-MISSING", f"topic {again}": "CDCD-TOPIC-REPLACED"}
    codes = {one.subject: one.code for one in look(topics, [gone, again], describes=False) if one.code}
    assert codes == {f"topic {gone}": "CDCD-TOPIC-MISSING"}
