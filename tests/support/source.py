"""Use the package `source` in tests: a database with tables, its settings, and streams to read until a condition.

In: a running server.  Out: `SourceSettings`, items.
Invariant: every wait is for a condition with a deadline, never for a fixed time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.model import Control, Item, Keepalive, RowBatch
from cdcd.source.settings import SourceSettings, StreamOptions, granted_options, wanted_options
from cdcd.source.slot import create_slot
from cdcd.source.stream import ReplicationStream, open_stream
from tests.support.stack import drop_database, new_database_name, run_script
from tests.support.waiting import eventually

DEADLINE_S = 90


@contextlib.contextmanager
def source_database(server: PostgresServer, *statements: str, **session: str) -> Iterator[SourceSettings]:
    """Create a database, run these statements, return its DSN; `session` has settings for the DSN's `options`."""
    name = new_database_name()
    server.create_database(name)
    try:
        run_script(server.dsn(name), *statements)
        yield settings_for(server, name, **session)
    finally:
        drop_database(server, name)


def settings_for(server: PostgresServer, dbname: str, **session: str) -> SourceSettings:
    """Return settings for this database; the slot has the database's name, the publication is `pub`."""
    options = quote(" ".join(f"-c {key}={value}" for key, value in session.items()), safe="")
    return SourceSettings(
        dsn=server.dsn(dbname) + (f"?options={options}" if options else ""),
        read_password=lambda: None,
        slot=dbname,
        publications=("pub",),
        application_name="cdcd test",
    )


def plain(settings: SourceSettings) -> str:
    """Return the DSN without its options, for an ordinary client of the same database."""
    return settings.dsn.partition("?")[0]


def choose_options(server_version_num: int, **wanted: Any) -> StreamOptions:
    """Return the stream options that this server version supports; raise SourceSetup for an unsupported one."""
    return granted_options(server_version_num, wanted_options(server_version_num, **wanted))


@contextlib.asynccontextmanager
async def streaming(
    settings: SourceSettings, start_lsn: int = 0, *, server_version_num: int = 140_000, **options: object
) -> AsyncIterator[ReplicationStream]:
    """Open a stream, and close it at the end."""
    chosen = choose_options(server_version_num, **options)
    stream = await open_stream(settings, chosen, start_lsn)
    try:
        yield stream
    finally:
        await stream.close()


def make_slot(settings: SourceSettings) -> int:
    """Create the slot; return its consistent point."""
    with create_slot(settings, export_snapshot=False) as slot:
        return slot.consistent_point


async def read_until(
    stream: ReplicationStream, condition: Callable[[list[Item]], bool], deadline_s: float = DEADLINE_S
) -> list[Item]:
    """Read until the condition holds for all items read; return them."""
    items: list[Item] = []
    async with asyncio.timeout(deadline_s):
        while not condition(items):
            items += await stream.read()
    return items


async def until(condition: Callable[[], object], what: str) -> None:
    """Run `eventually` without blocking the event loop."""
    await asyncio.to_thread(eventually, condition, what)


def commits(items: list[Item]) -> int:
    """Return the number of Commit messages."""
    return sum(isinstance(item, Control) and item.payload[:1] == b"C" for item in items)


def end_lsns(items: list[Item]) -> list[int]:
    """Return the end LSN of each Commit message, read from the bytes."""
    found = [item.payload for item in items if isinstance(item, Control) and item.payload[:1] == b"C"]
    return [int.from_bytes(payload[10:18], "big") for payload in found]


def row_payloads(items: list[Item]) -> list[bytes]:
    """Return the pgoutput message of each row."""
    payloads: list[bytes] = []
    for batch in items:
        if isinstance(batch, RowBatch):
            rest = batch.frames
            while rest:
                size = int.from_bytes(rest[:4], "big")
                payloads.append(rest[12 : 12 + size])
                rest = rest[12 + size :]
    return payloads


def texts(payload: bytes) -> list[str]:
    """Return the text values of an Insert message outside a stream segment."""
    assert payload[:1] == b"I"
    assert payload[5:6] == b"N"
    values, rest = [], payload[8:]
    while rest:
        assert rest[:1] == b"t"
        size = int.from_bytes(rest[1:5], "big")
        values.append(rest[5 : 5 + size].decode())
        rest = rest[5 + size :]
    return values


def shape(items: list[Item]) -> list[str]:
    """Return the items as type letters, a batch as the letters of its rows, without keepalives."""
    letters: list[str] = []
    for item in items:
        if isinstance(item, RowBatch):
            letters.append("".join(chr(payload[0]) for payload in row_payloads([item])))
        elif not isinstance(item, Keepalive):
            assert isinstance(item, Control)
            letters.append(chr(item.payload[0]))
    return letters


def with_slot(settings: SourceSettings, slot: str) -> SourceSettings:
    """Return the settings with another slot."""
    return replace(settings, slot=slot)
