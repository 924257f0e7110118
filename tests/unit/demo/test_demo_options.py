"""The options of the demo, and the values that it derives."""

from __future__ import annotations

import pytest

from cdcd.demo.gauges import read
from cdcd.demo.options import parse
from cdcd.demo.stack.ports import free_port


def test_defaults() -> None:
    options = parse([])
    assert (options.rows, options.seconds, options.keep, options.stop) == (45_000, 30.0, False, None)
    assert isinstance(options.kill_at, float)
    assert 9 <= options.kill_at <= 25.5


def test_the_moment_of_the_kill_is_the_seeds() -> None:
    assert parse(["--seed", "4"]).kill_at == parse(["--seed", "4"]).kill_at != parse(["--seed", "5"]).kill_at
    assert parse(["--kill-at", "3"]).kill_at == 3.0
    assert parse(["--kill-at", "bulk"]).kill_at == "bulk"


@pytest.mark.parametrize(
    "words", [["--kill-at", "-1"], ["--kill-at", "30"], ["--rows", "0"], ["--seconds", "x"]]
)
def test_what_cannot_be_is_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(words)


def test_no_reading_where_nothing_answers() -> None:
    assert read(free_port()) is None
