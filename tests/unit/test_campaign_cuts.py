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
    ("over", "is_whole", "copied_to"),
    [
        ({}, True, 0x10),
        ({"phase": "snapshot"}, False, None),
        ({"part": {"commit_lsn": "1/20", "tx_seq": 4}}, False, 0x10),
        ({"copy": {"tables": {"17": {}}}}, False, None),
        ({"copy": {"floors": {"17": "1/10"}}}, True, 0x10),
        ({"copy": {"floors": {"17": "1/11", "18": "1/9"}}}, False, 0x11),
    ],
)
def test_a_copy_or_a_part_is_no_whole_state(
    over: dict[str, Any], is_whole: bool, copied_to: int | None
) -> None:
    cut = cut_of(Message(**over), {})
    assert cut.is_whole is is_whole
    assert cut.copied_to == (None if copied_to is None else (1 << 32) + copied_to)


def test_a_reader_has_reached_a_cut_at_all_of_its_offsets() -> None:
    assert has_reached({("t", 0): 7, ("t", 1): 9}, {("t", 0): 7})
    assert not has_reached({("t", 0): 6, ("t", 1): 9}, {("t", 0): 7, ("t", 1): 9})
    assert not has_reached({("t", 0): 7}, {("t", 0): 7, ("t", 1): 9})
