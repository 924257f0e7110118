"""Failures of a stream on real servers: each kind has its own error, and earlier messages are read first."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from dataclasses import replace

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import (
    PublicationMissing,
    SlotActive,
    SlotLost,
    SlotMissing,
    SlotUnusable,
    SourceUnavailable,
)
from cdcd.model import Keepalive
from cdcd.source.settings import SourceSettings
from tests.support.nightly import nightly_except
from tests.support.source import (
    commits,
    make_slot,
    plain,
    read_until,
    row_payloads,
    settings_for,
    source_database,
    streaming,
    until,
)
from tests.support.stack import (
    SUPPORTED_POSTGRES_MAJORS,
    PostgresServers,
    run_script,
    slot_is_active,
)

TABLE = "CREATE TABLE public.t (id int PRIMARY KEY, v text)"
PUBLICATION = "CREATE PUBLICATION pub FOR TABLE public.t"


@contextlib.contextmanager
def source_database_once(server: PostgresServer) -> object:
    """Yield a source database of a server that is stopped at the end."""
    server.create_database("once")
    run_script(server.dsn("once"), TABLE, PUBLICATION)
    yield settings_for(server, "once")


async def test_a_fast_shutdown_finishes_while_an_idle_stream_confirms_keepalives(
    pg_server: PostgresServers,
) -> None:
    """F13: the stream ends with SourceUnavailable, which is retried."""
    server = pg_server.fresh(18)
    with server, source_database_once(server) as settings:
        async with streaming(settings, make_slot(settings)) as stream:

            async def idle() -> None:
                while True:
                    for item in await stream.read():
                        if isinstance(item, Keepalive):
                            stream.queue_flush_lsn(item.wal_end_lsn)
                            stream.send_status()

            idling = asyncio.create_task(idle())
            async with asyncio.timeout(10):
                await asyncio.to_thread(server.stop, "fast", 30)
            with pytest.raises(SourceUnavailable):
                await idling


async def test_a_killed_server_is_unavailable(pg_server: PostgresServers) -> None:
    server = pg_server.fresh(18)
    with server, source_database_once(server) as settings:
        async with streaming(settings, make_slot(settings)) as stream:
            await stream.read()
            assert stream.send_status()
            server.kill()
            with pytest.raises(SourceUnavailable):
                await read_until(stream, lambda _: False)
            assert not stream.send_status()


@pytest.mark.nightly
async def test_a_lost_connection_is_closed_when_another_socket_has_its_number(
    pg_server: PostgresServers,
) -> None:
    """libpq closes its socket as soon as the connection is lost: the next accepted socket may get its number."""
    server = pg_server.fresh(18)
    with contextlib.ExitStack() as others, server, source_database_once(server) as settings:
        pairs: list[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = []
        async with streaming(settings, make_slot(settings)) as stream:
            await stream.read()
            server.kill()
            with pytest.raises(SourceUnavailable):
                await read_until(stream, lambda _: False)
            for _ in range(50):  # the lowest free number comes first, so one of these has it
                ends = map(others.enter_context, socket.socketpair())
                pairs.append([await asyncio.open_connection(sock=end) for end in ends])
        for (_, writer), (reader, far) in pairs:
            writer.write(b"still there")
            assert await asyncio.wait_for(reader.readexactly(11), 5) == b"still there"
            writer.close()
            far.close()


async def test_a_slot_that_another_walsender_uses_is_active(postgres: PostgresServer) -> None:
    """F18."""
    with source_database(postgres, TABLE, PUBLICATION) as settings:
        start_lsn = make_slot(settings)
        async with streaming(settings, start_lsn):
            with pytest.raises(SlotActive):
                async with streaming(settings, start_lsn):
                    pass
        async with streaming(settings, start_lsn):  # close() has released it
            assert slot_is_active(postgres, settings.slot)


@pytest.mark.parametrize("major", nightly_except(SUPPORTED_POSTGRES_MAJORS, 18))
async def test_slots_that_cannot_be_read(pg_server: PostgresServers, major: int) -> None:
    server = pg_server(major)
    with source_database(server, TABLE, PUBLICATION) as settings:
        with pytest.raises(SlotMissing):
            async with streaming(settings):
                pass
        server.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'test_decoding')",
            settings.slot,
            dbname=settings.slot,
        )
        with pytest.raises(SlotUnusable):
            async with streaming(settings) as stream:
                await stream.read()
        server.execute("SELECT pg_drop_replication_slot(%s)", settings.slot)
        server.execute("SELECT pg_create_physical_replication_slot(%s)", settings.slot)
        with pytest.raises(SlotUnusable):
            async with streaming(settings):
                pass
        server.execute("SELECT pg_drop_replication_slot(%s)", settings.slot)
        server.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", settings.slot)
        with pytest.raises(SlotUnusable):
            async with streaming(settings):
                pass
        server.execute("SELECT pg_drop_replication_slot(%s)", settings.slot)


@pytest.mark.parametrize("major", nightly_except(SUPPORTED_POSTGRES_MAJORS, 18))
async def test_an_invalidated_slot_is_lost(pg_server: PostgresServers, major: int) -> None:
    """F23."""
    server = pg_server.fresh(major, settings={"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB"})
    with server, source_database_once(server) as settings:
        start_lsn = make_slot(settings)
        for _ in range(4):
            server.execute("SELECT pg_logical_emit_message(false, 'x', 'x')")
            server.execute("SELECT pg_switch_wal()")
        server.execute("CHECKPOINT")
        with pytest.raises(SlotLost):
            async with streaming(settings, start_lsn):
                pass


@pytest.mark.parametrize("major", nightly_except(SUPPORTED_POSTGRES_MAJORS, 18))
async def test_a_publication_that_is_missing_while_decoding_halts(
    pg_server: PostgresServers, major: int
) -> None:
    """F39, F72: an error up to 17, from 18 on only a notice, and the changes are missing."""
    with source_database(pg_server(major), TABLE, PUBLICATION) as settings:
        start_lsn = make_slot(settings)
        settings = replace(settings, publications=("pub", "gone"))
        async with streaming(settings, start_lsn) as stream:
            run_script(plain(settings), "INSERT INTO public.t VALUES (1, 'x')")
            with pytest.raises(PublicationMissing):
                await read_until(stream, lambda items: commits(items) == 1)


async def test_a_terminated_walsender_is_unavailable_and_what_came_before_is_read_first(
    postgres: PostgresServer,
) -> None:
    """F19."""
    with source_database(postgres, TABLE, PUBLICATION) as settings:
        start_lsn = make_slot(settings)
        async with streaming(settings, start_lsn) as stream:
            run_script(plain(settings), "INSERT INTO public.t VALUES (1, 'x')")
            await until(lambda: sent_beyond(postgres, settings), "the row is sent")
            postgres.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s",
                settings.slot,
            )
            await until(lambda: not slot_is_active(postgres, settings.slot), "the walsender has ended")
            items = await read_until(stream, lambda items: commits(items) == 1)
            assert len(row_payloads(items)) == 1
            with pytest.raises(SourceUnavailable) as caught:
                await read_until(stream, lambda _: False)
            assert caught.value.context["sqlstate"] == "57P01"


async def test_a_frozen_walsender_is_noticed(postgres: PostgresServer) -> None:
    """F16: no byte arrives although a reply was requested."""
    with source_database(postgres, TABLE, PUBLICATION) as settings:
        settings = replace(settings, silence_timeout_s=1.0)
        start_lsn = make_slot(settings)
        async with streaming(settings, start_lsn) as stream:
            await stream.read()
            (row,) = postgres.execute(
                "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", settings.slot
            )
            os.kill(row[0], signal.SIGSTOP)
            try:
                with pytest.raises(SourceUnavailable, match="silent"):
                    await read_until(stream, lambda _: False)
            finally:
                os.kill(row[0], signal.SIGCONT)


async def test_an_idle_server_that_answers_is_not_silent(postgres: PostgresServer) -> None:
    with source_database(postgres, TABLE, PUBLICATION) as settings:
        settings = replace(settings, silence_timeout_s=0.4)
        async with streaming(settings, make_slot(settings)) as stream:
            answers = 0
            while answers < 6:  # a reply is requested at each half of the time-out
                items = await stream.read()
                answers += sum(isinstance(item, Keepalive) for item in items)


def sent_beyond(server: PostgresServer, settings: SourceSettings) -> bool:
    """Return whether the walsender has sent all WAL."""
    rows = server.execute(
        "SELECT r.sent_lsn >= pg_current_wal_lsn() FROM pg_stat_replication r"
        " JOIN pg_replication_slots s ON s.active_pid = r.pid WHERE s.slot_name = %s",
        settings.slot,
    )
    return bool(rows and rows[0][0])
