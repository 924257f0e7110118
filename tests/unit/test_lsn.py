"""LSNs in PostgreSQL's text format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.lsn import MAX_LSN, end_of_commits, format_lsn, parse_lsn


@pytest.mark.parametrize(
    ("text", "lsn"),
    [("0/0", 0), ("16/B374D848", 0x16_B374D848), ("1/20", 0x1_0000_0020), ("FFFFFFFF/FFFFFFFF", MAX_LSN)],
)
def test_an_lsn_is_read_and_written_as_postgresql_does(text: str, lsn: int) -> None:
    assert parse_lsn(text) == lsn
    assert format_lsn(lsn) == text


def test_small_letters_and_leading_zeros_are_read() -> None:
    assert parse_lsn("0/0a0b") == parse_lsn("00000000/00000A0B") == 0xA0B


@given(st.integers(0, MAX_LSN))
def test_every_lsn_survives_the_way_through_text(lsn: int) -> None:
    assert parse_lsn(format_lsn(lsn)) == lsn


@pytest.mark.parametrize(
    "text",
    ["", "/", "0", "0/", "/0", "0/0/0", "x/0", "0/g", "123456789/0", "0/123456789", "-1/0", "+1/0", " 1/0", "1_0/0"],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_lsn(text)


@pytest.mark.parametrize(
    ("insert_lsn", "expected"),
    [
        (0x3000028, 0x3000000),  # the first page of a segment has a long header
        (0x3002018, 0x3002000),
        (0x3002028, 0x3002028),  # 40 bytes, but not in the first page
        (0x3000018, 0x3000000),
        (0x3000050, 0x3000050),
        (0x3002000, 0x3002000),
    ],
)
def test_a_page_header_before_the_insert_position_is_no_record(insert_lsn: int, expected: int) -> None:
    assert end_of_commits(insert_lsn, block_bytes=8192, segment_bytes=16 << 20) == expected


@pytest.mark.parametrize("insert_lsn", [0x3000028, 0x3002018, 0x3000018, 0x3000050, 0x3002000])
def test_for_the_usual_blocks_the_size_of_a_segment_does_not_matter(insert_lsn: int) -> None:
    assert end_of_commits(insert_lsn) == end_of_commits(insert_lsn, block_bytes=8192, segment_bytes=16 << 20)


@pytest.mark.parametrize("lsn", [0x18, 0x28])
def test_below_the_first_page_an_lsn_is_what_it_is(lsn: int) -> None:
    assert end_of_commits(lsn) == lsn
