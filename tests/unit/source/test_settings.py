"""Which options are asked of which server."""

from __future__ import annotations

from typing import Any

import pytest

from cdcd.errors import SourceSetup
from cdcd.source.settings import SourceSettings, StreamOptions, choose_options


@pytest.mark.parametrize(
    ("server", "wanted", "chosen"),
    [
        (120_000, {}, StreamOptions(1)),
        (130_023, {}, StreamOptions(1)),
        (140_000, {}, StreamOptions(2, messages=True)),
        (150_018, {}, StreamOptions(3, messages=True)),
        (160_000, {}, StreamOptions(4, messages=True)),
        (180_004, {"messages": False}, StreamOptions(4)),
        (180_004, {"version": 1}, StreamOptions(1, messages=True)),
        (140_000, {"streaming": "on", "binary": True}, StreamOptions(2, "on", binary=True, messages=True)),
        (160_000, {"streaming": "parallel"}, StreamOptions(4, "parallel", messages=True)),
        (160_000, {"origin": "none"}, StreamOptions(4, messages=True, origin="none")),
        (150_000, {"two_phase": True}, StreamOptions(3, messages=True, two_phase=True)),
    ],
)
def test_options_fit_the_server(server: int, wanted: dict[str, Any], chosen: StreamOptions) -> None:
    assert choose_options(server, **wanted) == chosen


@pytest.mark.parametrize(
    ("server", "wanted", "named"),
    [
        (140_000, {"version": 3}, "protocol version 3"),
        (180_000, {"version": 5}, "protocol version 5"),
        (180_000, {"version": 0}, "protocol version 0"),
        (130_000, {"streaming": "on"}, "streaming on"),
        (150_000, {"streaming": "parallel"}, "streaming parallel"),
        (130_000, {"binary": True}, "binary"),
        (150_000, {"origin": "none"}, "origin none"),
        (140_000, {"two_phase": True}, "two_phase"),
    ],
)
def test_a_wish_that_the_server_cannot_grant_is_an_error(
    server: int, wanted: dict[str, Any], named: str
) -> None:
    with pytest.raises(SourceSetup, match=named):
        choose_options(server, **wanted)


def test_settings_do_not_show_the_dsn() -> None:
    settings = SourceSettings("postgresql://u:secret@h/d", lambda: "secret", "s", ("p",), "a")
    assert "secret" not in repr(settings)
