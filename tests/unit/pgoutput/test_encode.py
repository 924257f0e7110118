"""The encoder writes the golden bytes, and each encoded message decodes to an equal one."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from cdcd.pgoutput import messages as m
from cdcd.pgoutput.decode import decode
from tests.support.pgoutput_encode import encode, row_batch_of

from .golden import GOLDEN, Golden
from .strategies import messages_and_sessions


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda one: one.name)
def test_a_message_is_written_as_the_documents_say(golden: Golden) -> None:
    assert encode(golden.message, **golden.session) == golden.payload


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)  # the first draw, on a busy machine
@given(messages_and_sessions())
def test_what_is_written_is_read_back(one: tuple[m.AnyMessage, dict[str, Any]]) -> None:
    message, session = one
    assert decode(encode(message, **session), **session) == message


@pytest.mark.parametrize(
    ("message", "session"),
    [
        (m.Type(1, "", "t", xid=7), {"in_stream": False}),
        (m.Type(1, "", "t"), {"in_stream": True}),
        (m.StreamAbort(1, 1), {"in_stream": False, "streaming_parallel": True}),
        (m.StreamAbort(1, 1, 5, 5), {"in_stream": False}),
        (m.Commit(1, 1, 1, flags=1), {"in_stream": False}),
        (m.Origin(1, "a\0b"), {"in_stream": False}),
        (m.Insert(1, m.TupleData((m.TupleColumn(b"t"),))), {"in_stream": False}),
    ],
)
def test_a_message_that_does_not_suit_the_session_is_not_written(
    message: m.AnyMessage, session: dict[str, bool]
) -> None:
    with pytest.raises(ValueError):
        encode(message, **session)


def test_a_run_is_frames_of_length_lsn_and_payload() -> None:
    row = m.Insert(1, m.TupleData((m.NULL,)))
    payload = b"I\0\0\0\1N\0\1n"
    frame = struct.pack(">IQ", len(payload), 0x10) + payload
    run = row_batch_of([(0x10, row), (0x10, row)])
    assert (run.frames, run.count, run.xid) == (frame + frame, 2, None)


def test_a_runs_rows_carry_its_xid() -> None:
    with pytest.raises(ValueError):
        row_batch_of([(1, m.Insert(1, m.TupleData(()), xid=8))], xid=9)
