"""A log without a reader blocks nothing; the number of lost lines is logged when a reader returns."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import TextIO

import pytest

from cdcd.ops import log_thread
from cdcd.ops.log_thread import ThreadedHandler
from tests.support.waiting import eventually

_WRITING: list[TextIO] = []
"""Open streams: a handler's thread outlives its test and must not write to a reused file descriptor."""


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """A pipe: the file descriptor of its reading end, the stream of its writing end."""
    reading, writing = os.pipe()
    stream = os.fdopen(writing, "w")
    _WRITING.append(stream)
    yield reading, stream
    with contextlib.suppress(OSError):
        os.close(reading)


def emit_line(handler: logging.Handler, text: str) -> None:
    handler.emit(logging.LogRecord("t", logging.INFO, "", 0, text, None, None))


def test_lines_come_in_their_order(pipe: tuple[int, TextIO]) -> None:
    reading, stream = pipe
    handler = ThreadedHandler(stream)
    for number in range(100):
        emit_line(handler, f"line {number}")
    handler.flush()
    assert os.read(reading, 1 << 16).decode().split("\n") == [*(f"line {n}" for n in range(100)), ""]


def test_long_lines_that_nobody_reads_take_no_more_memory(
    pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_thread, "WAITING_CHARACTERS", 1_000_000)
    handler = ThreadedHandler(pipe[1])
    for _ in range(100):
        emit_line(handler, "x" * 100_000)
    assert sum(map(len, handler._lines)) <= 1_000_000
    assert handler.lost >= 80


def test_a_full_pipe_costs_lines_and_nothing_else(pipe: tuple[int, TextIO]) -> None:
    reading, stream = pipe
    handler = ThreadedHandler(stream, waiting_lines=10)
    for _ in range(200):
        emit_line(handler, "x" * 1000)
    assert handler.lost > 50
    pieces: list[bytes] = []

    def reported() -> bool:
        emit_line(handler, "again")
        pieces.append(os.read(reading, 1 << 20))  # the data may end inside a line
        lines = b"".join(pieces).decode().splitlines()
        counts = [
            line.removeprefix("log_lines_lost: ") for line in lines if line.startswith("log_lines_lost: ")
        ]
        return sum(map(int, filter(None, counts))) == handler.lost  # a slow writer logs the count in parts

    eventually(reported, "all lost lines are reported")


def test_a_reader_that_has_gone_costs_lines_and_nothing_else(pipe: tuple[int, TextIO]) -> None:
    reading, stream = pipe
    handler = ThreadedHandler(stream)
    os.close(reading)
    emit_line(handler, "one")
    eventually(lambda: handler.lost == 1, "the first lost line is counted")
    emit_line(handler, "two")
    eventually(lambda: handler.lost == 2, "the second lost line is counted")
