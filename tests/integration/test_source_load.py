"""The load of an incremental snapshot on the source: the sessions before each chunk, the pauses within one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace

import psycopg2
import pytest

from cdcd.model import Column, Relation, ReplicaIdentity
from cdcd.snapshot.chunk_reader import ChunkReader
from cdcd.snapshot.chunk_values import ChunkTable, Piece, ServerAndTimeline
from cdcd.snapshot.load_limits import Sessions
from cdcd.snapshot.table_copy import RangeChunk
from cdcd.snapshot.units import Blocks, CopiedTable
from cdcd.source.connection import connect_sql, translate
from cdcd.source.identity import identify
from cdcd.source.publication_catalog import published_tables
from cdcd.source.settings import SourceSettings
from tests.support.nightly import nightly
from tests.support.source import settings_for, source_database
from tests.support.stack import PostgresServers, run_script
from tests.support.waiting import eventually


@contextlib.contextmanager
def reader(settings: SourceSettings, table: ChunkTable | None = None) -> Iterator[ChunkReader]:
    """Return a reader of an incremental snapshot. `table`: the one that is published."""
    with contextlib.closing(connect_sql(settings)) as connection:
        server = identify(connection)
        of = ServerAndTimeline(server.system_identifier, server.timeline)
    one = ChunkReader(lambda: connect_sql(settings), translate, ("pub",), lambda _relid: table, of)
    with contextlib.closing(one):
        yield one


@pytest.mark.parametrize("major", [nightly(12), 18])
def test_active_sessions_count_and_those_that_may_be(pg_server: PostgresServers, major: int) -> None:
    server = pg_server(major)
    settings = settings_for(server, "postgres")
    role = f"counting{major}"
    run_script(settings.dsn, f"DROP ROLE IF EXISTS {role}", f"CREATE ROLE {role} LOGIN REPLICATION")
    try:
        as_role = replace(settings, dsn=f"{settings.dsn}?user={role}")
        with (
            reader(settings) as seeing,
            reader(as_role) as blind,
            contextlib.closing(connect_sql(settings)),  # cdcd's own, idle
            contextlib.closing(psycopg2.connect(settings.dsn)) as lock,
            contextlib.closing(psycopg2.connect(settings.dsn)) as busy,
        ):
            lock.cursor().execute("SELECT pg_advisory_lock(81)")
            waits = threading.Thread(target=lambda: busy.cursor().execute("SELECT pg_advisory_lock(81)"))
            waits.start()
            eventually(lambda: seeing.sessions() == Sessions(1, 0), "one session is active")
            active, hidden = blind.sessions()
            assert active == 0
            assert hidden >= 2, "of another role: the idle one and the active one"
            lock.cursor().execute("SELECT pg_advisory_unlock(81)")
            waits.join()
            eventually(lambda: seeing.sessions() == Sessions(0, 0), "none is active")
    finally:
        run_script(settings.dsn, f"DROP ROLE {role}")


@pytest.mark.parametrize("major", [nightly(14), 18])
@pytest.mark.parametrize("is_by_key", [True, False])
def test_the_reading_of_a_chunk_pauses_after_each_slice(
    pg_server: PostgresServers, major: int, is_by_key: bool
) -> None:
    """Otherwise the stream waits for the processors as long as the whole chunk is read."""
    pauses: list[int] = []

    def pause_s(used_s: float, size_bytes: int) -> float:
        assert used_s > 0
        pauses.append(size_bytes)
        return 0.0

    with source_database(
        pg_server(major),
        "CREATE TABLE public.t (id int PRIMARY KEY, note text)",
        "INSERT INTO public.t SELECT i, repeat('note ', 20) FROM generate_series(1, 10000) i",
        "CREATE PUBLICATION pub FOR TABLE public.t",
    ) as settings:
        with contextlib.closing(connect_sql(settings)) as connection:
            (found,) = published_tables(connection, ("pub",))
        columns = tuple(Column(name, 25, -1, False) for name in found.columns)
        relation = Relation(found.relid, "public", "t", ReplicaIdentity.DEFAULT, columns)
        table = CopiedTable(found.relid, found.schema, found.name, found.columns, None, False)
        with reader(settings, ChunkTable(table, relation, ("id",))) as one:
            described = one.describe(found.relid, None, one.look(found.relid), is_by_key)
            assert described is not None
            assert one.begin(described) is not None
            if is_by_key:
                read = one.read(described, RangeChunk(None), 20_000, 0, pause_s=pause_s)
            else:
                piece = Piece(Blocks(0, 0, 0, None), None, None)
                read = one.read_blocks(described, piece, 0, pause_s=pause_s)
    assert sum(batch.count for batch, _ in read.slices) == 10_000
    assert len(pauses) >= len(read.slices) > 10
    assert sum(pauses) == read.size_bytes
