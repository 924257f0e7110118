"""The failure of a background task ends the main task, at any time and after any other tasks have ended."""

from __future__ import annotations

import asyncio

import pytest

from cdcd.session.background_tasks import in_background


async def nothing() -> None:
    """Ends at once."""


async def failing(at: asyncio.Event) -> None:
    await at.wait()
    raise OSError("in the background")


@pytest.mark.parametrize("others", [0, 1, 3])
async def test_a_failure_ends_the_main_task_also_after_others_have_ended(others: int) -> None:
    at = asyncio.Event()
    async with asyncio.timeout(10), in_background(*(nothing() for _ in range(others)), failing(at)) as tasks:
        asyncio.get_running_loop().call_later(0.01, at.set)
        with pytest.raises(OSError, match="in the background"):
            await tasks.or_failure(asyncio.Event().wait())


async def test_an_earlier_failure_ends_a_main_task_that_begins_later() -> None:
    at = asyncio.Event()
    at.set()
    async with asyncio.timeout(10), in_background(nothing(), failing(at)) as tasks:
        await asyncio.sleep(0.01)
        with pytest.raises(OSError, match="in the background"):
            await tasks.or_failure(asyncio.Event().wait())


async def test_the_main_task_continues_when_others_have_ended() -> None:
    async with asyncio.timeout(10), in_background(nothing(), nothing()) as tasks:
        assert await tasks.or_failure(asyncio.sleep(0.01, "done")) == "done"
        assert await tasks.or_failure(asyncio.sleep(0, "again")) == "again"


async def test_a_cancelled_main_task_has_ended_before_the_failure_is_raised() -> None:
    at, ended = asyncio.Event(), []

    async def main_task() -> None:
        try:
            at.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append(True)

    async with asyncio.timeout(10), in_background(failing(at)) as tasks:
        with pytest.raises(OSError, match="in the background"):
            await tasks.or_failure(main_task())
        assert ended == [True]
