"""When a committed group is visible for readers: `cdcd.sink.visible`, with answers about the last stable offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from cdcd.errors import SinkUnavailable
from cdcd.sink.visible import Visibility, _end

ENDS = {"shop.public.t": {0: 7}}


def visibility(monkeypatch: pytest.MonkeyPatch, look: Callable[[Any], bool]) -> Any:
    """Return one of a sink that has committed; `look` answers whether the group is visible."""
    one = Visibility(SimpleNamespace(committed_ends=dict(ENDS), settings=None))  # type: ignore[arg-type]
    monkeypatch.setattr(one, "_are_visible", look)
    return one


async def test_all_wait_for_one_look_and_an_outage_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[bool | SinkUnavailable] = [SinkUnavailable("no broker answers"), False, True]

    def look(ends: Any) -> bool:
        assert ends == ENDS
        answer = answers.pop(0)
        if isinstance(answer, SinkUnavailable):
            raise answer
        return answer

    one = visibility(monkeypatch, look)
    assert not one.is_reached
    await asyncio.wait_for(asyncio.gather(*(one.reached() for _ in range(100))), 60)
    assert one.is_reached
    assert answers == []
    await one.reached()  # without a further look


async def test_a_group_that_another_commit_follows_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(_ends: Any) -> bool:
        one._sink.committed_ends = {"shop.public.t": {0: 9}}
        return False

    one = visibility(monkeypatch, look)
    await asyncio.wait_for(one.reached(), 60)
    assert not one.is_reached  # the next one is not known to be
    one._sink.committed_ends = {}
    assert one.is_reached  # it has no record


async def test_nobody_looks_when_nobody_waits_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    one = visibility(monkeypatch, lambda _ends: False)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(one.reached(), 0.05)
    await asyncio.wait_for(one._look, 60)
    assert not one.is_reached


def test_a_deleted_topic_has_nothing_to_wait_for() -> None:
    def answer(code: int) -> Any:
        def result() -> Any:
            raise KafkaException(KafkaError(code))

        return SimpleNamespace(result=result)

    assert _end(answer(KafkaError.UNKNOWN_TOPIC_OR_PART), "t") == float("inf")
    with pytest.raises(SinkUnavailable):
        _end(answer(KafkaError.LEADER_NOT_AVAILABLE), "t")
