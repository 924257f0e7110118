"""Every option of START_REPLICATION on every major: a server refuses exactly the options that cdcd reports as
unsupported.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import select
from dataclasses import replace

import psycopg2
import pytest

from cdcd.errors import SlotActive, SourceError, SourceSetup
from cdcd.model import Control, RowBatch
from cdcd.source.connection import connect_sql
from cdcd.source.settings import SourceSettings, StreamOptions, shortfalls, wanted_options
from cdcd.source.slot import create_slot, read_slot
from cdcd.source.start import start
from cdcd.source.stream import open_stream
from tests.support.nightly import nightly, nightly_except
from tests.support.preflight import preflight
from tests.support.source import (
    choose_options,
    commits,
    make_slot,
    read_until,
    row_payloads,
    source_database,
    texts,
)
from tests.support.stack import POSTGRES_MAJORS, PostgresServers, run_script
from tests.support.wire import WalsenderTap

TABLE = "CREATE TABLE public.t (id int PRIMARY KEY)"
EVERY_WISH = [
    StreamOptions(version, streaming, binary, messages, origin)
    for version, streaming, binary, messages, origin in itertools.product(
        (1, 2, 3, 4), ("off", "on", "parallel"), (False, True), (False, True), ("any", "none")
    )
]


@pytest.mark.parametrize("major", nightly_except(POSTGRES_MAJORS, 18))
def test_a_server_refuses_exactly_the_options_reported_as_unsupported(
    pg_server: PostgresServers, major: int
) -> None:
    """The judge is the server: each combination is sent to it unchanged, also those that cdcd never sends."""
    with source_database(pg_server(major), TABLE, "CREATE PUBLICATION pub FOR TABLE public.t") as settings:
        make_slot(settings)
        taken = {options: _is_taken(settings, options) for options in EVERY_WISH}
        supported = {options: not shortfalls(major * 10_000, options) for options in EVERY_WISH}
    assert taken == supported
    assert sum(taken.values()) == {12: 1, 13: 1, 14: 12, 15: 20, 16: 64, 17: 64, 18: 64}[major]


def _is_taken(settings: SourceSettings, options: StreamOptions) -> bool:
    try:
        started = start(settings, options, 0)
    except SlotActive:  # the last attempt's walsender has not ended yet
        return _is_taken(settings, options)
    except SourceError:
        return False
    try:
        # the server reports an option unknown to the plugin only after the copy mode has begun
        while (message := started.copy.read_message()) == 0:
            select.select([started.copy.socket], [], [])
            assert started.copy.consume()
        return not isinstance(message, int)
    finally:
        started.copy.close()


@pytest.mark.parametrize("major", [nightly(14), 18])
async def test_publications_of_any_name_send_their_tables(pg_server: PostgresServers, major: int) -> None:
    names = ("a,b", 'c"d', "e'f", "Upper Case", "back\\slash", "pub")
    script = [f"CREATE TABLE public.t{at} (v text PRIMARY KEY)" for at in range(len(names))]
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    script += [f"CREATE PUBLICATION {name} FOR TABLE public.t{at}" for at, name in enumerate(quoted)]
    with source_database(pg_server(major), *script) as settings:
        settings = replace(settings, publications=names)
        make_slot(settings)
        insert = [f"INSERT INTO public.t{at} VALUES ('row {at}')" for at in range(len(names))]
        run_script(settings.dsn, *insert)
        stream = await open_stream(settings, choose_options(major * 10_000), 0)
        try:
            items = await read_until(stream, lambda items: commits(items) == len(names))
        finally:
            await stream.close()
    assert [texts(payload) for payload in row_payloads(items)] == [[f"row {at}"] for at in range(len(names))]


@pytest.mark.parametrize("major", [nightly(14), 18])
async def test_messages_and_binary_are_sent_as_requested(pg_server: PostgresServers, major: int) -> None:
    script = (TABLE, "CREATE PUBLICATION pub FOR TABLE public.t")
    with source_database(pg_server(major), *script) as settings:
        make_slot(settings)
        run_script(
            settings.dsn,
            "SELECT pg_logical_emit_message(false, 'p', 'c')",
            "INSERT INTO public.t VALUES (258)",
        )
        for binary, messages in itertools.product((False, True), (False, True)):
            options = choose_options(major * 10_000, binary=binary, messages=messages)
            stream = await open_stream(settings, options, 0)
            items = await read_until(stream, lambda items: commits(items) == 1)
            await stream.close()
            await _released(settings)
            (row,) = row_payloads(items)
            assert row.endswith(b"b\0\0\0\4\0\0\1\2" if binary else b"t\0\0\0\003258")
            kinds = [item.payload[:1] for item in items if isinstance(item, Control)]
            assert (b"M" in kinds) == messages


@pytest.mark.parametrize("major", [nightly(16), 18])
async def test_origin_none_leaves_out_what_replication_wrote(pg_server: PostgresServers, major: int) -> None:
    """F52."""
    script = (TABLE, "CREATE PUBLICATION pub FOR TABLE public.t")
    with source_database(pg_server(major), *script) as settings:
        make_slot(settings)
        origin = f"from_{settings.slot}"
        with contextlib.closing(psycopg2.connect(settings.dsn)) as writer:
            writer.autocommit = True
            cursor = writer.cursor()
            cursor.execute("SELECT pg_replication_origin_create(%s)", (origin,))
            cursor.execute("SELECT pg_replication_origin_session_setup(%s)", (origin,))
            cursor.execute("INSERT INTO public.t VALUES (1)")
            cursor.execute("SELECT pg_replication_origin_session_reset()")
            cursor.execute("INSERT INTO public.t VALUES (2)")
        ids = {}
        for wanted in ("any", "none"):
            stream = await open_stream(settings, choose_options(major * 10_000, origin=wanted), 0)
            items = await read_until(stream, _has_row_2)
            await stream.close()
            await _released(settings)
            ids[wanted] = [texts(payload) for payload in row_payloads(items)]
        run_script(settings.dsn, f"SELECT pg_replication_origin_drop('{origin}')")
    assert ids == {"any": [["1"], ["2"]], "none": [["2"]]}


def _has_row_2(items: list[object]) -> bool:
    return any(isinstance(item, RowBatch) and item.frames.endswith(b"t\0\0\0\x012") for item in items)


async def _released(settings: SourceSettings) -> None:
    """Wait until the walsender has released the slot."""
    with contextlib.closing(connect_sql(settings)) as connection:
        async with asyncio.timeout(30):
            while (state := read_slot(connection, settings.slot)) is None or state.active:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("major", [nightly(16), nightly(17), 18])
def test_a_failover_slot_is_made_from_17_on_and_refused_below(pg_server: PostgresServers, major: int) -> None:
    script = (TABLE, "CREATE PUBLICATION pub FOR TABLE public.t")
    with source_database(pg_server(major), *script) as settings:
        settings = replace(settings, failover=True)
        found = {one.subject: one for one in preflight(settings, wanted=wanted_options)}
        if major < 17:
            with pytest.raises(SourceSetup, match="needs PostgreSQL 17, the server is 16"):
                create_slot(settings, export_snapshot=False)
            assert found["source.slot.failover"].level == "fail"
            assert "PostgreSQL 17" in found["source.slot.failover"].message
            return
        assert found["synchronized_standby_slots"].level == "warn"
        assert "source.slot.failover" not in found
        make_slot(settings)
        with contextlib.closing(connect_sql(settings)) as connection:
            state = read_slot(connection, settings.slot)
            assert state is not None
            assert state.failover
        assert "source.slot.failover" not in {one.subject for one in preflight(settings)}
        plain = replace(settings, slot=f"{settings.slot}_plain")
        make_slot(replace(plain, failover=False))
        (reported,) = [one for one in preflight(plain) if one.subject == "source.slot.failover"]
        assert reported.level == "warn"
        assert f'ALTER_REPLICATION_SLOT "{plain.slot}" (FAILOVER true)' in reported.hint


@pytest.mark.nightly
@pytest.mark.parametrize("major", [nightly(13), 15, nightly(18)])
def test_check_says_what_a_server_cannot_do_and_which_version_can(
    pg_server: PostgresServers, major: int
) -> None:
    def wanted(server_version_num: int) -> StreamOptions:
        return wanted_options(server_version_num, streaming="parallel", origin="none")

    with source_database(pg_server(major), TABLE, "CREATE PUBLICATION pub FOR TABLE public.t") as settings:
        found = {one.subject: one for one in preflight(settings, wanted=wanted)}
    if major == 18:
        assert found["protocol"].message == "pgoutput version 4, streaming parallel, messages, origin none"
        return
    for option in ("source.protocol.streaming", "source.protocol.origin"):
        assert found[option].level == "fail"
        assert f"PostgreSQL 16, the server is {major}" in found[option].message
    assert ("source.protocol.messages" in found) == (major == 13)


async def test_messages_that_arrive_one_byte_at_a_time_are_the_same(pg_server: PostgresServers) -> None:
    server = pg_server(18)
    with source_database(server, TABLE, "CREATE PUBLICATION pub FOR TABLE public.t") as settings:
        make_slot(settings)
        run_script(settings.dsn, *(f"INSERT INTO public.t VALUES ({at})" for at in range(5)))
        with WalsenderTap(server.port, piece_bytes=1) as tap:
            slow = replace(settings, dsn=settings.dsn.replace(f":{server.port}/", f":{tap.port}/"))
            assert slow.dsn != settings.dsn
            read = []
            for way in (settings, slow):
                stream = await open_stream(way, choose_options(180_000), 0)
                items = await read_until(stream, lambda items: commits(items) == 5)
                await stream.close()
                await _released(settings)
                controls = [(item.lsn, item.payload) for item in items if isinstance(item, Control)]
                read.append((row_payloads(items), controls))
    assert read[0] == read[1]
