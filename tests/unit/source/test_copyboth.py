"""CopyBoth framing: each message whole, cut at every length, with trailing bytes; items cut at each border."""

from __future__ import annotations

import struct

import pytest

from cdcd.errors import MessageTrailing, MessageTruncated, MessageUnknown
from cdcd.model import Control, Keepalive, Run
from cdcd.source.copyboth import XLogData, cut_items, parse_copy_data, standby_status_update


def xlog(payload: bytes, lsn: int = 0x1_0000_0002) -> bytes:
    return b"w" + struct.pack(">QQq", lsn, lsn, 77) + payload


def frame(payload: bytes, lsn: int = 0x1_0000_0002) -> bytes:
    return struct.pack(">IQ", len(payload), lsn) + payload


KEEPALIVE = b"k" + struct.pack(">QqB", 0x16_B374_D848, -5, 1)


def test_xlog_data_gives_its_header_and_payload() -> None:
    assert parse_copy_data(xlog(b"Bxyz")) == XLogData(0x1_0000_0002, 0x1_0000_0002, 77, b"Bxyz")


def test_keepalive_gives_its_three_fields() -> None:
    assert parse_copy_data(KEEPALIVE) == Keepalive(0x16_B374_D848, -5, True)


@pytest.mark.parametrize("whole", [xlog(b"B"), KEEPALIVE])
def test_a_message_cut_at_any_length_is_truncated(whole: bytes) -> None:
    for size in range(len(whole)):
        with pytest.raises(MessageTruncated):
            parse_copy_data(whole[:size])
        with pytest.raises(MessageTruncated):
            cut_items([whole[:size]], False)


def test_bytes_behind_a_keepalive_are_an_error() -> None:
    with pytest.raises(MessageTrailing):
        parse_copy_data(KEEPALIVE + b"\0")


@pytest.mark.parametrize("unknown", [b"x" + bytes(40), b"r" + bytes(33), KEEPALIVE[:-1] + b"\2"])
def test_what_the_protocol_does_not_know_is_an_error(unknown: bytes) -> None:
    with pytest.raises(MessageUnknown):
        cut_items([unknown], False)


def test_status_update_carries_three_full_positions() -> None:
    """F8: write, flush and apply are 64 bits each and none stands in for another."""
    status = standby_status_update(0x3_0000_0003, 0x2_0000_0002, 0x1_0000_0001, -9, True)
    assert status == b"r" + bytes.fromhex("0000000300000003 0000000200000002 0000000100000001") + struct.pack(
        ">qB", -9, 1
    )
    assert standby_status_update(1, 1, 1, 0, False)[-1] == 0


def test_consecutive_rows_are_one_run_and_controls_and_keepalives_end_it() -> None:
    insert, update, delete = b"I\0\0\0\1N", b"U\0\0\0\1N", b"D\0\0\0\1K"
    messages = [
        xlog(b"B...", 9),
        xlog(insert, 1),
        xlog(update, 2),
        KEEPALIVE,
        xlog(delete, 3),
        xlog(b"C...", 4),
    ]
    items, in_stream = cut_items(messages, False)
    assert items == [
        Control(9, b"B..."),
        Run(frame(insert, 1) + frame(update, 2), 2, None),
        Keepalive(0x16_B374_D848, -5, True),
        Run(frame(delete, 3), 1, None),
        Control(4, b"C..."),
    ]
    assert not in_stream


def test_inside_a_stream_segment_a_run_is_of_one_subtransaction() -> None:
    """F26: each streamed row carries its xid; a run never mixes two."""
    first, second = b"I\0\0\0\7....", b"I\0\0\0\x08...."
    messages = [xlog(b"S"), xlog(first), xlog(first), xlog(second), xlog(b"E"), xlog(b"I\0\0\0\1N")]
    items, in_stream = cut_items(messages, False)
    runs = [(item.count, item.xid) for item in items if isinstance(item, Run)]
    assert runs == [(2, 7), (1, 8), (1, None)]
    assert not in_stream


def test_the_stream_bit_lasts_over_batches() -> None:
    items, in_stream = cut_items([xlog(b"S")], False)
    assert (items, in_stream) == ([Control(0x1_0000_0002, b"S")], True)
    items, in_stream = cut_items([xlog(b"D\0\0\1\0....")], in_stream)
    assert (items, in_stream) == ([Run(frame(b"D\0\0\1\0...."), 1, 256)], True)


def test_a_streamed_row_without_room_for_its_xid_is_truncated() -> None:
    with pytest.raises(MessageTruncated):
        cut_items([xlog(b"I\0\0\0")], True)


def test_nothing_in_gives_nothing_out() -> None:
    assert cut_items([], True) == ([], True)
