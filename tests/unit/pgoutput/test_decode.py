"""Each message complete, cut at every length, and with extra bytes; no bytes cause more than a protocol error."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.errors import MessageTrailing, MessageTruncated, MessageUnknown, ProtocolError
from cdcd.pgoutput import messages
from cdcd.pgoutput.decode import decode
from cdcd.pgoutput.messages import FORMAT_OF, MESSAGES, ROWS, is_present

from .golden import GOLDEN, Golden

every_message = pytest.mark.parametrize("golden", GOLDEN, ids=lambda one: one.name)


def test_the_golden_bytes_cover_the_whole_table() -> None:
    assert {type(one.message) for one in GOLDEN} == {row.cls for row in ROWS}
    assert len(MESSAGES) == len(FORMAT_OF) == len(ROWS) == 19


@every_message
def test_a_message_is_read_whole(golden: Golden) -> None:
    assert decode(golden.payload, **golden.session) == golden.message


@every_message
def test_a_message_cut_anywhere_names_itself_and_the_field(golden: Golden) -> None:
    row = FORMAT_OF[type(golden.message)]
    fields = [one.name for one in row.fields if is_present(one.wire.when, **golden.session)]
    named = []
    for size in range(1, len(golden.payload)):
        with pytest.raises(MessageTruncated) as caught:
            decode(golden.payload[:size], **golden.session)
        assert caught.value.context["message_name"] == row.name
        field = str(caught.value.context["field"])
        named.append(field.split(".")[0].split("[")[0])
        assert row.name in str(caught.value)
        assert field in str(caught.value)
    if row.cls is messages.Truncate:
        fields.remove("options")  # the count before it is refused first: the relids after it are missing
    assert list(dict.fromkeys(named)) == fields  # the error names each field while its bytes are missing


@every_message
def test_a_message_that_comes_one_byte_at_a_time_is_read_with_its_last_byte(golden: Golden) -> None:
    come = bytearray()
    for byte in golden.payload[:-1]:
        come.append(byte)
        with pytest.raises(MessageTruncated):
            decode(bytes(come), **golden.session)
    come.append(golden.payload[-1])
    assert decode(bytes(come), **golden.session) == golden.message


@every_message
def test_bytes_after_the_last_field_are_an_error(golden: Golden) -> None:
    for extra in (b"\0", b"N", b"\xff" * 40):
        with pytest.raises(MessageTrailing, match=FORMAT_OF[type(golden.message)].name):
            decode(golden.payload + extra, **golden.session)


@every_message
def test_a_message_does_not_exist_before_its_version(golden: Golden) -> None:
    since = FORMAT_OF[type(golden.message)].since_version
    for version in range(1, since):
        with pytest.raises(MessageUnknown, match=f"version {version}"):
            decode(golden.payload, in_stream=golden.in_stream, protocol_version=version)


@pytest.mark.parametrize(
    ("message", "session"),
    [
        (messages.StreamAbort(7, 8), {"in_stream": False, "protocol_version": 3, "streaming_parallel": True}),
        (messages.StreamAbort(7, 8), {"in_stream": False, "protocol_version": 4}),
        (messages.Type(7, "", "t"), {"in_stream": True, "protocol_version": 1}),
    ],
)
def test_a_field_is_absent_before_the_version_that_brought_it(
    message: messages.AnyMessage, session: dict[str, Any]
) -> None:
    always = {messages.StreamAbort: b"A\0\0\0\7\0\0\0\x08", messages.Type: b"Y\0\0\0\7\0t\0"}
    assert decode(always[type(message)], **session) == message


def test_an_empty_payload_is_truncated() -> None:
    with pytest.raises(MessageTruncated):
        decode(b"", in_stream=False, protocol_version=1)


def test_an_unlisted_type_byte_is_unknown() -> None:
    unlisted = sorted(set(range(256)) - set(MESSAGES))
    assert len(unlisted) > 200
    for byte in unlisted:
        with pytest.raises(MessageUnknown, match=f"0x{byte:02x}"):
            decode(bytes((byte, 0, 0)), in_stream=False, protocol_version=4)


@pytest.mark.parametrize(
    ("payload", "name"),
    [
        (b"C\x01" + bytes(24), "Commit: flags"),
        (b"M\x02" + bytes(13), "Message: transactional"),
        (b"T\0\0\0\0\x04", "Truncate: options"),
        (b"R\0\0\0\1\0t\0x\0\0", "Relation: identity"),
        (b"R\0\0\0\1\0t\0d\0\1\2i\0" + bytes(8), r"Relation: columns\[0\].is_key"),
        (b"I\0\0\0\1K\0\0", "Insert: new.marker"),
        (b"I\0\0\0\1N\0\1x", r"Insert: new\[0\].kind"),
        (b"U\0\0\0\1X\0\0N\0\0", "Update: old.marker"),
        (b"D\0\0\0\1N\0\0", "Delete: old.marker"),
        (b"S\0\0\0\1\x02", "Stream Start: is_first_segment"),
    ],
)
def test_a_byte_that_no_version_knows_is_named_by_its_field(payload: bytes, name: str) -> None:
    with pytest.raises(MessageUnknown, match=name):
        decode(payload, in_stream=False, protocol_version=4)


def test_an_update_has_one_old_tuple_at_most() -> None:
    with pytest.raises(MessageUnknown, match=r"Update: new.marker"):
        decode(b"U\0\0\0\1K\0\0O\0\0N\0\0", in_stream=False, protocol_version=1)


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        (b"I\0\0\0\1N\xff\xff", "new.count"),
        (b"I\0\0\0\1N\0\1t\xff\xff\xff\xff12", r"new\[0\]"),
        (b"T\xff\xff\xff\xff\0", "relid_count"),
        (b"R\0\0\0\1\0t\0d\xff\xff", "columns.count"),
        (b"M\0" + bytes(8) + b"\0\x7f\xff\xff\xff", "content"),
    ],
)
def test_a_count_beyond_the_bytes_left_is_refused_before_it_is_believed(payload: bytes, field: str) -> None:
    with pytest.raises(MessageTruncated, match=field):
        decode(payload, in_stream=False, protocol_version=1)


@pytest.mark.parametrize(
    "payload",
    [
        b"R\0\0\0\1\0t\0d\xff\xff" + bytes(9),  # 65535 columns in 20 bytes
        b"I\0\0\0\1N\xff\xff" + b"n" * 12,
        b"U\0\0\0\1O\xff\xff" + b"n" * 12,
        b"D\0\0\0\1K\0\1t\xff\xff\xff\xff" + bytes(8),
        b"T\xff\xff\xff\xff\0" + bytes(12),
        b"M\0" + bytes(8) + b"\0\xff\xff\xff\xff" + bytes(8),
    ],
)
def test_nothing_is_allocated_for_a_count_or_length_that_the_message_does_not_hold(payload: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MessageTruncated):
            decode(payload, in_stream=False, protocol_version=1)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 20_000


def test_a_name_that_is_not_utf8_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="Origin: name is not UTF-8"):
        decode(b"O" + bytes(8) + b"\xff\0", in_stream=False, protocol_version=1)


def test_no_row_value_enters_an_error() -> None:
    payload = b"I" + struct.pack(">I", 1) + b"N\0\1t" + struct.pack(">I", 12) + b"secret"
    with pytest.raises(MessageTruncated) as caught:
        decode(payload, in_stream=False, protocol_version=1)
    assert "secret" not in str(caught.value)


def test_an_lsn_and_an_oid_use_all_their_bits() -> None:
    message = decode(b"O" + b"\xff" * 8 + b"\0", in_stream=False, protocol_version=1)
    assert message == messages.Origin((1 << 64) - 1, "")


@given(
    payload=st.one_of(
        st.binary(max_size=200),
        st.builds(lambda kind, rest: bytes((kind,)) + rest, st.sampled_from(sorted(MESSAGES)), st.binary()),
    ),
    in_stream=st.booleans(),
    protocol_version=st.integers(1, 4),
    streaming_parallel=st.booleans(),
)
def test_random_bytes_raise_nothing_but_protocol_errors(
    payload: bytes, in_stream: bool, protocol_version: int, streaming_parallel: bool
) -> None:
    with contextlib.suppress(ProtocolError):
        decode(
            payload,
            in_stream=in_stream,
            protocol_version=protocol_version,
            streaming_parallel=streaming_parallel,
        )


@given(golden=st.sampled_from(GOLDEN), data=st.data())
def test_a_flipped_byte_raises_nothing_but_protocol_errors(golden: Golden, data: st.DataObject) -> None:
    broken = bytearray(golden.payload)
    broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        decode(bytes(broken), **golden.session)
