"""A progress record as the campaign has it: all offsets so far, and whether the topics are a whole state."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.campaign.facts import Cut
from tests.campaign.readers import cut_of, has_reached


class Message:
    """A record with this JSON."""

    def __init__(self, **over: Any) -> None:
        self.document = {"phase": "streaming", "end_lsn": "1/10", "offsets": {"t": {"0": 7}}} | over

    def value(self) -> bytes:
        return json.dumps(self.document).encode()

    def offset(self) -> int:
        return 3


def test_offsets_of_earlier_records_remain() -> None:
    before = {("t", 0): 5, ("t", 1): 9}
    assert cut_of(Message(), before) == Cut(3, (1 << 32) + 16, {("t", 0): 7, ("t", 1): 9})


@pytest.mark.parametrize(
    ("over", "is_whole"),
    [
        ({}, True),
        ({"phase": "snapshot"}, False),
        ({"part": {"commit_lsn": "1/20", "tx_seq": 4}}, False),
        ({"copy": {"tables": {"17": {}}}}, False),
        ({"copy": {"floors": {"17": "1/10"}}}, True),
        ({"copy": {"floors": {"17": "1/11"}}}, False),
    ],
)
def test_a_copy_or_a_part_is_no_whole_state(over: dict[str, Any], is_whole: bool) -> None:
    assert cut_of(Message(**over), {}).is_whole is is_whole


def test_a_reader_has_reached_a_cut_at_all_of_its_offsets() -> None:
    assert has_reached({("t", 0): 7, ("t", 1): 9}, {("t", 0): 7})
    assert not has_reached({("t", 0): 6, ("t", 1): 9}, {("t", 0): 7, ("t", 1): 9})
    assert not has_reached({("t", 0): 7}, {("t", 0): 7, ("t", 1): 9})
