"""The faults of a demo with --chaos: the seed selects them, and none outlasts the chaos."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdcd.demo.chaos import Chaos
from cdcd.demo.world import World


class Struck:
    """A substitute for the demo's world that records the faults."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.cdcd = SimpleNamespace(send=lambda number: self.done.append(number.name))
        self.postgres = SimpleNamespace(execute=self._execute)

    def _execute(self, *_: object, **__: object) -> list[tuple[int]]:
        self.done.append("walsender")
        return [(1,)]

    def __getattr__(self, name: str) -> Any:
        return lambda: self.done.append(name)


def strikes(seed: int, seconds: int = 60) -> tuple[Struck, Chaos]:
    world = Struck()
    chaos = Chaos(cast(World, world), seed, lambda _: None)
    for tenth in range(seconds * 10):
        chaos.strike(tenth / 10)
    chaos.end()
    return world, chaos


def test_the_seed_says_what_strikes() -> None:
    assert strikes(3)[0].done == strikes(3)[0].done != strikes(4)[0].done


@pytest.mark.parametrize("seed", range(5))
def test_all_of_it_strikes_and_what_was_frozen_is_woken(seed: int) -> None:
    world, chaos = strikes(seed, 120)
    assert len(chaos.struck) == 4
    killed = chaos.struck["cdcd was killed (SIGKILL)"]
    assert world.done.count("kill_cdcd") == world.done.count("start_cdcd") == killed
    frozen = [one for one in world.done if one in ("SIGSTOP", "SIGCONT")]
    assert frozen == ["SIGSTOP", "SIGCONT"] * chaos.struck["cdcd was frozen (SIGSTOP)"]


def test_what_is_frozen_is_woken_at_the_end() -> None:
    world = Struck()
    chaos = Chaos(cast(World, world), 0, lambda _: None)
    tenth = 0
    while signal.SIGSTOP.name not in world.done:
        tenth += 1
        chaos.strike(tenth / 10)
    chaos.end()
    assert world.done[-1] == "SIGCONT"
