"""A daemon's `SnapshotControl` without a daemon, and the admin port in front of it.

In: the results that commands shall have, the reports.  Out: the commands that arrived.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from cdcd.errors import NotStreaming
from cdcd.ops.admin import AdminServer
from cdcd.ops.health import Verdict
from cdcd.snapshot.admin_page import SnapshotPages
from cdcd.snapshot.control import CommandResult, SnapshotCommand, TableReport


class FakeControl:
    """`result`: what happens to a command; by default each of its tables is concerned."""

    def __init__(self) -> None:
        self.commands: list[SnapshotCommand] = []
        self.tables: list[TableReport] | None = []
        self.result: Callable[[SnapshotCommand], Awaitable[Sequence[str]]] | None = None
        self.left_out: dict[str, str] = {}

    async def execute(self, command: SnapshotCommand) -> CommandResult:
        self.commands.append(command)
        tables = command.tables if self.result is None else await self.result(command)
        return CommandResult(tuple(tables), self.left_out)

    def reports(self) -> list[TableReport]:
        if self.tables is None:
            raise NotStreaming("no session has read yet which tables are being copied")
        return self.tables


@asynccontextmanager
async def admin_port(control: FakeControl, name: str = "shop", wait_s: float = 30.0) -> AsyncIterator[int]:
    """Serve the pages on a free port."""

    async def no_metrics() -> bytes:
        return b""

    fine = lambda: Verdict(True, "")  # noqa: E731
    server = AdminServer(
        "127.0.0.1",
        0,
        metrics=no_metrics,
        livez=fine,
        readyz=fine,
        startupz=fine,
        status=lambda: {"name": name},
        snapshots=SnapshotPages(control, name, wait_s=wait_s),
    )
    try:
        yield await server.start()
    finally:
        await server.stop()
