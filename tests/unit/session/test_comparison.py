"""The keys that only a topic may have: some at a time, and again until they are done."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from typing import Any, cast

from cdcd.avro.columns import encode_key
from cdcd.avro.plan import RelationPlan
from cdcd.model import Column
from cdcd.session.comparison import Comparison
from cdcd.sink.stale_keys import StaleKeys
from tests.support.plans import plan_of_columns

STARTS = (7, 8)


def plan() -> RelationPlan:
    columns = (Column("id", 23, -1, is_key=True), Column("v", 25, -1, is_key=False))
    return plan_of_columns(columns, ("id",))


class Keys:
    """A topic with so many keys; `read` needs two calls."""

    def __init__(self, count: int) -> None:
        self.left = [encode_key(plan(), [b"%d" % n, None], True, 0) for n in range(count)]
        self.reads = self.closed = self.read_bytes = 0

    def read(self) -> bool:
        self.reads += 1
        return self.reads >= 2

    def take(self, most: int) -> list[bytes]:
        taken, self.left = self.left[:most], self.left[most:]
        return taken

    def close(self) -> None:
        self.closed += 1


class Topics:
    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def ends_of(self, _plan: RelationPlan) -> tuple[int, ...]:
        return STARTS

    def stale(self, _plan: RelationPlan, starts: Any) -> StaleKeys:
        assert starts == STARTS
        return cast("StaleKeys", self._keys)


async def test_keys_are_returned_until_they_are_done() -> None:
    keys = Keys(120)
    one = Comparison(Topics(keys), plan(), STARTS)
    pauses: list[int] = []

    async def give_way(_used_s: float, size_bytes: int) -> None:
        pauses.append(size_bytes)

    assert not await one.read(give_way)
    assert await one.read(give_way)
    assert await one.read(give_way)
    assert keys.reads == len(pauses) == 2
    found: list[str] = []
    while some := await one.next_keys(30):
        assert some == await one.next_keys(30), "a chunk that was refused is looked up again"
        smaller = await one.next_keys(7)
        assert list(smaller) == list(some)[:7]
        found += [text for (text,) in smaller.values()]
        one.done(len(smaller))
    assert found == [str(n) for n in range(120)]
    assert one.deleted == 120
    one.end()
    while not keys.closed:
        await asyncio.sleep(0.01)


async def test_it_belongs_to_one_beginning_of_the_copy_and_to_one_form_of_the_keys() -> None:
    one, mine = Comparison(Topics(Keys(0)), plan(), STARTS), plan()
    assert one.is_of(mine, STARTS)
    assert not one.is_of(mine, (7, 9))
    assert not one.is_of(mine, ())
    assert not one.is_of(replace(mine, topic="shop.public.t.v2"), STARTS)
    assert not one.is_of(replace(mine, key_header=b"\0" + struct.pack(">I", 12)), STARTS)
