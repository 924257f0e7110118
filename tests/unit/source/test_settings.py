"""The stream options for each server version."""

from __future__ import annotations

from typing import Any

import pytest

from cdcd.errors import SourceSetup
from cdcd.source.settings import (
    SourceSettings,
    StreamOptions,
    granted_options,
    shortfalls,
    wanted_options,
)
from tests.support.source import choose_options


@pytest.mark.parametrize(
    ("server", "wanted", "chosen"),
    [
        (120_000, {}, StreamOptions(1)),
        (130_023, {}, StreamOptions(1)),
        (140_000, {}, StreamOptions(2, "on", messages=True)),
        (150_018, {}, StreamOptions(3, "on", messages=True)),
        (160_000, {}, StreamOptions(4, "parallel", messages=True)),
        (160_000, {"streaming": "off"}, StreamOptions(4, messages=True)),
        (180_004, {"messages": False}, StreamOptions(4, "parallel")),
        (180_004, {"version": 1}, StreamOptions(1, messages=True)),
        (140_000, {"streaming": "on", "binary": True}, StreamOptions(2, "on", binary=True, messages=True)),
        (160_000, {"version": 3}, StreamOptions(3, "on", messages=True)),
        (160_000, {"streaming": "parallel"}, StreamOptions(4, "parallel", messages=True)),
        (160_000, {"origin": "none"}, StreamOptions(4, "parallel", messages=True, origin="none")),
        (150_000, {"two_phase": True}, StreamOptions(3, "on", messages=True, two_phase=True)),
    ],
)
def test_options_fit_the_server(server: int, wanted: dict[str, Any], chosen: StreamOptions) -> None:
    assert choose_options(server, **wanted) == chosen


@pytest.mark.parametrize(
    ("server", "wanted", "wish", "who_can"),
    [
        (140_000, {"version": 3}, "protocol version 3", "PostgreSQL 15, the server is 14"),
        (130_000, {"version": 2}, "protocol version 2", "PostgreSQL 14"),
        (150_000, {"version": 4}, "protocol version 4", "PostgreSQL 16"),
        (180_000, {"version": 5}, "protocol version 5", "the versions are 1 to 4"),
        (180_000, {"version": 0}, "protocol version 0", "the versions are 1 to 4"),
        (130_000, {"streaming": "on"}, "streaming on", "PostgreSQL 14"),
        (150_000, {"streaming": "parallel"}, "streaming parallel", "PostgreSQL 16"),
        (180_000, {"streaming": "on", "version": 1}, "streaming on", "protocol version 2"),
        (180_000, {"streaming": "parallel", "version": 3}, "streaming parallel", "protocol version 4"),
        (130_000, {"binary": True}, "binary", "PostgreSQL 14"),
        (150_000, {"origin": "none"}, "origin none", "PostgreSQL 16"),
        (140_000, {"two_phase": True}, "two_phase", "PostgreSQL 15"),
        (160_000, {"two_phase": True, "version": 2}, "two_phase", "protocol version 3"),
    ],
)
def test_a_wish_that_the_server_cannot_grant_is_an_error_that_names_who_can(
    server: int, wanted: dict[str, Any], wish: str, who_can: str
) -> None:
    with pytest.raises(SourceSetup, match=f"{wish} is not possible: .*{who_can}"):
        choose_options(server, **wanted)


def test_all_wishes_are_refused_at_once() -> None:
    with pytest.raises(SourceSetup) as caught:
        choose_options(150_000, streaming="parallel", origin="none")
    assert "streaming parallel" in caught.value.message
    assert "origin none" in caught.value.message
    assert caught.value.advice == (
        "set source.protocol.streaming: auto, and restart cdcd; set source.protocol.origin: any, and restart cdcd"
    )


def test_logical_messages_are_omitted_before_14_with_a_warning() -> None:
    (reported,) = shortfalls(130_000, wanted_options(130_000))
    assert (reported.option, reported.is_left_out) == ("source.protocol.messages", True)
    assert "PostgreSQL 14" in reported.why
    assert shortfalls(130_000, wanted_options(130_000, messages=False)) == []
    assert shortfalls(140_000, wanted_options(140_000)) == []


def test_a_failover_slot_needs_17() -> None:
    (reported,) = shortfalls(160_000, wanted_options(160_000), failover=True)
    assert reported.option == "source.slot.failover"
    assert "PostgreSQL 17" in reported.why
    assert shortfalls(170_000, wanted_options(170_000), failover=True) == []
    with pytest.raises(SourceSetup, match="failover is not possible"):
        granted_options(160_000, wanted_options(160_000), failover=True)
    assert granted_options(170_000, wanted_options(170_000), failover=True) == wanted_options(170_000)


def test_settings_do_not_show_the_dsn() -> None:
    settings = SourceSettings("postgresql://u:secret@h/d", lambda: "secret", "s", ("p",), "a")
    assert "secret" not in repr(settings)
