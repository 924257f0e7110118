"""Which errors cast doubt on streaming, and what the next session may ask for."""

from __future__ import annotations

import pytest

from cdcd.errors import (
    CdcdError,
    KeyChanged,
    Retry,
    ServerInternal,
    SourceUnavailable,
    StreamingFailed,
    StreamUnsure,
)
from cdcd.runtime.fallback import allowed, doubting
from cdcd.source.settings import StreamOptions, choose_options

STREAMED = choose_options(180_000)
UNSTREAMED = choose_options(180_000, streaming="off")


@pytest.mark.parametrize(
    "error",
    [ServerInternal("broken", sqlstate="XX000"), KeyChanged("now ()", table="t"), StreamUnsure("x", xid=7)],
)
def test_what_streaming_may_be_the_reason_of_is_tried_again_without(error: CdcdError) -> None:
    with pytest.raises(StreamingFailed, match=error.message) as failed, doubting(STREAMED):
        raise error
    assert failed.value.retry is Retry.AUTO
    assert failed.value.context == error.context
    assert allowed(STREAMED, failed.value) == UNSTREAMED


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (UNSTREAMED, ServerInternal("broken")),
        (UNSTREAMED, KeyChanged("now ()")),
        (STREAMED, SourceUnavailable("gone")),
    ],
)
def test_other_errors_stay_what_they_are(options: StreamOptions, error: CdcdError) -> None:
    with pytest.raises(type(error)) as failed, doubting(options):
        raise error
    assert failed.value is error
    assert allowed(STREAMED, error) == STREAMED


def test_the_first_session_streams() -> None:
    assert allowed(STREAMED, None) == STREAMED
