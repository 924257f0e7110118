"""The parser of hints returns only what the hint says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.hints import apply, commands_in, hint_of, settings_in

REPORTED = (
    "CDCD-SINK: too long [topic=a] -> lower sink.transaction_timeout_ms, run `cdcd resume --accept-gap --config "
    "/c.yaml`, or set source.protocol.streaming: off, set sink.topics.shared_with: [one, two] and raise buffer.spill."
)


def test_commands_and_settings() -> None:
    hint = hint_of(REPORTED)
    assert hint.startswith("lower ")
    assert commands_in(hint) == [("resume", "--accept-gap")]
    assert settings_in(hint) == {
        "sink.transaction_timeout_ms": "",
        "source.protocol.streaming": "off",
        "sink.topics.shared_with": "[one, two]",
        "buffer.spill": "",
    }


def test_settings_are_applied_with_the_hints_value_or_the_operators() -> None:
    config: dict[str, Any] = {"source": {"dsn": "x"}}
    hint = hint_of(REPORTED)
    apply(config, hint, "source.protocol.streaming")
    apply(config, hint, "sink.topics.shared_with")
    apply(config, hint, "buffer.spill", "1GiB")
    assert config == {
        "source": {"dsn": "x", "protocol": {"streaming": "off"}},
        "sink": {"topics": {"shared_with": ["one", "two"]}},
        "buffer": {"spill": "1GiB"},
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [("sink.partitions", None), ("buffer.spill", None), ("source.protocol.streaming", "on")],
)
def test_what_the_hint_does_not_say_is_no_way_to_follow_it(name: str, value: str | None) -> None:
    with pytest.raises(AssertionError):
        apply({}, hint_of(REPORTED), name, value)
    with pytest.raises(AssertionError):
        hint_of("CDCD-SINK: too long")
    with pytest.raises(AssertionError):
        commands_in("start Kafka")
    with pytest.raises(AssertionError, match="cannot be typed: resume"):
        hint_of("CDCD-SINK: too long -> run `cdcd resume`")
