"""Create the slot of a first start, or of a snapshot that begins again.

In: source settings, the server that the decision is about.  Out: the slot, with an exported snapshot if wanted.
Invariant: no slot is dropped or created on another server (F59). A creation that is cancelled while it waits for open
transactions leaves no session on the server that holds the slot (F38).
Must not: copy a table.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import structlog

from cdcd.errors import SlotActive, SlotUnusable
from cdcd.lsn import format_lsn
from cdcd.source.connection import connect_sql
from cdcd.source.identity import ServerIdentity, check_same_server
from cdcd.source.lock_watch import Report, unreported
from cdcd.source.settings import SourceSettings
from cdcd.source.slot import (
    HELD_BY_A_LOST_SESSION,
    CreatedSlot,
    create_slot,
    drop_slot,
    end_temporary,
    read_slot,
)
from cdcd.threads import settled, start_in_thread

_LOG = structlog.stdlib.get_logger("cdcd.snapshot")
GIVING_UP_S = 3.0
T = TypeVar("T")


async def create_slot_in_thread(
    settings: SourceSettings,
    expected: ServerIdentity,
    drop_first: bool,
    has_snapshot: bool,
    report: Report = unreported,
    is_temporary: bool = False,
) -> CreatedSlot:
    """Create the slot on this server, with an exported snapshot if one is wanted. Raises Source errors.

    A temporary slot ends with the returned connection.

    `report` is called with the transactions that PostgreSQL waits for before it creates the slot (F38).

    When cancelled during this wait, the function cancels the creation on the server before it returns, so that no
    session holds the slot afterwards.
    """
    return await run_cancellable(
        lambda given_up: create_slot_for_snapshot(
            settings, expected, drop_first, has_snapshot, given_up, report, is_temporary
        ),
        CreatedSlot.close,
    )


def _keep(_result: object) -> None:
    """Do nothing with a result that comes too late."""


async def run_cancellable(work: Callable[[threading.Event], T], discard: Callable[[T], None] = _keep) -> T:
    """Run a blocking call in a thread. When cancelled, set its event and wait for its end for a short time.

    `discard` is called with a result that comes after that.
    """
    given_up = threading.Event()
    working = start_in_thread(work, given_up)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        given_up.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GIVING_UP_S):
                await settled(working)
        working.add_done_callback(partial(_discard, discard))
        raise


def _discard(discard: Callable[[T], None], working: asyncio.Future[T]) -> None:
    if not working.cancelled() and working.exception() is None:
        discard(working.result())


def create_slot_for_snapshot(
    settings: SourceSettings,
    expected: ServerIdentity,
    drop_first: bool,
    has_snapshot: bool,
    given_up: threading.Event,
    report: Report = unreported,
    is_temporary: bool = False,
) -> CreatedSlot:
    """Create the slot (blocking) unless `given_up` is set meanwhile. Raises Source errors.

    `expected`: the server that the verdict is about; no slot is dropped or created on another one (F59).
    """
    if drop_first:
        with contextlib.closing(connect_sql(settings)) as connection:
            check_same_server(connection, expected)
            drop_slot(connection, settings.slot)
        _LOG.info("slot_dropped", slot=settings.slot, reason="the slot's snapshot was not completed")
    try:
        created = create_slot(
            settings,
            export_snapshot=has_snapshot,
            given_up=given_up,
            expected=expected,
            report=report,
            is_temporary=is_temporary,
        )
    except SlotUnusable as error:
        if is_temporary:
            with contextlib.closing(connect_sql(settings)) as connection:
                end_temporary(connection, settings.slot)
            raise SlotActive(f"{error.message}: {HELD_BY_A_LOST_SESSION}", slot=settings.slot) from error
        # The slot did not exist a moment ago: another cdcd creates it, whose producer ours has fenced already.
        raise SlotActive(f"{error.message}: another cdcd was creating it", slot=settings.slot) from error
    _LOG.info("slot_created", slot=settings.slot, consistent_point=format_lsn(created.consistent_point))
    return created


def drop_slot_if_any(settings: SourceSettings, expected: ServerIdentity) -> None:
    """Drop the slot of a snapshot that no stream follows (blocking). Raises Source errors."""
    with contextlib.closing(connect_sql(settings)) as connection:
        check_same_server(connection, expected)
        if read_slot(connection, settings.slot) is not None:
            drop_slot(connection, settings.slot)
            _LOG.info(
                "slot_dropped",
                slot=settings.slot,
                reason="the slot's snapshot is complete, and no stream follows",
            )
