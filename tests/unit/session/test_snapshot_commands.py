"""A command whose session ends meanwhile: nothing is claimed that is not known."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.errors import NotStreaming
from cdcd.session.snapshot_commands import SnapshotCommands
from cdcd.snapshot.control import SnapshotCommand


def test_a_command_that_waits_at_the_end_of_its_session_may_have_been_recorded() -> None:
    """The running commit of the session's end may have the command; a second `start` would begin the copy again."""
    status: Any = SimpleNamespace(incremental=lambda *_: None)
    commands = SnapshotCommands(status)

    async def run() -> None:
        is_waiting = asyncio.Event()

        async def execute(_command: SnapshotCommand) -> None:
            is_waiting.set()
            await asyncio.Event().wait()

        session: Any = SimpleNamespace(execute=execute)
        with commands.attached(session):
            running = asyncio.create_task(commands.execute(SnapshotCommand("stop")))
            await is_waiting.wait()
        with pytest.raises(NotStreaming) as refused:
            await running
        assert "may have been recorded" in refused.value.message
        assert "cdcd snapshot status" in refused.value.advice

    asyncio.run(run())
