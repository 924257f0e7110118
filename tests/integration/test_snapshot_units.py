"""Tables copied in several units over several connections: every row once, whatever ends a connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import psycopg2
import pytest
from structlog.testing import capture_logs

from cdcd.errors import SnapshotStale, SourceSetup, SourceUnavailable
from cdcd.model import RowBatch
from cdcd.pgoutput.decode import decode
from cdcd.pgoutput.messages import Insert
from cdcd.session.copy_workers import CopyWorkers
from cdcd.snapshot.table import CopiedRows, SnapshotReader
from cdcd.snapshot.units import CopiedTable, CopyUnit
from cdcd.source.connection import connect_sql, fetch, translate
from cdcd.source.publication_catalog import published_tables
from cdcd.source.settings import SourceSettings
from cdcd.source.slot import create_slot
from tests.support.nightly import nightly
from tests.support.running import started_in_thread
from tests.support.source import plain, row_payloads, settings_for, source_database
from tests.support.stack import PostgresServers, run_script
from tests.support.waiting import eventually

LSN = 0x100
Row = tuple[str | None, ...]
ODD = "chr(97 + g % 26) || CASE g % 4 WHEN 0 THEN '''' WHEN 1 THEN '\\' WHEN 2 THEN 'ä' ELSE ' ' END || g"
KEYS = {
    "bigint": "g * 7 - 500",
    "text": ODD,
    "uuid": "md5(g::text)::uuid",
    "numeric(12,3)": "(g - 500)::numeric / 8",
    "float8": "(g - 500) / 3.0::float8",
    "timestamptz": "timestamptz '2024-03-31 00:30+00' + g * interval '7 minutes'",
    "char(12)": "g::text",
    "bytea": "decode(md5(g::text), 'hex')",
    # Without their schema its operators are those of text.
    "public.citext": "CASE g % 2 WHEN 0 THEN upper(md5(g::text)) ELSE md5(g::text) END",
}


def tables_of(settings: SourceSettings) -> dict[str, CopiedTable]:
    with contextlib.closing(connect_sql(settings)) as connection:
        return {
            one.name: CopiedTable(
                one.relid, one.schema, one.name, one.columns, one.row_filter, one.is_partitioned
            )
            for one in published_tables(connection, settings.publications)
        }


@contextlib.contextmanager
def snapshot_of(settings: SourceSettings) -> Iterator[partial[SnapshotReader]]:
    """Yield a function that makes readers in the snapshot of a new slot."""
    with create_slot(settings, export_snapshot=True) as slot:
        assert slot.snapshot_name is not None
        yield partial(SnapshotReader, lambda: connect_sql(settings), translate, slot.snapshot_name)


def rows_in(batches: list[RowBatch]) -> list[Row]:
    rows: list[Row] = []
    for payload in row_payloads(batches):
        message = decode(payload, in_stream=False, protocol_version=1)
        assert isinstance(message, Insert)
        rows.append(
            tuple(None if column.value is None else column.value.decode() for column in message.new.columns)
        )
    return rows


def copied(reader: SnapshotReader, units: list[CopyUnit]) -> list[Row]:
    return rows_in([batch for unit in units for batch, _ in reader.copy(unit, LSN)])


def selected(settings: SourceSettings, query: str) -> list[tuple[str, ...]]:
    with contextlib.closing(connect_sql(settings)) as connection:
        return fetch(connection, query)


@pytest.mark.parametrize("major", [nightly(12), nightly(13), nightly(14), 18])
def test_each_row_is_in_one_unit_whatever_the_type_of_the_key(pg_server: PostgresServers, major: int) -> None:
    """By blocks from PostgreSQL 14 on; before, by the bounds in the statistics of the primary key."""
    fill = "SELECT {key}, repeat('x', 500) FROM generate_series(1, 1000) g"
    statements = ["CREATE EXTENSION citext SCHEMA public"]
    for number, (key_type, key) in enumerate(KEYS.items()):
        statements += [
            f'CREATE TABLE public."t%{number}" ("K%" {key_type} PRIMARY KEY, pad text)',
            f'INSERT INTO public."t%{number}" {fill.format(key=key)}',
            f"DELETE FROM public.\"t%{number}\" WHERE ctid < '(20,0)'",
            f'ANALYZE public."t%{number}"',
            f"UPDATE public.\"t%{number}\" SET pad = '' WHERE ctid < '(30,0)'",
        ]
    with source_database(pg_server(major), *statements, "CREATE PUBLICATION pub FOR ALL TABLES") as settings:
        tables = tables_of(settings)
        with snapshot_of(settings) as new_reader, contextlib.closing(new_reader()) as reader:
            run_script(
                plain(settings),
                "INSERT INTO public.\"t%0\" SELECT -g - 500, '' FROM generate_series(1, 9999) g",
            )
            for name, table in tables.items():
                units = reader.units([table], unit_pages=10).units
                assert 5 <= len(units) <= 12
                rows = copied(reader, units)
                beginning = 'AND "K%" > -500' if name == "t%0" else ""
                expected = selected(
                    settings,
                    f"""SELECT format('%s', "K%"), pad FROM public."{name}" WHERE true {beginning}""",
                )
                assert sorted(rows, key=repr) == sorted(expected, key=repr)
                by_unit = [len(copied(reader, [unit])) for unit in units]
                assert sum(map(bool, by_unit)) > len(units) / 2, "the ranges divide the rows"


PARTITIONED = (
    "CREATE TABLE public.t (id int, pad text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
    "CREATE TABLE public.a PARTITION OF public.t FOR VALUES FROM (0) TO (1000)",
    "CREATE TABLE public.m PARTITION OF public.t FOR VALUES FROM (1000) TO (3000) PARTITION BY RANGE (id)",
    "CREATE TABLE public.b (pad text, gone int, id int NOT NULL)",
    "ALTER TABLE public.b DROP COLUMN gone",
    "ALTER TABLE public.m ATTACH PARTITION public.b FOR VALUES FROM (1000) TO (2000)",
    "CREATE TABLE public.c PARTITION OF public.m DEFAULT",
    "INSERT INTO public.t SELECT g, repeat('x', 500) FROM generate_series(0, 2499) g",
)
VIA_ROOT = "CREATE PUBLICATION pub FOR TABLE public.t {} WITH (publish_via_partition_root = true)"


@pytest.mark.parametrize("major", [nightly(14), 18])
def test_partitions_are_copied_as_rows_of_their_root(pg_server: PostgresServers, major: int) -> None:
    filtered = "" if major < 15 else "(pad, id) WHERE (id % 2 = 0 OR pad = 'odd')"
    with source_database(pg_server(major), *PARTITIONED, VIA_ROOT.format(filtered)) as settings:
        (table,) = tables_of(settings).values()
        with snapshot_of(settings) as new_reader, contextlib.closing(new_reader()) as reader:
            units = reader.units([table], unit_pages=20).units
            assert len({unit.leaf for unit in units}) == 3
            run_script(plain(settings), "DROP TABLE public.a")
            rows = copied(reader, units)
        condition = "true" if major < 15 else "id % 2 = 0"
        expected = selected(settings, f"SELECT id::text, pad FROM public.t WHERE {condition}")
        assert sorted(rows) == sorted(expected)
        assert len({unit.leaf for unit in units}) == 3


def test_partitions_that_the_role_may_not_read_are_read_through_their_root(
    pg_server: PostgresServers,
) -> None:
    server = pg_server(18)
    with source_database(server, *PARTITIONED, VIA_ROOT.format("")) as settings:
        role = settings.slot
        run_script(
            plain(settings), f"CREATE ROLE {role} LOGIN REPLICATION", f"GRANT SELECT ON public.t TO {role}"
        )
        try:
            theirs = settings_for(server, settings.slot)
            dsn = theirs.dsn.replace(f"//{server.superuser}", f"//{role}")
            reading = SourceSettings(dsn, theirs.read_password, theirs.slot, ("pub",), "cdcd test")
            (table,) = tables_of(settings).values()
            with create_slot(settings, export_snapshot=True) as slot:
                assert slot.snapshot_name is not None
                reader = SnapshotReader(lambda: connect_sql(reading), translate, slot.snapshot_name)
                with contextlib.closing(reader):
                    units = reader.units([table], unit_pages=20).units
                    assert {unit.leaf for unit in units} == {None}
                    assert len(copied(reader, units)) == 2500
        finally:
            run_script(plain(settings), f"DROP OWNED BY {role}", f"DROP ROLE {role}")


# --- several connections ---

LARGE = (
    "CREATE TABLE public.t (id int PRIMARY KEY, pad text)",
    "INSERT INTO public.t SELECT g, repeat('x', 500) FROM generate_series(1, 20000) g",
    "CREATE TABLE public.u (id int PRIMARY KEY)",
    "INSERT INTO public.u VALUES (1), (2)",
    "CREATE TABLE public.empty (id int PRIMARY KEY)",
    "CREATE PUBLICATION pub FOR ALL TABLES",
)


@contextlib.asynccontextmanager
async def workers_of(
    settings: SourceSettings, new_reader: partial[SnapshotReader], count: int
) -> AsyncIterator[CopyWorkers]:
    reader = new_reader()
    units = reader.units(list(tables_of(settings).values()), unit_pages=50)
    workers = CopyWorkers(reader, new_reader, units, LSN, count)
    try:
        yield workers
    finally:
        await workers.close()


@pytest.mark.parametrize("count", [1, 3])
def test_all_units_arrive_and_each_ends_once(pg_server: PostgresServers, count: int) -> None:
    async def run(settings: SourceSettings, new_reader: partial[SnapshotReader]) -> None:
        batches: dict[CopyUnit, list[RowBatch]] = {}
        ended: list[CopyUnit] = []
        async with workers_of(settings, new_reader, count) as workers:
            async for unit, rows in workers.pieces():
                assert unit not in ended
                if rows is None:
                    ended.append(unit)
                else:
                    batches.setdefault(unit, []).append(rows.batch)
            assert set(ended) == set(workers.units)
            assert len(ended) > 20
        found = sorted(
            row[0] or ""
            for unit, of_unit in batches.items()
            if unit.table.name == "t"
            for row in rows_in(of_unit)
        )
        assert found == sorted(str(number) for number in range(1, 20001))
        assert {unit.table.name for unit in batches} == {"t", "u"}

    with source_database(pg_server(18), *LARGE) as settings, snapshot_of(settings) as new_reader:
        before = started_in_thread()
        asyncio.run(run(settings, new_reader))
        assert_ended(settings, before)


def assert_ended(settings: SourceSettings, before: set[int]) -> None:
    """Assert that no thread and no connection of the workers is left: a thread ends after its last call returned."""
    eventually(lambda: started_in_thread() <= before, "the threads have ended")
    eventually(lambda: selected(settings, _SESSIONS) == [], "no connection is open")


_SESSIONS = """
    SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND application_name = 'cdcd test' AND backend_type = 'client backend'
