"""The errors that a stream option may cause, and the options of the next session."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdcd.errors import (
    BinaryFailed,
    BinaryUnreadable,
    CdcdError,
    KeyChanged,
    OptionFailed,
    Retry,
    SendFunctionMissing,
    ServerInternal,
    SourceUnavailable,
    StreamingFailed,
    TwoPhaseFailed,
    UnsafeStreaming,
    ValueUnencodable,
)
from cdcd.session.option_downgrade import allowed_options, unsafe_options
from cdcd.source.settings import StreamOptions
from tests.support.source import choose_options

STREAMED = choose_options(180_000)
UNSTREAMED = choose_options(180_000, streaming="off")
BINARY = replace(STREAMED, binary=True)


@pytest.mark.parametrize(
    "error",
    [
        ServerInternal("broken", sqlstate="XX000"),
        KeyChanged("now ()", table="t"),
        UnsafeStreaming("x", xid=7),
    ],
)
def test_an_error_that_streaming_may_cause_is_retried_without_streaming(error: CdcdError) -> None:
    with pytest.raises(StreamingFailed, match=error.message) as failed, unsafe_options(STREAMED, slot="s"):
        raise error
    assert failed.value.retry is Retry.AUTO
    assert failed.value.context == error.context
    assert allowed_options(STREAMED, failed.value) == UNSTREAMED


@pytest.mark.parametrize(
    "error",
    [
        BinaryUnreadable("no reading", table="t", column="c", lsn=7),
        SendFunctionMissing("x", sqlstate="42883"),
    ],
)
def test_an_error_that_binary_may_cause_is_retried_as_text(error: CdcdError) -> None:
    with pytest.raises(BinaryFailed, match=error.message) as failed, unsafe_options(BINARY, slot="s"):
        raise error
    assert failed.value.retry is Retry.AUTO
    assert failed.value.context == error.context
    assert allowed_options(BINARY, failed.value) == STREAMED


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (UNSTREAMED, ServerInternal("broken")),
        (UNSTREAMED, KeyChanged("now ()")),
        (STREAMED, SourceUnavailable("gone")),
        (STREAMED, SendFunctionMissing("no output function")),
        (BINARY, ValueUnencodable("a null key")),
    ],
)
def test_other_errors_stay_what_they_are(options: StreamOptions, error: CdcdError) -> None:
    with pytest.raises(type(error)) as failed, unsafe_options(options, slot="s"):
        raise error
    assert failed.value is error
    assert allowed_options(options, error) == options


def test_two_phase_is_named_after_streaming_was_tried_without() -> None:
    """A slot with two_phase cannot be read without it, so an operator must act; damaged data is not its effect."""
    both, alone = (choose_options(180_000, streaming=way, two_phase=True) for way in ("on", "off"))
    error = ServerInternal("could not map filenumber", sqlstate="XX000")
    with pytest.raises(StreamingFailed) as failed, unsafe_options(both, slot="s"):
        raise error
    assert allowed_options(both, failed.value) == alone
    with (
        pytest.raises(TwoPhaseFailed, match="filenumber") as halted,
        unsafe_options(alone, failed.value, slot="s"),
    ):
        raise error
    assert halted.value.retry is Retry.OPERATOR
    assert "pg_copy_logical_replication_slot('s_copy', 's')" in halted.value.advice
    damaged = ServerInternal("invalid page", sqlstate="XX001")
    with pytest.raises(ServerInternal) as stays, unsafe_options(alone, failed.value, slot="s"):
        raise damaged
    assert stays.value is damaged


def test_options_that_fail_in_turn_are_both_left_out_in_the_end() -> None:
    """Otherwise each option would return when the other is left out, and the slot never passes the transaction."""
    last_error: CdcdError | None = None
    for error in (BinaryUnreadable("no reading"), ServerInternal("broken")):
        with (
            pytest.raises(OptionFailed) as failed,
            unsafe_options(allowed_options(BINARY, last_error), last_error, slot="s"),
        ):
            raise error
        last_error = failed.value
    assert allowed_options(BINARY, last_error) == UNSTREAMED


def test_the_first_session_has_what_is_wanted() -> None:
    assert allowed_options(BINARY, None) == BINARY
