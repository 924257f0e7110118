"""Whether a copy ends: only of a table that is gone, or that no publication has while all of them exist."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from cdcd.errors import CdcdError, ServerInternal, SnapshotRefused, SourceUnavailable
from cdcd.snapshot.chunk_reader import ChunkReader
from cdcd.snapshot.chunk_values import NotPublished, ServerAndTimeline
from cdcd.source.connection import connect_sql, fetch, translate
from cdcd.source.identity import identify
from cdcd.source.settings import SourceSettings
from tests.support.nightly import nightly_except
from tests.support.source import source_database
from tests.support.stack import PostgresServers, run_script


@contextlib.contextmanager
def reader(settings: SourceSettings) -> Iterator[ChunkReader]:
    """Return a reader whose other connection finds no published table."""
    with contextlib.closing(connect_sql(settings)) as connection:
        server = identify(connection)
    of = ServerAndTimeline(server.system_identifier, server.timeline)
    one = ChunkReader(lambda: connect_sql(settings), translate, ("pub", "other"), lambda _relid: None, of)
    with contextlib.closing(one):
        yield one


def refusal(one: ChunkReader, relid: int) -> CdcdError:
    with pytest.raises(CdcdError) as raised:
        one.describe(relid, None, one.look(relid))
    return raised.value


@pytest.mark.parametrize("major", nightly_except((12, 18), 18))
def test_a_publication_that_is_missing_for_a_moment_ends_no_copy(
    pg_server: PostgresServers, major: int
) -> None:
    """ALTER PUBLICATION .. RENAME and back, or DROP and CREATE as two statements."""
    with source_database(
        pg_server(major),
        "CREATE TABLE public.t (id int PRIMARY KEY)",
        "CREATE PUBLICATION pub FOR TABLE public.t",
        "CREATE PUBLICATION other",
    ) as settings:
        with contextlib.closing(connect_sql(settings)) as connection:
            ((relid,),) = fetch(connection, "SELECT 'public.t'::regclass::oid", ())
        with reader(settings) as one:
            expected = (
                ("ALTER PUBLICATION pub RENAME TO away", SourceUnavailable),
                ("ALTER PUBLICATION away RENAME TO pub", SnapshotRefused),
                ("DROP PUBLICATION pub", SourceUnavailable),
                ("CREATE PUBLICATION pub", NotPublished),
                ("ALTER PUBLICATION other ADD TABLE public.t", SnapshotRefused),
                ("DROP PUBLICATION pub", SnapshotRefused),
                ("DROP TABLE public.t", NotPublished),
            )
            found = []
            for statement, _ in expected:
                run_script(settings.dsn, statement)
                found.append((statement, type(refusal(one, relid))))
            assert found == list(expected)


def test_a_table_that_is_dropped_while_published_tables_are_listed_is_no_answer(
    pg_server: PostgresServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server fails with an internal error: it is asked again, in another transaction."""
    with (
        source_database(pg_server(18), "CREATE PUBLICATION pub", "CREATE PUBLICATION other") as settings,
        reader(settings) as one,
    ):
        rows, failures = one._rows, [ServerInternal("could not open relation")]

        def failing(statement: Any, parameters: Any = None) -> Any:
            if "pg_publication_tables" in str(statement) and failures:
                with contextlib.suppress(CdcdError):
                    rows("SELECT 1 / 0")
                raise failures.pop()
            return rows(statement, parameters)

        monkeypatch.setattr(one, "_rows", failing)
        assert type(refusal(one, 1)) is NotPublished
        assert not failures