"""


@pytest.mark.parametrize("why", ["the consumer ends", "a session is terminated"])
def test_whatever_ends_the_copy_ends_all_its_connections(pg_server: PostgresServers, why: str) -> None:
    async def run(settings: SourceSettings, new_reader: partial[SnapshotReader]) -> None:
        async with workers_of(settings, new_reader, 3) as workers:
            async for _ in workers.pieces():
                if why == "the consumer ends":
                    assert started_in_thread() - before
                    return
                with psycopg2.connect(plain(settings)) as connection, connection.cursor() as cursor:
                    cursor.execute(f"SELECT pg_terminate_backend(pid) FROM ({_SESSIONS} LIMIT 1) one")

    with source_database(pg_server(18), *LARGE) as settings, snapshot_of(settings) as new_reader:
        before = started_in_thread()
        if why == "the consumer ends":
            asyncio.run(run(settings, new_reader))
        else:
            with pytest.raises(SourceUnavailable):
                asyncio.run(run(settings, new_reader))
        assert_ended(settings, before)


def test_with_fewer_connections_than_workers_the_copy_goes_on(pg_server: PostgresServers) -> None:
    async def run(settings: SourceSettings, new_reader: partial[SnapshotReader]) -> int:
        async with workers_of(settings, new_reader, 4) as workers:
            return sum([rows.batch.count async for _, rows in workers.pieces() if rows is not None])

    with source_database(pg_server(18), *LARGE) as settings, snapshot_of(settings) as new_reader:
        limit = f"ALTER DATABASE {settings.slot} CONNECTION LIMIT"
        role = f"{settings.slot}_r"
        run_script(
            plain(settings), f"CREATE ROLE {role} LOGIN", f"GRANT pg_read_all_data TO {role}", f"{limit} 3"
        )
        try:
            dsn = settings.dsn.replace("//postgres", f"//{role}")
            theirs = SourceSettings(dsn, lambda: None, settings.slot, ("pub",), "cdcd test")
            reading = partial(SnapshotReader, lambda: connect_sql(theirs), *new_reader.args[1:])
            with capture_logs() as lines:
                assert asyncio.run(run(settings, reading)) == 20002
        finally:
            run_script(plain(settings), f"{limit} -1", f"DROP OWNED BY {role}", f"DROP ROLE {role}")
    missing = [line for line in lines if line["event"] == "snapshot_worker_missing"]
    assert missing
    assert all("CONNECTION LIMIT" in line["error"] for line in missing)


def test_a_table_that_cannot_be_copied_does_not_end_the_copy_of_the_others(
    pg_server: PostgresServers,
) -> None:
    async def run(settings: SourceSettings, new_reader: partial[SnapshotReader]) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {"t": [], "u": [], "empty": []}
        async with workers_of(settings, new_reader, 2) as workers:
            run_script(
                plain(settings),
                "ALTER TABLE public.t ALTER COLUMN id TYPE bigint",
                "ALTER TABLE public.empty ADD COLUMN n int",
            )
            async for unit, rows in workers.pieces():
                found[unit.table.name].append(rows)
        return found

    with source_database(pg_server(18), *LARGE) as settings, snapshot_of(settings) as new_reader:
        before = started_in_thread()
        found = asyncio.run(run(settings, new_reader))
        assert_ended(settings, before)
    failures = [rows for rows in found["t"] if rows is not None]
    assert {type(failure) for failure in failures} == {SnapshotStale}
    assert {failure.context["table"] for failure in failures} == {"public.t"}
    assert [rows.batch.count for rows in found["u"] if rows is not None] == [2]
    assert found["empty"] == [None]


def in_session(settings: SourceSettings, *statements: str) -> Any:
    """Return an open session that has run the statements in a transaction."""
    connection = psycopg2.connect(plain(settings))
    for statement in statements:
        connection.cursor().execute(statement)
    return contextlib.closing(connection)


@pytest.mark.parametrize("major", [nightly(14), 18])
@pytest.mark.parametrize("count", [1, 3])
def test_a_locked_table_is_copied_after_the_others(
    pg_server: PostgresServers, count: int, major: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of the queue; also its size is not known then. The wait for the last one has no limit."""
    monkeypatch.setattr("cdcd.session.copy_workers.LOCK_TIMEOUT_MS", 100)

    async def run(settings: SourceSettings, new_reader: partial[SnapshotReader]) -> list[str]:
        tables = list(tables_of(settings).values())  # this query waits for the lock from PostgreSQL 16 on
        ended: list[str] = []
        with in_session(settings, "LOCK TABLE public.empty, public.t") as locking:
            reader = new_reader()
            workers = CopyWorkers(reader, new_reader, reader.units(tables, unit_pages=50), LSN, count)
            async with contextlib.AsyncExitStack() as ends:
                ends.push_async_callback(workers.close)
                async for unit, rows in workers.pieces():
                    if rows is None:
                        ended.append(unit.table.name)
                        if unit.table.name == "u":
                            locking.rollback()
            pid = locking.info.backend_pid
        locked = [line for line in lines if line["event"] == "table_locked"]
        if count == 1:  # several connections may wait for both tables meanwhile
            assert {line["table"] for line in locked} == {"public.empty", "public.t"}
        holders = [line["held_by"] for line in locked]
        if count > 1:  # a connection may see its lock refused, and nobody who holds it any more
            holders = [one for one in holders if one is not None]
        assert all(f"pid {pid} " in one for one in holders)
        assert all("AccessExclusiveLock on public.empty, public.t" in one for one in holders)
        return ended

    with source_database(pg_server(major), *LARGE) as settings, snapshot_of(settings) as new_reader:
        with capture_logs() as lines:
            ended = asyncio.run(asyncio.wait_for(run(settings, new_reader), 60))
        assert ended[0] == "u"
        assert set(ended) == {"t", "u", "empty"}


