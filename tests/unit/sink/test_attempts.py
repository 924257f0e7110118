"""What a producer's client says of its transactions, and whether something of one may still arrive (F77)."""

from __future__ import annotations

import logging

import pytest

from cdcd.sink.attempts import Attempts, transaction_log

FORM = "%s [%s] %s"
BEGUN = ("TXNSTATE", "[thrd:main]: Transaction state change Ready -> InTransaction")
JOINED = ("ADDPARTS", "[thrd:main]: t [0] registered with transaction")
WELL = ("ENDTXN", "[thrd:main]: EndTxn returned NO_ERROR in state CommittingTransaction (may_retry=true)")
CUT = ("ENDTXN", "[thrd:main]: EndTxn returned _TRANSPORT in state CommittingTransaction (may_retry=true)")
MOVED = (
    "ENDTXN",
    "[thrd:main]: EndTxn returned NOT_COORDINATOR in state CommittingTransaction (may_retry=true)",
)
ABORTED = ("ENDTXN", "[thrd:main]: EndTxn returned NO_ERROR in state AbortingTransaction (may_retry=true)")
OTHERWISE = ("ENDTXN", "[thrd:main]: EndTxn was well received")
DOWN = ("COORD", "[thrd:main]: TxnCoordinator/1: Transaction coordinator is now down")
UP = ("COORD", "[thrd:main]: TxnCoordinator/1: Transaction coordinator is now up")
CHANGED = (
    "TXNCOORD",
    "[thrd:main]: Transaction coordinator changed from a/1 -> b/2: FindCoordinator response",
)
ASKED = ("TXNCOORD", "[thrd:main]: Querying for transaction coordinator: rd_kafka_init_transactions()")


def heard(*lines: tuple[str, str], properties: dict[str, object] | None = None) -> tuple[str, list[str]]:
    """The doubt after a transaction of which these lines were told, and those that went on to the log."""
    passed_on: list[str] = []
    attempts = Attempts(
        lambda _level, _form, facility, _client, _text: passed_on.append(facility), properties or {}
    )
    attempts.begun()
    for facility, text in lines:
        attempts.log(logging.DEBUG, FORM, facility, "c", text)
    return attempts.doubt(), passed_on


@pytest.mark.parametrize("lines", [[WELL], [BEGUN, JOINED, WELL], [ASKED, WELL], [UP, WELL]])
def test_what_was_answered_at_once_cannot_arrive_any_more(lines: list[tuple[str, str]]) -> None:
    assert heard(*lines) == ("", [])


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([CUT, WELL], "2 times: _TRANSPORT, NO_ERROR"),
        ([MOVED, WELL], "2 times: NOT_COORDINATOR, NO_ERROR"),
        ([CUT], "1 times: _TRANSPORT"),
        ([WELL, WELL], "2 times: NO_ERROR, NO_ERROR"),
        ([DOWN, UP, WELL], "coordinator is now down"),
        ([CHANGED, WELL], "coordinator changed"),
        ([WELL, DOWN], "coordinator is now down"),
    ],
)
def test_whatever_was_sent_again_may(lines: list[tuple[str, str]], why: str) -> None:
    assert why in heard(*lines)[0]


@pytest.mark.parametrize("lines", [[], [BEGUN, JOINED], [OTHERWISE]])
def test_a_client_that_says_nothing_or_something_else_is_not_believed(lines: list[tuple[str, str]]) -> None:
    """A later version of the library may have other words."""
    assert heard(*lines)[0]


def test_each_transaction_is_judged_by_itself() -> None:
    attempts = Attempts(lambda *_line: None, {})
    for lines, is_in_doubt in (([CUT, WELL], True), ([WELL], False), ([DOWN, WELL], True), ([WELL], False)):
        attempts.begun()
        for facility, text in lines:
            attempts.log(logging.DEBUG, FORM, facility, "c", text)
        assert bool(attempts.doubt()) == is_in_doubt


@pytest.mark.parametrize(
    ("properties", "wanted"),
    [
        ({}, ["FAIL", "TELL"]),
        ({"log_level": "4"}, ["FAIL"]),
        ({"log_level": "3"}, []),
        ({"debug": "broker"}, ["ENDTXN", "FAIL", "TELL"]),
        ({"debug": "broker", "log_level": "3"}, ["ENDTXN", "FAIL", "TELL"]),
    ],
)
def test_who_did_not_ask_for_debugging_is_not_shown_it(
    properties: dict[str, object], wanted: list[str]
) -> None:
    """librdkafka takes any `debug` for `log_level` 7."""
    passed_on: list[str] = []
    attempts = Attempts(
        lambda _level, _form, facility, _client, _text: passed_on.append(facility), properties
    )
    attempts.log(logging.DEBUG, FORM, *(WELL[0], "c", WELL[1]))
    attempts.log(logging.WARNING, FORM, "FAIL", "c", "Disconnected")
    attempts.log(logging.INFO, FORM, "TELL", "c", "something")
    assert passed_on == wanted


def test_the_users_own_debugging_is_kept() -> None:
    assert transaction_log({"linger.ms": 5})["debug"] == "eos"
    assert transaction_log({"debug": "broker,topic"}) == {"debug": "broker,topic,eos"}
