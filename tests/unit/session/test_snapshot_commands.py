"""A command whose session ends meanwhile: nothing is claimed that is not known."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.errors import NotStreaming
from cdcd.session.snapshot_commands import SnapshotCommands
from cdcd.snapshot.control import SnapshotCommand


@pytest.mark.parametrize("has_streamed", [False, True])
def test_while_a_snapshot_lists_its_tables_nothing_is_shown_as_complete(has_streamed: bool) -> None:
    """`cdcd snapshot status --watch` would end with status 0 before a new snapshot of the same process has begun."""
    health = SimpleNamespace(state="streaming")
    status: Any = SimpleNamespace(
        health=health, incremental=lambda *_: None, tables_of_initial_snapshot=lambda: []
    )
    commands = SnapshotCommands(status)
    if has_streamed:
        with commands.attached(SimpleNamespace()):  # type: ignore[arg-type]
            assert commands.reports() == []
    health.state = "snapshot"
    with pytest.raises(NotStreaming, match="an initial snapshot is being taken") as unknown:
        commands.reports()
    assert "waiting_for" in unknown.value.advice


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