def test_a_right_that_is_revoked_meanwhile_ends_the_copy_of_its_table(pg_server: PostgresServers) -> None:
    async def run(settings: SourceSettings, new_reader: partial[SnapshotReader]) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {"t": [], "u": [], "empty": []}
        async with workers_of(settings, new_reader, 1) as workers:
            run_script(plain(settings), f"REVOKE SELECT ON public.t FROM {settings.slot}_r")
            async for unit, rows in workers.pieces():
                found[unit.table.name].append(rows)
        return found

    with source_database(pg_server(18), *LARGE) as settings, snapshot_of(settings) as new_reader:
        role = f"{settings.slot}_r"
        grant = f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}"
        run_script(plain(settings), f"CREATE ROLE {role} LOGIN", grant)
        try:
            dsn = settings.dsn.replace("//postgres", f"//{role}")
            theirs = SourceSettings(dsn, lambda: None, settings.slot, ("pub",), "cdcd test")
            reading = partial(SnapshotReader, lambda: connect_sql(theirs), *new_reader.args[1:])
            found = asyncio.run(run(settings, reading))
        finally:
            run_script(plain(settings), f"DROP OWNED BY {role}", f"DROP ROLE {role}")
    (failure,) = {rows for rows in found["t"] if rows is not None}
    assert isinstance(failure, SourceSetup)
    assert failure.context["table"] == "public.t"
    assert "permission denied" in failure.message
    assert "grant" in failure.advice
    assert [rows.batch.count for rows in found["u"] if rows is not None] == [2]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_connection_that_cannot_be_replaced_does_not_hang_the_copy(
    pg_server: PostgresServers, count: int
) -> None:
    """After an error of a table its connection is replaced; the others copy what is left, the last one fails."""
    made: list[int] = []

    async def run(settings: SourceSettings, new_reader: partial[SnapshotReader]) -> set[str]:
        def limited() -> SnapshotReader:
            made.append(1)
            if len(made) > count:
                raise SourceUnavailable("too many connections")
            return new_reader()

        ended = set()
        async with workers_of(settings, limited, count) as workers:  # type: ignore[arg-type]
            run_script(plain(settings), "ALTER TABLE public.a ALTER COLUMN id TYPE bigint")
            async for unit, rows in workers.pieces():
                if not isinstance(rows, CopiedRows):
                    ended.add(f"{unit.table.name} {type(rows).__name__}")
        return ended

    first = ("CREATE TABLE public.a (id int PRIMARY KEY)", "INSERT INTO public.a VALUES (1)")
    with source_database(pg_server(18), *first, *LARGE) as settings, snapshot_of(settings) as new_reader:
        before = started_in_thread()

        async def running() -> set[str]:
            return await asyncio.wait_for(run(settings, new_reader), 60)

        if count == 1:
            with pytest.raises(SourceUnavailable, match="too many"):
                asyncio.run(running())
        else:
            assert asyncio.run(running()) == {"a SnapshotStale", "t NoneType", "u NoneType", "empty NoneType"}
        assert_ended(settings, before)


@pytest.mark.parametrize("major", [nightly(14), 18])
def test_a_table_is_not_copied_from_two_files(pg_server: PostgresServers, major: int) -> None:
    """VACUUM FULL keeps what the snapshot sees, and moves rows to other blocks, from one unit into another."""
    statements = (
        "CREATE TABLE public.t (id int PRIMARY KEY, pad text)",
        "INSERT INTO public.t SELECT g, repeat('x', 500) FROM generate_series(1, 1000) g",
        "DELETE FROM public.t WHERE id % 2 = 0",
        "CREATE PUBLICATION pub FOR ALL TABLES",
    )
    with source_database(pg_server(major), *statements) as settings:
        table = tables_of(settings)["t"]
        with snapshot_of(settings) as new_reader, contextlib.closing(new_reader()) as reader:
            first, *others = reader.units([table], unit_pages=10).units
            assert copied(reader, [first])
            reader.release()
            run_script(plain(settings), "VACUUM FULL public.t")
            with pytest.raises(SnapshotStale) as raised:
                copied(reader, others)
            assert raised.value.context["table"] == "public.t"
