"""Timeline history files as PostgreSQL writes them (F58)."""

from __future__ import annotations

import pytest

from cdcd.errors import SourceError
from cdcd.source.timeline import parse_history

ONE = b"1\t0/3000148\tno recovery target specified\n"


@pytest.mark.parametrize(
    ("content", "points"),
    [
        (b"", {}),
        (ONE, {1: 0x3000148}),
        (ONE + b"\n2\t1/0\tbefore 2000-01-01 00:00:00.000000+00\n\n", {1: 0x3000148, 2: 1 << 32}),
        (b'# a comment\n 1 0/10 at restore point "a\\\\b"\n5\t0/20\n', {1: 0x10, 5: 0x20}),
    ],
)
def test_each_ancestor_has_its_switch_point(content: bytes, points: dict[int, int]) -> None:
    assert parse_history(content) == points


@pytest.mark.parametrize(
    "line", [b"1\n", b"x\t0/10\tno\n", b"1\t16\tno\n", b"2\t0/10\tno\n1\t0/20\tno\n", b"1\t\xff/1\n"]
)
def test_a_line_that_is_none_is_an_error(line: bytes) -> None:
    with pytest.raises(SourceError):
        parse_history(line)
