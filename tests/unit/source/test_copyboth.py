"""CopyBoth framing: each message complete, cut at every length, with trailing bytes; the limits of row batches."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.errors import MessageTrailing, MessageTruncated, MessageUnknown
from cdcd.model import Control, Item, Keepalive, RowBatch
from cdcd.source.copyboth import (
    FRAMES,
    Frame,
    HotStandbyFeedback,
    StandbyStatusUpdate,
    XLogData,
    parse_copy_data,
    read_frame,
    standby_status_update,
    write_frame,
)
from tests.support.implementations import READING, implementations, loaded

Cut = Callable[[Sequence[bytes], bool], tuple[list[Item], bool]]


@pytest.fixture(params=implementations(*READING))
def cut_items(request: pytest.FixtureRequest) -> Cut:
    """The function that divides messages into items, of the fallback and of the extension."""
    reading = loaded(request.param)

    def cut(messages: Sequence[bytes], in_stream: bool) -> tuple[list[Item], bool]:
        batch = reading.Batch(in_stream, False)
        for message in messages:
            batch.feed(message)
        items, is_inside = batch.finish()
        return items, is_inside

    return cut


def xlog(payload: bytes, lsn: int = 0x1_0000_0002) -> bytes:
    return b"w" + struct.pack(">QQq", lsn, lsn, 77) + payload


def frame(payload: bytes, lsn: int = 0x1_0000_0002) -> bytes:
    return struct.pack(">IQ", len(payload), lsn) + payload


KEEPALIVE = b"k" + struct.pack(">QqB", 0x16_B374_D848, -5, 1)


def test_xlog_data_gives_its_header_and_payload() -> None:
    assert parse_copy_data(xlog(b"Bxyz")) == XLogData(0x1_0000_0002, 0x1_0000_0002, 77, b"Bxyz")


def test_keepalive_gives_its_three_fields() -> None:
    assert parse_copy_data(KEEPALIVE) == Keepalive(0x16_B374_D848, -5, True)


_A, _B, _C = "00000003 00000003", "00000002 00000002", "00000001 00000001"
GOLDEN: dict[str, tuple[Frame, bytes]] = {
    "XLogData": (
        XLogData(0x3_0000_0003, 0x2_0000_0002, -9, b"Bx"),
        bytes.fromhex(f"77 {_A} {_B} fffffffffffffff7 4278"),
    ),
    "Primary keepalive": (
        Keepalive(0x3_0000_0003, 258, True),
        bytes.fromhex(f"6b {_A} 0000000000000102 01"),
    ),
    "Standby status update": (
        StandbyStatusUpdate(0x3_0000_0003, 0x2_0000_0002, 0x1_0000_0001, -9, False),
        bytes.fromhex(f"72 {_A} {_B} {_C} fffffffffffffff7 00"),
    ),
    "Hot standby feedback": (
        HotStandbyFeedback(258, 0xFFFFFFFF, 1, 3, 2),
        bytes.fromhex("68 0000000000000102 ffffffff 00000001 00000003 00000002"),
    ),
}
every_frame = pytest.mark.parametrize("name", GOLDEN)


def test_the_golden_frames_cover_the_table() -> None:
    assert set(GOLDEN) == {row.name for row in FRAMES.values()}


@every_frame
def test_a_frame_is_read_and_written_as_the_documents_say(name: str) -> None:
    frame, data = GOLDEN[name]
    assert read_frame(data) == frame
    assert write_frame(frame) == data


@every_frame
def test_a_frame_cut_anywhere_names_itself_and_the_field(name: str, cut_items: Cut) -> None:
    """One byte at a time: until the last byte arrives, the error names the incomplete field."""
    _, data = GOLDEN[name]
    shortest = len(data) - 1 if name == "XLogData" else len(data)
    named = []
    for size in range(1, shortest):
        with pytest.raises(MessageTruncated) as caught:
            read_frame(data[:size])
        assert caught.value.context["message_name"] == name
        named.append(caught.value.context["field"])
        if data[0] in b"wk":
            with pytest.raises(MessageTruncated):
                cut_items([data[:size]], False)
    fields = [field for field, _ in FRAMES[data[0]].fields]
    assert list(dict.fromkeys(named)) == [*fields, *(["payload"] if name == "XLogData" else [])]


@pytest.mark.parametrize("name", [name for name in GOLDEN if name != "XLogData"])
def test_bytes_behind_a_frame_are_an_error(name: str) -> None:
    with pytest.raises(MessageTrailing, match=name):
        read_frame(GOLDEN[name][1] + b"\0")


def test_an_empty_message_is_truncated(cut_items: Cut) -> None:
    with pytest.raises(MessageTruncated):
        read_frame(b"")
    with pytest.raises(MessageTruncated):
        cut_items([b""], False)


_uint32, _uint64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
_time = st.integers(-(2**63), 2**63 - 1)


@given(
    st.one_of(
        st.builds(XLogData, _uint64, _uint64, _time, st.binary(min_size=1, max_size=40)),
        st.builds(Keepalive, _uint64, _time, st.booleans()),
        st.builds(StandbyStatusUpdate, _uint64, _uint64, _uint64, _time, st.booleans()),
        st.builds(HotStandbyFeedback, _time, _uint32, _uint32, _uint32, _uint32),
    )
)
def test_a_frame_that_is_written_is_read_back(frame: Frame) -> None:
    assert read_frame(write_frame(frame)) == frame


@pytest.mark.parametrize("frame", [GOLDEN["Standby status update"][1], GOLDEN["Hot standby feedback"][1]])
def test_what_only_a_standby_sends_does_not_come_from_a_server(frame: bytes) -> None:
    with pytest.raises(MessageUnknown):
        parse_copy_data(frame)


@pytest.mark.parametrize("unknown", [b"x" + bytes(40), b"r" + bytes(33), KEEPALIVE[:-1] + b"\2"])
def test_what_the_protocol_does_not_know_is_an_error(unknown: bytes, cut_items: Cut) -> None:
    with pytest.raises(MessageUnknown):
        cut_items([unknown], False)


def test_status_update_carries_three_full_positions() -> None:
    """F8: write, flush and apply have 64 bits each, and none replaces another."""
    status = standby_status_update(0x3_0000_0003, 0x2_0000_0002, 0x1_0000_0001, -9, True)
    assert status == b"r" + bytes.fromhex("0000000300000003 0000000200000002 0000000100000001") + struct.pack(
        ">qB", -9, 1
    )
    assert standby_status_update(1, 1, 1, 0, False)[-1] == 0


def test_consecutive_rows_are_one_run_and_controls_and_keepalives_end_it(cut_items: Cut) -> None:
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
        Control(9, b"B...", 77),
        RowBatch(frame(insert, 1) + frame(update, 2), 2, None),
        Keepalive(0x16_B374_D848, -5, True),
        RowBatch(frame(delete, 3), 1, None),
        Control(4, b"C...", 77),
    ]
    assert not in_stream


def test_inside_a_stream_segment_a_run_is_of_one_subtransaction(cut_items: Cut) -> None:
    """F26: each streamed row carries its xid; a batch never mixes two."""
    first, second = b"I\0\0\0\7....", b"I\0\0\0\x08...."
    messages = [xlog(b"S"), xlog(first), xlog(first), xlog(second), xlog(b"E"), xlog(b"I\0\0\0\1N")]
    items, in_stream = cut_items(messages, False)
    batches = [(item.count, item.xid) for item in items if isinstance(item, RowBatch)]
    assert batches == [(2, 7), (1, 8), (1, None)]
    assert not in_stream


def test_the_stream_bit_lasts_over_batches(cut_items: Cut) -> None:
    items, in_stream = cut_items([xlog(b"S")], False)
    assert (items, in_stream) == ([Control(0x1_0000_0002, b"S", 77)], True)
    items, in_stream = cut_items([xlog(b"D\0\0\1\0....")], in_stream)
    assert (items, in_stream) == ([RowBatch(frame(b"D\0\0\1\0...."), 1, 256)], True)


def test_a_streamed_row_without_room_for_its_xid_is_truncated(cut_items: Cut) -> None:
    with pytest.raises(MessageTruncated):
        cut_items([xlog(b"I\0\0\0")], True)


def test_nothing_in_gives_nothing_out(cut_items: Cut) -> None:
    assert cut_items([], True) == ([], True)
