"""Snapshot commands from the topic of signals.

In: a topic, the name of the configuration, the offset of the next record.  Out: commands, each with its offset.
Invariant: a record under another key is ignored: one topic may serve several daemons. A record that is not a command
is skipped, with one line in the log that has its offset and what is wrong, never its content. Each command is
executed exactly once if the progress record with its effect has the next offset too. A reader that cannot continue at
its offset records the new one before the next command: a topic that was created again may have the old one later.
Must not: execute a command; block the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

import structlog

from cdcd.sink.settings import SinkSettings
from cdcd.sink.signal_topic import OffsetGone, SignalRecord, SignalTopic
from cdcd.snapshot.command_json import BadCommand
from cdcd.snapshot.control import SnapshotCommand
from cdcd.snapshot.signals import command_of_signal
from cdcd.threads import in_thread, settled, start_in_thread

__all__ = ["NewSignalReader", "SignalReader"]

_LOG = structlog.stdlib.get_logger("cdcd.snapshot.signals")
_LOOK_AGAIN_S = 0.25
_AT_A_TIME = 100
Moved = Callable[[int], Awaitable[None]]


async def _note_nothing(_next_offset: int) -> None:
    """Record nothing."""


class SignalReader:
    """Yields commands from `open` to `close`. `key`: the name of the configuration.

    `next_offset`: the offset of the next record, None at the first start: records before `open` are then ignored.
    While no command that was yielded waits for its effect, the attribute is the offset that a later reader continues
    from; it also passes records that were ignored. `moved` records that the reader continues at another offset.
    """

    def __init__(
        self,
        settings: SinkSettings,
        topic: str,
        key: str,
        next_offset: int | None,
        moved: Moved = _note_nothing,
    ) -> None:
        self._name = topic
        self._key = key.encode()
        self._topic = SignalTopic(settings, topic, next_offset)
        self._opening: asyncio.Future[int] | None = None
        self.next_offset = next_offset
        self._moved = moved

    async def open(self) -> int:
        """Return the offset of the next record: a record that is written after this call is not missed.

        Raises TopicMissing, SinkAuthorization, SinkUnavailable, and SinkError for a topic of several partitions.
        """
        await settled(self._opening)
        self._opening = start_in_thread(self._topic.open)
        before, self.next_offset = self.next_offset, await asyncio.shield(self._opening)
        if self.next_offset != before:
            await self._moved(self.next_offset)
        return self.next_offset

    async def renew(self, settings: SinkSettings) -> None:
        """Continue with these settings, from the same record. Raises the errors of `open`."""
        await settled(self._opening)
        self._topic.renew(settings)
        self._opening = start_in_thread(self._topic.open)
        await asyncio.shield(self._opening)

    async def close(self) -> None:
        """Release the client. May be called at any time."""
        await settled(self._opening)
        await in_thread(self._topic.close)

    def __aiter__(self) -> AsyncIterator[SnapshotCommand]:
        """Yield each command with its offset. Raises the errors of `open`, except that a broker is waited for."""
        return self._commands()

    async def _commands(self) -> AsyncIterator[SnapshotCommand]:
        taken = 0
        while True:
            record = await self._next()
            taken = 0 if record is None else taken + 1
            if record is None or taken % _AT_A_TIME == 0:
                await asyncio.sleep(_LOOK_AGAIN_S if record is None else 0)
            if record is None:
                continue
            command = self._command(record)
            if command is not None:
                yield command
            self.next_offset = record.offset + 1

    async def _next(self) -> SignalRecord | None:
        await settled(self._opening)  # `renew` replaces the client meanwhile
        try:
            return self._topic.take()
        except OffsetGone:
            await self.open()
            return None

    def _command(self, record: SignalRecord) -> SnapshotCommand | None:
        if record.key != self._key:
            return None
        try:
            return command_of_signal(record.value, record.offset)
        except BadCommand as bad:
            _LOG.warning(
                "snapshot_signal_refused", topic=self._name, partition=0, offset=record.offset, error=str(bad)
            )
            return None


class NewSignalReader(Protocol):
    """Makes a reader that continues at an offset, as `SignalReader`."""

    def __call__(self, next_offset: int | None, moved: Moved) -> SignalReader: ...  # noqa: D102
