"""An unreachable broker: the client's messages become log records, and the error names an option of the reader."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from cdcd.demo.stack.ports import free_port
from cdcd.errors import EXIT_FAILURE, SinkUnavailable
from cdcd.spark.__main__ import main
from cdcd.spark.clients import client_log, kafka
from cdcd.spark.clients.kafka import Cluster, Range
from cdcd.spark.commands import running
from cdcd.spark.source.progress_reader import ProgressReader
from cdcd.spark.source.ranges import read_ranges
from tests.support.nightly import nightly


class _Known(Cluster):
    """A cluster with known partitions and ends."""

    def __init__(self, brokers: str, topic: str) -> None:
        super().__init__(brokers, {})
        self._topic = topic

    def partitions(self) -> dict[str, list[int]]:
        return {self._topic: [0]}

    def ends(self, partitions: object) -> dict[tuple[str, int], int]:
        return {(self._topic, 0): 1}


def _listed(brokers: str) -> None:
    Cluster(brokers, {}).partitions()


def _said_its_id(brokers: str) -> None:
    Cluster(brokers, {}).id()


def _gave_offsets(brokers: str) -> None:
    Cluster(brokers, {}).ends([("shop.public.items", 0)])


def _progress(brokers: str) -> None:
    reader = ProgressReader(brokers, {}, "shop.__progress", _Known(brokers, "shop.__progress"))
    try:
        list(reader.read())
    finally:
        reader.close()


def _records(brokers: str) -> None:
    list(read_ranges(brokers, {}, [Range("shop.public.items", 0, 0, 1)]))


class _Refused(Cluster):
    """A cluster that answers a question for offsets with these errors, one after another, and then with offsets."""

    def __init__(self, *codes: int) -> None:
        super().__init__("127.0.0.1:1", {})
        self.codes, self.timeouts_s = list(codes), list[float]()

    def _listed(self) -> Any:
        return None

    def _requested(self, partitions: Any, spec: Any, isolation: Any, timeout_s: float) -> Any:
        self.timeouts_s.append(timeout_s)
        answer: Future[Any] = Future()
        if self.codes:
            answer.set_exception(KafkaException(KafkaError(self.codes.pop(0))))
        else:
            answer.set_result(SimpleNamespace(offset=7))
        return {TopicPartition(*one): answer for one in partitions}


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError._NOENT,
        KafkaError._TIMED_OUT,
    ],
)
def test_offsets_are_asked_for_again_after_a_change_of_the_leader(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "ELECTION_PAUSE_S", 0.0)
    assert _Refused(code, code).ends([("t", 0)]) == {("t", 0): 7}
    monkeypatch.setattr(kafka, "REQUEST_TIMEOUT_S", 0.0)
    with pytest.raises(SinkUnavailable, match="Kafka does not list offsets"):
        _Refused(*[code] * 1000).ends([("t", 0)])


def test_a_refusal_that_no_time_heals_is_an_error_at_once() -> None:
    cluster = _Refused(KafkaError.UNKNOWN_TOPIC_OR_PART)
    with pytest.raises(SinkUnavailable, match="UNKNOWN_TOPIC_OR_PART"):
        cluster.ends([("t", 0)])
    assert len(cluster.timeouts_s) == 1


@pytest.mark.parametrize(
    "ask", [nightly(_listed), nightly(_said_its_id), nightly(_gave_offsets), nightly(_progress), _records]
)
def test_an_unreachable_broker_is_logged_as_records_and_the_error_names_the_readers_option(
    ask: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(kafka, "REQUEST_TIMEOUT_S", 3.0)
    monkeypatch.setattr(kafka, "STALL_TIMEOUT_S", 3.0)
    away = f"127.0.0.1:{free_port()}"
    with caplog.at_level(logging.WARNING), pytest.raises(SinkUnavailable) as raised:
        ask(away)
    assert "--brokers" in str(raised.value)
    assert "tried again" not in str(raised.value), "the reader does not retry"
    logged = [one for one in caplog.records if one.name == "cdcd.spark.kafka" and away in one.getMessage()]
    refused = [one for one in logged if "Connection refused" in one.getMessage()]
    assert [one.levelno for one in refused] == [logging.WARNING] * len(refused)
    names = {one.getMessage() for one in refused}
    assert 1 <= len(refused) == len(names), "each message is logged once, whatever the number of attempts"
    assert capfd.readouterr().err == ""


def test_repeated_client_messages_are_counted_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(client_log.time, "monotonic", lambda: now_s[0])
    text = "[thrd:b]: b:9092/1: Connect to ipv4#b:9092 failed: refused{} (after {}ms in state CONNECT{})"
    log = client_log.ClientLog()
    with caplog.at_level(logging.INFO):
        for number, more in ((1, ""), (2, ", 28 identical error(s) suppressed"), (3, "")):
            log.log(logging.ERROR, "", "FAIL", "rdkafka#1", text.format("\n", number, more))
        now_s[0] = client_log.WINDOW_S
        log.log(logging.ERROR, "", "FAIL", "rdkafka#2", text.format("\n", 4, ""))
        log.log(logging.ERROR, "", "FATAL", "rdkafka#2", "fenced")
    line = "FAIL: b:9092/1: Connect to ipv4#b:9092 failed: refused\\n"
    assert [(one.levelno, one.getMessage()) for one in caplog.records] == [
        (logging.WARNING, line),
        (logging.WARNING, f"{line} (repeated 2 times before)"),
        (logging.ERROR, "FATAL: fenced"),
    ]


def test_a_mirror_that_cannot_begin_says_why_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(kafka, "REQUEST_TIMEOUT_S", 3.0)
    monkeypatch.setattr(running, "submitted_or_local", lambda *_, **__: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    words = ["--brokers", f"127.0.0.1:{free_port()}", "--prefix", "shop", "--registry", "http://127.0.0.1:1"]
    with caplog.at_level(logging.INFO):
        assert main(["mirror", *words, "--target", str(tmp_path / "mirror")]) == EXIT_FAILURE
    (stopped,) = [one.getMessage() for one in caplog.records if one.name == "cdcd.spark"]
    assert stopped.startswith("the mirror stopped: CDCD-SINK-UNAVAILABLE: ")
    assert "\n" not in stopped
