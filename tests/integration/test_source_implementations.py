"""Both implementations of the drain read the same slot to the same items: over TCP, TLS and a Unix socket."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.model import Control, Item, Keepalive, RowBatch, TransactionBatch
from cdcd.source import drain as draining
from cdcd.source.drain import drain
from cdcd.source.libpq import PQconsumeInput, PQfreemem, PQgetCopyData
from cdcd.source.settings import SourceSettings
from cdcd.source.start import start
from cdcd.txn.transaction_batch import expand
from tests.support.certificates import authority, install
from tests.support.implementations import READING, implementations, loaded
from tests.support.nightly import nightly
from tests.support.source import (
    DEADLINE_S,
    choose_options,
    make_slot,
    plain,
    source_database,
    with_slot,
)
from tests.support.stack import NEWEST_POSTGRES, PostgresServers, in_one_transaction, run_script

TABLE = "CREATE TABLE public.t (id int PRIMARY KEY, v text)"
PUBLICATION = "CREATE PUBLICATION pub FOR TABLE public.t"
END = "all of it"


@pytest.fixture(scope="module")
def secured(pg_server: PostgresServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """Yield a server that accepts TLS connections."""
    certificates: Path = tmp_path_factory.mktemp("certificates") / "one"
    authority(certificates)
    settings = {"ssl_cert_file": "server.crt", "ssl_key_file": "server.key"}
    with pg_server.fresh(NEWEST_POSTGRES, settings=settings) as server:
        install(certificates, server.data_folder, "server.crt", "server.key")
        server.execute("ALTER SYSTEM SET ssl = on")
        server.execute("SELECT pg_reload_conf()")
        yield server


def reached(server: PostgresServer, settings: SourceSettings, way: str) -> SourceSettings:
    options = settings.dsn.partition("?")[2]
    address = f"{server.host}:{server.port}"
    if way == "unix":
        address, options = "", f"{options}&host={quote(str(server.data_folder), safe='')}&port={server.port}"
    ssl = "require" if way == "tls" else "disable"
    dsn = f"postgresql://{server.superuser}@{address}/{settings.slot}?{options}&sslmode={ssl}"
    return replace(settings, dsn=dsn)


def work(settings: SourceSettings) -> None:
    """Run hundreds of small transactions, one of thousands of rows, streamed ones, and statements without rows."""
    insert = "INSERT INTO public.t SELECT g, repeat('x', g % 300) FROM generate_series({}, {}) g"
    run_script(
        plain(settings), *[insert.format(number, number) for number in range(400)], insert.format(400, 900)
    )
    run_script(plain(settings), "ALTER TABLE public.t ADD w int", "UPDATE public.t SET w = id WHERE id < 50")
    in_one_transaction(
        plain(settings),
        insert.format(1_000, 6_000),
        "SAVEPOINT a",
        insert.format(6_001, 7_000),
        "ROLLBACK TO a",
    )
    in_one_transaction(plain(settings), insert.format(7_001, 12_000), "SAVEPOINT b", "DELETE FROM public.t")
    run_script(plain(settings), *[insert.format(number, number) for number in range(20_000, 20_100)])
    in_one_transaction(plain(settings), f"SELECT pg_logical_emit_message(true, 'p', '{END}')")


def items_of(
    server: PostgresServer, settings: SourceSettings, way: str, max_bytes: int, gathers: bool
) -> list[Item]:
    """Return all items of the slot up to the Commit after the last message."""
    options = choose_options(NEWEST_POSTGRES * 10_000, streaming="on", messages=True)
    started = start(settings, options, 0)
    try:
        asked = "SELECT ssl FROM pg_stat_ssl WHERE pid = %s"
        assert server.execute(asked, started.backend_pid) == [(way == "tls",)]
        assert started.is_tcp is (way != "unix")
        items: list[Item] = []
        give_up = time.monotonic() + DEADLINE_S
        while not is_all(items):
            assert time.monotonic() < give_up
            drained = drain(started.copy, max_bytes, gathers)
            items += [item for item in drained.items if not isinstance(item, Keepalive)]
            if not drained.messages:
                select.select([started.copy.socket], [], [], 1)
        return items
    finally:
        started.copy.close()


def is_all(items: list[Item]) -> bool:
    last = items[-2:]
    return len(last) == 2 and isinstance(last[0], Control) and last[0].payload.endswith(END.encode())


def messages(items: list[Item]) -> list[tuple[int | None, bytes]]:
    """Return each message, a row with its batch's xid and LSN: the ends of batches depend on the socket."""
    found: list[tuple[int | None, bytes]] = []
    for item in items:
        for one in expand(item) if isinstance(item, TransactionBatch) else [item]:
            if isinstance(one, RowBatch):
                at = 0
                while at < len(one.frames):
                    end = at + 12 + int.from_bytes(one.frames[at : at + 4], "big")
                    found.append((one.xid, one.frames[at + 4 : end]))
                    at = end
            elif isinstance(one, Control):
                found.append((one.lsn, one.payload))
    return found


@pytest.mark.parametrize("way", [nightly("tcp"), "tls", nightly("unix")])
def test_one_slot_gives_the_same_items_to_both(
    secured: PostgresServer, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with source_database(secured, TABLE, PUBLICATION, logical_decoding_work_mem="64kB") as settings:
        make_slot(settings)
        work(settings)
        expected: list[tuple[int | None, bytes]] = []
        for number, name in enumerate(implementations(*READING)):
            reading = loaded(name)
            monkeypatch.setattr(draining, "reading", reading)
            monkeypatch.setattr(draining, "LIBPQ", reading.Libpq(PQgetCopyData, PQfreemem, PQconsumeInput))
            for max_bytes, gathers in ((262_144, False), (10_000, True), (262_144, True)):
                copied = f"{settings.slot}_{number}_{max_bytes}_{gathers}".lower()
                secured.execute(
                    "SELECT pg_copy_logical_replication_slot(%s, %s)",
                    settings.slot,
                    copied,
                    dbname=settings.slot,
                )
                there = with_slot(reached(secured, settings, way), copied)
                items = items_of(secured, there, way, max_bytes, gathers)
                assert any(isinstance(item, TransactionBatch) for item in items) is gathers
                found = messages(items)
                expected = expected or found
                assert found == expected
        assert sum(payload[8:9] in (b"I", b"U", b"D") for _, payload in expected) > 12_000
        assert {b"S", b"A", b"c", b"R", b"M"} <= {payload[:1] for _, payload in expected}
