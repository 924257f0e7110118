"""Repeated lines are counted; the first is logged at once, and no count is lost."""

from __future__ import annotations

import logging

from structlog.testing import capture_logs

from cdcd.ops import log_dedup
from cdcd.ops.log_dedup import LogDeduplicator, flush_counts
from tests.support.waiting import eventually


def test_the_first_is_said_at_once_and_the_others_are_counted_when_the_window_ends() -> None:
    with capture_logs() as logged:
        lines = LogDeduplicator("cdcd.test", window_s=2.0)
        for _ in range(4):
            lines.say(logging.WARNING, "refused", broker="b:1")
        assert [one["log_level"] for one in logged] == ["warning"]
        eventually(lambda: len(logged) == 2, "the repeated lines are logged")
    assert (logged[1]["log_level"], logged[1]["event"], logged[1]["broker"]) == ("info", "refused", "b:1")
    assert logged[1]["repeated"] == 3


def test_after_its_window_a_line_is_said_anew() -> None:
    with capture_logs() as logged:
        lines = LogDeduplicator("cdcd.test", window_s=0.0)
        for _ in range(3):
            lines.say(logging.WARNING, "refused")
    assert [(one["log_level"], one.get("repeated")) for one in logged] == [("warning", None)] * 3


def test_lines_are_the_same_by_their_fields_or_by_what_is_given_instead() -> None:
    with capture_logs() as logged:
        lines = LogDeduplicator("cdcd.test")
        for number in range(3):
            lines.say(logging.INFO, "different", number=number)
            lines.say(logging.INFO, "same", key="all", number=number)
        lines.flush()
    assert [(one["event"], one["number"], one.get("repeated")) for one in logged] == [
        ("different", 0, None),
        ("same", 0, None),
        ("different", 1, None),
        ("different", 2, None),
        ("same", 0, 2),
    ]


def test_what_is_remembered_has_a_bound_and_no_count_is_lost() -> None:
    with capture_logs() as logged:
        lines = LogDeduplicator("cdcd.test")
        for _ in range(2):
            lines.say(logging.INFO, "first")
        for number in range(log_dedup.MOST_WINDOWS):
            lines.say(logging.INFO, "other", number=number)
        assert len(lines._windows) == log_dedup.MOST_WINDOWS
    assert [one["repeated"] for one in logged if "repeated" in one] == [1]


def test_the_end_of_the_process_says_what_was_counted() -> None:
    with capture_logs() as logged:
        lines = LogDeduplicator("cdcd.test")
        for _ in range(2):
            lines.say(logging.INFO, "again")
        flush_counts()
        flush_counts()
    # Counts of other tests in this process are logged as well.
    assert [one.get("repeated") for one in logged if one["event"] == "again"] == [None, 1]
