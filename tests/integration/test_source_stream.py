"""The stream on real servers: exact items, and a slot that advances only when cdcd confirms."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import (
    SourceUnavailable,
)
from cdcd.model import Control, Item, Keepalive, RowBatch
from cdcd.source.settings import SourceSettings
from tests.support.nightly import nightly, nightly_except
from tests.support.source import (
    commits,
    end_lsns,
    make_slot,
    plain,
    read_until,
    row_payloads,
    shape,
    source_database,
    streaming,
    texts,
    until,
)
from tests.support.stack import (
    SUPPORTED_POSTGRES_MAJORS,
    PostgresServers,
    confirmed_position,
    in_one_transaction,
    run_script,
    slot_is_active,
    wal_position,
)

TABLE = "CREATE TABLE public.t (id int PRIMARY KEY, v text)"
PUBLICATION = "CREATE PUBLICATION pub FOR TABLE public.t"


@pytest.mark.parametrize("major", nightly_except(SUPPORTED_POSTGRES_MAJORS, 18))
async def test_rows_come_as_runs_between_their_control_messages(
    pg_server: PostgresServers, major: int
) -> None:
    server = pg_server(major)
    with source_database(server, TABLE, PUBLICATION) as settings:
        start_lsn = make_slot(settings)
        async with streaming(settings, start_lsn, server_version_num=major * 10_000) as stream:
            in_one_transaction(
                plain(settings),
                "INSERT INTO public.t SELECT g, 'v' || g FROM generate_series(1, 3) g",
                "UPDATE public.t SET v = 'w' WHERE id = 2",
                "SELECT pg_logical_emit_message(true, 'p', 'c')",
                "DELETE FROM public.t WHERE id = 1",
                "TRUNCATE public.t",
            )
            items = await read_until(stream, lambda items: commits(items) == 1)
        assert shape(joined(items)) == ["B", "R", "IIIU", "M", "D", "T", "C"]
        rows = row_payloads(items)
        assert [texts(row) for row in rows[:3]] == [["1", "v1"], ["2", "v2"], ["3", "v3"]]
        assert all(item.xid is None for item in items if isinstance(item, RowBatch))


@pytest.mark.parametrize("major", nightly_except(SUPPORTED_POSTGRES_MAJORS, 18))
async def test_a_streamed_transaction_comes_in_runs_of_one_xid(
    pg_server: PostgresServers, major: int
) -> None:
    """F26: the stream bit is preserved across drains, each batch has the xid of its subtransaction."""
    with source_database(pg_server(major), TABLE, PUBLICATION, logical_decoding_work_mem="64kB") as settings:
        start_lsn = make_slot(settings)
        async with streaming(
            settings, start_lsn, server_version_num=major * 10_000, streaming="on"
        ) as stream:
            insert = "INSERT INTO public.t SELECT g, repeat('x', 50) FROM generate_series({}, {}) g"
            xid = in_one_transaction(
                plain(settings), insert.format(1, 5000), "SAVEPOINT a", insert.format(5001, 6000)
            )
            items: list[Item] = []
            async with asyncio.timeout(30):
                while not any(isinstance(item, Control) and item.payload[:1] == b"c" for item in items):
                    items += await stream.read(max_bytes=20_000)
        batches = [item for item in items if isinstance(item, RowBatch)]
        assert sum(batch.count for batch in batches) == 6_000
        by_xid = {batch.xid: 0 for batch in batches}
        for batch in batches:
            by_xid[batch.xid] += batch.count
            assert all(int.from_bytes(row[1:5], "big") == batch.xid for row in row_payloads([batch]))
        assert by_xid == {xid: 5_000, xid + 1: 1_000}


async def test_a_read_stops_near_its_limit_and_says_that_there_is_more(postgres: PostgresServer) -> None:
    with source_database(postgres, TABLE, PUBLICATION) as settings:
        start_lsn = make_slot(settings)
        run_script(
            plain(settings), "INSERT INTO public.t SELECT g, repeat('x', 100) FROM generate_series(1, 5000) g"
        )
        seen_more = False
        async with streaming(settings, start_lsn) as stream:
            items: list[Item] = []
            while commits(items) < 1:
                got = await stream.read(max_bytes=10_000)
                assert sum(len(item.frames) for item in got if isinstance(item, RowBatch)) < 11_000
                seen_more |= stream.more
                items += got
        assert seen_more
        ids = [int(texts(row)[0]) for row in row_payloads(items)]
        assert ids == list(range(1, 5001))


@pytest.mark.parametrize("major", [nightly(14), 18])
async def test_the_slot_does_not_move_by_keepalives_and_exactly_to_what_is_confirmed(
    pg_server: PostgresServers, major: int
) -> None:
    """F2, F71: with a short wal_sender_timeout, only `queue_flush_lsn` advances the slot, exactly to its position."""
    server = pg_server(major)
    with source_database(server, TABLE, PUBLICATION, wal_sender_timeout="3s") as settings:
        start_lsn = make_slot(settings)
        async with streaming(settings, start_lsn) as stream:
            run_script(plain(settings), "INSERT INTO public.t VALUES (1, 'C')")
            items = await read_until(stream, lambda items: commits(items) == 1)
            replies = set()

            async def read_on() -> None:
                while True:
                    items.extend(await stream.read())

            reading = asyncio.create_task(read_on())
            # Other WAL makes the walsender send keepalives beyond the unconfirmed transaction.
            while len(replies) < 5 or not any(
                isinstance(item, Keepalive) and item.wal_end_lsn > end_lsns(items)[0] for item in items
            ):
                server.execute("SELECT pg_logical_emit_message(false, 'other', 'wal')")
                replies.add(await asyncio.to_thread(last_reply, server, settings))
                assert confirmed_position(server, settings.slot) == start_lsn
            assert not reading.done()
            end_lsn = end_lsns(items)[0]
            stream.queue_flush_lsn(end_lsn)
            stream.send_status()
            await until(
                lambda: confirmed_position(server, settings.slot) == end_lsn, "the confirmed position"
            )
            stream.queue_flush_lsn(start_lsn)
            stream.send_status()
            assert stream.confirmed_lsn == end_lsn
            reading.cancel()
        assert confirmed_position(server, settings.slot) == end_lsn


async def test_what_was_received_and_not_confirmed_comes_again(postgres: PostgresServer) -> None:
    """F71: C received but not durable, a larger D that began before it arriving, keepalives."""
    with source_database(postgres, TABLE, PUBLICATION, wal_sender_timeout="3s") as settings:
        start_lsn = make_slot(settings)
        with contextlib.closing(psycopg2.connect(plain(settings))) as large:
            with large.cursor() as cursor:
                cursor.execute("INSERT INTO public.t VALUES (1000, 'D begins')")
            run_script(plain(settings), "INSERT INTO public.t VALUES (1, 'A')")
            async with streaming(settings, start_lsn) as stream:
                items = await read_until(stream, lambda items: commits(items) == 1)
                confirmed = end_lsns(items)[0]
                stream.queue_flush_lsn(confirmed)
                stream.send_status()
                run_script(plain(settings), "INSERT INTO public.t VALUES (2, 'C')")
                with large.cursor() as cursor:
                    cursor.execute(
                        "INSERT INTO public.t SELECT g, repeat('D', 500) FROM generate_series(1001, 61000) g"
                    )
                large.commit()
                await read_until(stream, lambda items: commits(items) >= 1 and len(row_payloads(items)) > 500)
                # The rest of D waits in the socket while status updates and the server's timer go on.
                replies = {last_reply(postgres, settings)}
                while len(replies) < 5:
                    replies.add(await asyncio.to_thread(last_reply, postgres, settings))
                postgres.execute(
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s",
                    settings.slot,
                )
        await until(lambda: not slot_is_active(postgres, settings.slot), "the slot is free")
        assert confirmed_position(postgres, settings.slot) == confirmed
        async with streaming(settings, confirmed) as stream:
            items = await read_until(stream, lambda items: commits(items) == 2)
        assert texts(row_payloads(items)[0]) == ["2", "C"]
        assert len(row_payloads(items)) == 1 + 60_001


async def test_status_updates_go_on_while_nobody_reads(postgres: PostgresServer) -> None:
    """F14, F15: a reader under back-pressure outlives wal_sender_timeout."""
    with source_database(postgres, TABLE, PUBLICATION, wal_sender_timeout="1500ms") as settings:
        start_lsn = make_slot(settings)
        async with streaming(settings, start_lsn) as stream:
            run_script(
                plain(settings),
                "INSERT INTO public.t SELECT g, repeat('x', 1000) FROM generate_series(1, 20000) g",
            )
            first = await asyncio.to_thread(last_reply, postgres, settings)
            await until(
                lambda: postgres.execute(
                    "SELECT reply_time > %s::timestamptz + interval '4 s' FROM pg_stat_replication"
                    " WHERE application_name = 'cdcd test'",
                    first,
                )[0][0],
                "replies over more than two time-outs",
            )
            items = await read_until(stream, lambda items: commits(items) == 1)
        assert len(row_payloads(items)) == 20_000


async def test_the_keepalive_of_a_filtered_stream_may_be_confirmed(postgres: PostgresServer) -> None:
    """F11: WAL of tables that are not published lets the slot advance."""
    with source_database(postgres, TABLE, PUBLICATION, "CREATE TABLE public.other (id int)") as settings:
        start_lsn = make_slot(settings)
        async with streaming(settings, start_lsn) as stream:
            run_script(plain(settings), "INSERT INTO public.other SELECT generate_series(1, 1000)")
            goal = wal_position(postgres)

            def beyond(items: list[Item]) -> bool:
                return any(isinstance(item, Keepalive) and item.wal_end_lsn >= goal for item in items)

            items = await read_until(stream, beyond)
            stream.queue_flush_lsn(max(item.wal_end_lsn for item in items if isinstance(item, Keepalive)))
            stream.send_status()
            await until(
                lambda: (confirmed_position(postgres, settings.slot) or 0) >= goal, "the slot advances"
            )


async def test_publication_names_may_hold_quotes_and_commas(postgres: PostgresServer) -> None:
    names = ("a,b", 'say "hi"', "it's", "Upper", "sp ace", "back\\slash")
    tables = [f"CREATE TABLE public.t{n} (id int PRIMARY KEY)" for n in range(len(names))]
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    created = [f"CREATE PUBLICATION {name} FOR TABLE public.t{n}" for n, name in enumerate(quoted)]
    with source_database(postgres, *tables, *created) as settings:
        settings = replace(settings, publications=names)
        async with streaming(settings, make_slot(settings)) as stream:
            inserts = [f"INSERT INTO public.t{n} VALUES ({n})" for n in range(len(names))]
            in_one_transaction(plain(settings), *inserts)
            items = await read_until(stream, lambda items: commits(items) == 1)
        assert [texts(row) for row in row_payloads(items)] == [[str(n)] for n in range(len(names))]


@pytest.mark.parametrize("major", nightly_except(SUPPORTED_POSTGRES_MAJORS, 18))
async def test_defaults_of_role_and_database_do_not_change_the_text_of_values(
    pg_server: PostgresServers, major: int
) -> None:
    """F53."""
    server = pg_server(major)
    table = (
        "CREATE TABLE public.t (id int PRIMARY KEY, d date, ts timestamptz, i interval, f float8, b bytea,"
        " c regclass, s text)"
    )
    hostile = {
        "datestyle": "'German, DMY'",
        "intervalstyle": "'iso_8601'",
        "timezone": "'Asia/Kathmandu'",
        "extra_float_digits": "-15",
        "bytea_output": "'escape'",
        "search_path": "'public'",
        "quote_all_identifiers": "on",
        "client_encoding": "'latin1'",
        "client_min_messages": "error",
        "statement_timeout": "'1ms'",
    }
    with source_database(server, table, PUBLICATION) as settings:
        changes = [f"ALTER DATABASE {settings.slot} SET {key} = {value}" for key, value in hostile.items()]
        run_script(plain(settings), *changes)
        async with streaming(settings, make_slot(settings)) as stream:
            run_script(
                plain(settings) + "?options=-c%20datestyle%3DISO%20-c%20statement_timeout%3D0",
                "INSERT INTO public.t VALUES (1, '2024-02-03', '2024-02-03 04:05:06+00', '1 day 02:03:04',"
                " 0.1::float8 + 0.2, '\\x00ff', 'public.t', 'sn\u00f6')",
            )
            items = await read_until(stream, lambda items: commits(items) == 1)
        assert texts(row_payloads(items)[0]) == [
            "1",
            "2024-02-03",
            "2024-02-03 04:05:06+00",
            "1 day 02:03:04",
            "0.30000000000000004",
            "\\x00ff",
            "public.t",
            "sn\u00f6",
        ]


async def test_cancelling_a_read_loses_nothing(postgres: PostgresServer) -> None:
    with source_database(postgres, TABLE, PUBLICATION) as settings:
        async with streaming(settings, make_slot(settings)) as stream:
            items: list[Item] = []
            for number in range(30):
                run_script(plain(settings), f"INSERT INTO public.t VALUES ({number}, 'x')")
                reading = asyncio.create_task(stream.read())
                await asyncio.sleep(0)
                reading.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    items += await reading
            items += await read_until(stream, lambda more: commits(items) + commits(more) == 30)
        assert [int(texts(row)[0]) for row in row_payloads(items)] == list(range(30))


async def test_close_wakes_a_reader(postgres: PostgresServer) -> None:
    with source_database(postgres, TABLE, PUBLICATION) as settings:
        async with streaming(settings, make_slot(settings)) as stream:
            reading = asyncio.create_task(read_until(stream, lambda _: False))
            await asyncio.sleep(0)
            await stream.close()
            with pytest.raises(SourceUnavailable, match="closed"):
                await reading
        assert not slot_is_active(postgres, settings.slot)


def joined(items: list[Item]) -> list[Item]:
    """Return the items without keepalives, with adjacent batches joined: two drains may split a batch.

    A server whose caches were reset by other sessions sends a Relation again: it is left out too.
    """
    whole: list[Item] = []
    reported: set[bytes] = set()
    for item in items:
        if isinstance(item, Control) and item.payload[:1] == b"R":
            if item.payload in reported:
                continue
            reported.add(item.payload)
        last = whole[-1] if whole else None
        if isinstance(item, RowBatch) and isinstance(last, RowBatch):
            whole[-1] = RowBatch(last.frames + item.frames, last.count + item.count, item.xid)
        elif not isinstance(item, Keepalive):
            whole.append(item)
    return whole


def last_reply(server: PostgresServer, settings: SourceSettings) -> object:
    """Return the time at which the server last received a status update from this slot's reader."""
    rows = server.execute(
        "SELECT r.reply_time FROM pg_stat_replication r JOIN pg_replication_slots s ON s.active_pid = r.pid"
        " WHERE s.slot_name = %s",
        settings.slot,
    )
    return rows[0][0] if rows else None
