"""The sessions that load the source, as an incremental snapshot counts them before each chunk."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace

import psycopg2
import pytest

from cdcd.snapshot.chunk_reader import ChunkReader, ServerAndTimeline
from cdcd.snapshot.load_limits import Sessions
from cdcd.source.connection import connect_sql, translate
from cdcd.source.identity import identify
from cdcd.source.settings import SourceSettings
from tests.support.nightly import nightly
from tests.support.source import settings_for
from tests.support.stack import PostgresServers, run_script
from tests.support.waiting import eventually


@contextlib.contextmanager
def reader(settings: SourceSettings) -> Iterator[ChunkReader]:
    """Return a reader of an incremental snapshot."""
    with contextlib.closing(connect_sql(settings)) as connection:
        server = identify(connection)
        of = ServerAndTimeline(server.system_identifier, server.timeline)
    one = ChunkReader(lambda: connect_sql(settings), translate, ("pub",), lambda _relid: None, of)
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
