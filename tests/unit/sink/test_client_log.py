"""librdkafka's log lines become events: one for each broker and reason, for all clients together."""

from __future__ import annotations

import logging

import pytest
from structlog.testing import capture_logs

from cdcd.sink.client_log import ClientLog

FORM = "%s [%s] %s"
REFUSED = "Connect to ipv4#127.0.0.1:9092 failed: Connection refused (after 0ms in state CONNECT{})"


def test_a_broker_that_refuses_is_one_warning_for_all_clients_and_threads() -> None:
    with capture_logs() as logged:
        log = ClientLog()
        for client, thread, more in (
            ("producer-1", "127.0.0.1:9092/bootstrap", ""),
            ("producer-1", "127.0.0.1:9092/1", ", 28 identical error(s) suppressed"),
            ("consumer-7", "TxnCoordinator", ""),
        ):
            text = f"[thrd:{thread}]: 127.0.0.1:9092/{1 if more else 'bootstrap'}: " + REFUSED.format(more)
            log.log(logging.ERROR, FORM, "FAIL", f"rdkafka#{client}", text)
        log.flush()
    assert [one["log_level"] for one in logged] == ["warning", "info"]
    assert (logged[0]["broker"], logged[0]["reason"]) == ("127.0.0.1:9092", "Connection refused")
    assert logged[1]["repeated"] == 2


@pytest.mark.parametrize(
    ("facility", "level", "text", "said_level", "reason"),
    [
        (
            "FAIL",
            logging.ERROR,
            "[thrd:x]: sasl_ssl://b-1.x:9096/2: SASL authentication error",
            "warning",
            None,
        ),
        ("ERROR", logging.ERROR, "[thrd:app]: 3/3 brokers are down", "warning", "3/3 brokers are down"),
        ("FATAL", logging.ERROR, "[thrd:app]: Fatal error: fenced", "error", "Fatal error: fenced"),
        (
            "CONFWARN",
            logging.WARNING,
            "[thrd:app]: a property is ignored",
            "warning",
            "a property is ignored",
        ),
    ],
)
def test_each_line_has_its_level_and_no_thread(
    facility: str, level: int, text: str, said_level: str, reason: str | None
) -> None:
    with capture_logs() as logged:
        ClientLog().log(level, FORM, facility, "rdkafka#producer-1", text)
    (one,) = logged
    assert one["log_level"] == said_level
    if reason is None:
        assert (one["broker"], one["reason"]) == ("b-1.x:9096", "SASL authentication error")
    else:
        assert (one["facility"], one["client"], one["reason"]) == (facility, "rdkafka#producer-1", reason)
