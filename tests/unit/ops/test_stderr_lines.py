"""Output of libraries to stderr becomes log lines, and the log itself goes to the original stderr."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from cdcd.ops.notices import NOTICES, log_notices
from cdcd.ops.stderr_lines import MOST_BYTES, as_log_lines
from tests.support.waiting import eventually


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe in place of stderr: its reading end and its file descriptor."""
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def test_lines_become_events_and_the_log_goes_where_they_went(pipe: tuple[int, int]) -> None:
    reading, stderr = pipe
    NOTICES.flush()
    with capture_logs() as logged:
        with as_log_lines(stderr) as stream:
            os.write(stderr, b"WARNING:  the office is clo")
            os.write(
                stderr, b"sed\nDETAIL:  a row\nHINT:  wait\n%3|FAIL|rdkafka\nDETAIL:  of nothing\n\nno end"
            )
            print("the log's own", file=stream)
        os.write(stderr, b"afterwards\n")
    assert [(one["event"], one.get("message") or one["text"]) for one in logged] == [
        ("server_notice", "the office is closed"),
        ("stderr", "%3|FAIL|rdkafka"),
        ("stderr", "DETAIL:  of nothing"),
        ("stderr", "no end"),
    ]
    assert os.read(reading, 1000) == b"the log's own\nafterwards\n"


def test_a_writer_faster_than_the_reader_does_not_block(pipe: tuple[int, int]) -> None:
    _, stderr = pipe
    with capture_logs() as logged, as_log_lines(stderr):
        for _ in range(1000):
            try:
                os.write(stderr, b"x" * 1000)
            except BlockingIOError:
                break
        os.set_blocking(stderr, True)
        os.write(stderr, b"\nend\n")
        eventually(lambda: logged and logged[-1]["text"] == "end", "all lines are read")
    assert max(len(one["text"]) for one in logged) <= MOST_BYTES


def test_what_a_connection_has_collected_is_said_and_only_its_first_lines() -> None:
    notices = [
        "NOTICE:  a schema is there, skipping\n",
        "WARNING:  wal_level\nHINT:  a value\n",
        "ohne Form\n",
    ]
    with capture_logs() as logged:
        log_notices(notices)
    assert notices == []
    assert [(one["log_level"], one["severity"], one["message"]) for one in logged] == [
        ("info", "NOTICE", "a schema is there, skipping"),
        ("warning", "WARNING", "wal_level"),
        ("warning", "WARNING", "ohne Form"),
    ]


def test_the_reader_ends_with_the_block(pipe: tuple[int, int]) -> None:
    _, stderr = pipe
    with as_log_lines(stderr):
        pass
    assert "cdcd-stderr" not in {thread.name for thread in threading.enumerate()}
