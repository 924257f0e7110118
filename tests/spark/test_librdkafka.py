"""The client of a reader: what it says, what it must not say, and that nothing of it is left, by both readers."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import astuple

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.errors import ConfigError, SinkUnavailable
from cdcd.spark.clients import kafka as reading
from cdcd.spark.clients import librdkafka
from cdcd.spark.clients.kafka import Range
from cdcd.spark.source import ranges
from cdcd.spark.source.ranges import read_ranges
from tests.spark.ranges import IN_USE, Topic, by_place, records, rows_of, use
from tests.support.running import of_librdkafka
from tests.support.secured_kafka import SecuredKafka
from tests.support.topics import new_name
from tests.support.waiting import eventually


@IN_USE
@pytest.mark.parametrize("end", ["returns", "is abandoned", "fails", "cannot be created"])
def test_the_client_is_destroyed(implementation: str, kafka: KafkaBroker, end: str) -> None:
    """In a process of its own: a client of another test, whose broker has ended, starts threads at any time."""
    topic = Topic(kafka.bootstrap)
    topic.commit(records(0, 60_000))
    wanted = [Range(new_name("missing"), 0, 0, 1)] if end == "fails" else topic.ranges()
    code = "import sys, tests.spark.test_librdkafka as one; one.read_and_count(*sys.argv[1:])"
    arguments = [implementation, kafka.bootstrap, end, json.dumps([astuple(one) for one in wanted])]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def read_and_count(implementation: str, bootstrap: str, end: str, wanted: str) -> None:
    """Read the ranges, until the reader has ended as the test says, and wait until no thread of a client is left."""
    properties = {}
    if end == "cannot be created":
        properties = {"ssl.ca.location": "/dev/null/missing", "security.protocol": "ssl"}
    with pytest.MonkeyPatch.context() as patched:
        use(implementation, patched)
        patched.setattr(reading, "STALL_TIMEOUT_S", 2.0)
        found = read_ranges(bootstrap, properties, [Range(*one) for one in json.loads(wanted)])
        if end == "returns":
            assert list(found)
        elif end == "is abandoned":
            next(found)
            assert of_librdkafka()
            found.close()
        else:
            with pytest.raises((SinkUnavailable, ConfigError)):
                list(found)
        eventually(lambda: not of_librdkafka(), "the end of the client's threads")


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"no.such.property": "s3cret-value"}, 'No such configuration property: "no.such.property"'),
        ({"fetch.wait.max.ms": "soon"}, "fetch.wait.max.ms"),
        (
            {"security.protocol": "ssl", "ssl.key.password": "s3cret-value", "ssl.key.location": "/missing"},
            "ssl.key",
        ),
        ({"security.protocol": "ssl", "ssl.key.pem": "s3cret-value"}, "ssl.key.pem"),
    ],
)
def test_what_librdkafka_does_not_accept_is_named_without_its_secret(
    implementation: str,
    properties: dict[str, str],
    said: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ConfigError) as raised:
        list(read_ranges("127.0.0.1:1", properties, [Range("t", 0, 0, 1)]))
    assert said in str(raised.value)
    assert "s3cret" not in str(raised.value) + repr(raised.value.__cause__) + caplog.text
    assert capfd.readouterr().err == ""


def _login(password: str) -> dict[str, str]:
    return {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "reader",
        "sasl.password": password,
    }


@IN_USE
def test_a_password_is_used_and_never_shown(
    implementation: str,
    secured_kafka: SecuredKafka,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(reading, "STALL_TIMEOUT_S", 5.0)
    secured_kafka.set_password("reader", "pA55word-of-the-reader")
    secured_kafka.allow("User:reader")
    topic = Topic(secured_kafka.broker.bootstrap)
    topic.commit(records(0, 100))
    address, wanted = f"127.0.0.1:{secured_kafka.sasl.port}", topic.ranges()
    good = rows_of(read_ranges(address, _login("pA55word-of-the-reader"), wanted))
    assert by_place(good) == by_place(topic.written)
    capfd.readouterr()  # the writer's log
    with caplog.at_level(logging.DEBUG), pytest.raises(SinkUnavailable) as raised:
        list(read_ranges(address, {**_login("wr0ng-password"), "debug": "security,conf"}, wanted))
    logged = [one.getMessage() for one in caplog.records if one.name == "cdcd.spark.kafka"]
    assert any("uthentication failed" in line for line in logged)
    assert "wr0ng" not in str(raised.value) + repr(raised.value) + caplog.text
    assert capfd.readouterr().err == ""


@IN_USE
def test_no_right_on_a_group_is_needed(
    implementation: str, secured_kafka: SecuredKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka looks for the coordinator of `group.id`, and reports each refusal among the records."""
    secured_kafka.set_password("groupless", "pA55word-of-the-reader")
    secured_kafka.allow("User:groupless")
    topic = Topic(secured_kafka.broker.bootstrap, partitions=1)
    refused: list[int] = []

    check = reading.check_error

    def seen(error: KafkaError, name: str | None, partition: int | None) -> None:
        refused.append(error.code())
        check(error, name, partition)

    monkeypatch.setattr(reading, "check_error", seen)
    monkeypatch.setattr(ranges, "check_error", seen)
    address = f"127.0.0.1:{secured_kafka.sasl.port}"
    login = _login("pA55word-of-the-reader") | {"sasl.username": "groupless"}
    reader = ranges.ranges_reader(reading.consumer_settings(address, login), [Range(topic.name, 0, 0, 100)])
    try:
        eventually(
            lambda: reader.read() is not None or KafkaError.GROUP_AUTHORIZATION_FAILED in refused,
            "the broker refuses the group",
        )
        topic.commit(records(0, 100, partitions=1))
        found: list[pa.RecordBatch] = []
        while reader.waiting:
            found += filter(None, [reader.read()])
    finally:
        reader.close()
    assert by_place(rows_of(found)) == by_place(topic.written)


def test_without_librdkafkas_symbols_the_fallback_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(librdkafka, "library", lambda: None)
    reader = ranges.ranges_reader(reading.consumer_settings("127.0.0.1:1", {}), [Range("t", 0, 0, 1)])
    reader.close()
    assert isinstance(reader, ranges.RangesInPython)


FORKED = """
import os, sys
from cdcd.spark.clients.kafka import Range, consumer_settings
from cdcd.spark.source.ranges import ranges_reader
reader = ranges_reader(consumer_settings("127.0.0.1:1", {}), [Range("t", 0, 0, 1)])
child = os.fork()
if not child:
    if hasattr(reader, "_messages"):
        reader.close()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
reader.close()
"""


def test_a_forked_process_leaves_its_parents_client_alone() -> None:
    """The child has none of the client's threads, and would wait for them for ever."""
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "7\n"
