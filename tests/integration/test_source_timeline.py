"""The history of a promoted server's timeline, read through a walsender (F58)."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from cdcd.errors import SourceUnavailable
from cdcd.session.queries import timelines_of
from cdcd.source.connection import connect_replication, connect_sql
from cdcd.source.identity import identify
from cdcd.source.timeline import read_history
from tests.support.nightly import nightly
from tests.support.source import settings_for, source_database
from tests.support.stack import PostgresServers
from tests.support.standby import promote


@pytest.mark.parametrize("major", [nightly(14), 18])
def test_a_promoted_server_says_where_its_timeline_began(pg_server: PostgresServers, major: int) -> None:
    """Up to 14 the reply's type is bytea, later text; the server's own file is the judge."""
    with pg_server.fresh(major) as server:
        for timeline in (2, 3):
            server.stop()
            (server.data_folder / "standby.signal").touch()
            server.start()
            promote(server)
            with contextlib.closing(connect_replication(settings_for(server, "postgres"))) as connection:
                identified = identify(connection)
                assert identified.timeline == timeline
                history = read_history(connection, timeline)
                assert read_history(connection, 1) == {}
                assert read_history(connection, 9) == {}, "a missing history gives no position"
            ((text,),) = server.execute(f"SELECT pg_read_file('pg_wal/{timeline:08X}.history')")
            lines = [line.split("\t") for line in text.splitlines() if line]
            expected = server.execute(
                "SELECT tli, lsn::pg_lsn - '0/0' FROM unnest(%s::int[], %s::text[]) AS t (tli, lsn)",
                [int(line[0]) for line in lines],
                [line[1] for line in lines],
            )
            assert history == {tli: int(lsn) for tli, lsn in expected}
            assert list(history) == list(range(1, timeline))
            assert timelines_of(settings_for(server, "postgres"), identified).left == history


@pytest.mark.parametrize("major", [nightly(14), 18])
def test_the_history_is_not_taken_from_another_server_than_the_one_that_was_identified(
    pg_server: PostgresServers, major: int
) -> None:
    """F58, F59: a server without the file, such as the former primary, would give an empty history."""
    with source_database(pg_server(major)) as settings:
        with contextlib.closing(connect_sql(settings)) as connection:
            server = identify(connection)
        promoted = replace(server, timeline=2)
        with pytest.raises(SourceUnavailable, match="timeline was 2, is 1"):
            timelines_of(settings, promoted)
        assert timelines_of(settings, server).left == {}
