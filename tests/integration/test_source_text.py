"""F53: the text of a value is the same for all defaults of server, database and role.

The judge is PostgreSQL: its output in a session with plain settings, and its comparison of two values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import Retry, SourceError
from cdcd.source.catalog import Catalog
from cdcd.source.connection import connect_sql
from cdcd.source.settings import SourceSettings
from tests.support.locales import NAME, make_locale
from tests.support.nightly import nightly
from tests.support.source import (
    commits,
    make_slot,
    read_until,
    row_payloads,
    settings_for,
    streaming,
    texts,
)
from tests.support.stack import PostgresServers, drop_database, new_database_name, run_script

HOSTILE = {
    "datestyle": "SQL, DMY",
    "intervalstyle": "sql_standard",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "timezone": "Asia/Kathmandu",
    "lc_monetary": NAME,
    "client_encoding": "LATIN1",
    "xmlbinary": "hex",
    "xmloption": "document",
    "array_nulls": "off",
    "quote_all_identifiers": "on",
    "search_path": "public",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "check_function_bodies": "on",
    "row_security": "off",
}
IN_A_FILE_ONLY_PLAIN = ("client_encoding",)  # the database inherits it from the server's setting

VALUES = {
    "date": ["0044-03-15 BC", "2024-12-31", "infinity"],
    "timestamp": ["2024-02-03 04:05:06.789"],
    "timestamptz": ["2024-02-03 04:05:06+00", "0044-03-15 12:00:00+00 BC"],
    "timetz": ["04:05:06+05:45"],
    "interval": ["1 day 02:03:04", "-1 years -2 mons +3 days -04:05:06.789"],
    "float4": ["1.1", "3.4028235e+38"],
    "float8": ["0.30000000000000004", "5e-324"],
    "point": ["(0.30000000000000004,-1e-300)"],
    "bytea": ["\\x00ff27"],
    "money": ["$1,234,567.89", "-$92,233,720,368,547,758.08", "$0.00"],
    "regclass": ["public.t", 'public."order"'],
    "regtype": ["integer", "public.mood"],
    "regproc": ["now"],
    "text": ["snö ☕"],
    "int4[]": ["{NULL,1}"],
    "text[]": ['{NULL,"NULL",a}'],
    "timestamptz[]": ['{"2024-02-03 04:05:06+00"}'],
    "daterange": ["[2024-12-30,2024-12-31)"],
    "public.pair": ['("2024-02-03 04:05:06+00","\\\\x00",public.t)'],
    "xml": ["<a>☕</a>"],
}
TABLES = (
    "CREATE TYPE public.mood AS ENUM ('a')",
    'CREATE TABLE public."order" (id int PRIMARY KEY)',
    "CREATE TABLE public.t (id int PRIMARY KEY)",
    "CREATE TYPE public.pair AS (at timestamptz, b bytea, c regclass)",
    "CREATE PUBLICATION pub FOR TABLE public.v",
)


def literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def rows() -> list[list[str]]:
    """Return as many rows as the longest list has values; shorter lists repeat."""
    longest = max(map(len, VALUES.values()))
    return [[values[n % len(values)] for values in VALUES.values()] for n in range(longest)]


@pytest.fixture
def hostile_server(
    pg_server: PostgresServers, stack_folder: Path, request: pytest.FixtureRequest
) -> Iterator[PostgresServer]:
    """Yield a server whose own settings are hostile, and that has a locale with another money format."""
    major = request.param
    folder = stack_folder / f"locales-{major}"
    locales = folder if folder.exists() else make_locale(folder)
    at_fault = {key: value for key, value in HOSTILE.items() if key not in IN_A_FILE_ONLY_PLAIN}
    with pg_server.fresh(major, settings=at_fault, environment={"LOCPATH": str(locales)}) as server:
        yield server


def hostile_source(server: PostgresServer) -> SourceSettings:
    """Yield a database and a role whose defaults are hostile too."""
    name = new_database_name()
    kind = "?options=" + quote("-c default_transaction_read_only=off -c client_encoding=UTF8")
    with contextlib.closing(psycopg2.connect(server.dsn() + kind)) as connection:
        connection.autocommit = True
        cursor = connection.cursor()
        cursor.execute(f"CREATE DATABASE {name}")
        cursor.execute(f"CREATE ROLE {name} LOGIN SUPERUSER")
        for owner in (f"DATABASE {name}", f"ROLE {name}"):
            for key, value in HOSTILE.items():
                shown = value if key == "search_path" else literal(value)
                cursor.execute(f"ALTER {owner} SET {key} = {shown}")
    return replace(settings_for(server, name), dsn=server.dsn(name, user=name))


FRIENDLY = (
    "-c datestyle=ISO -c intervalstyle=postgres -c timezone=UTC -c extra_float_digits=3 -c bytea_output=hex"
    " -c lc_monetary=C -c search_path=pg_catalog -c default_transaction_read_only=off -c array_nulls=on"
    " -c quote_all_identifiers=off -c xmloption=content"
)


@pytest.mark.parametrize("hostile_server", [nightly(14), nightly(16), 18], indirect=True)
async def test_defaults_of_server_database_and_role_do_not_change_a_values_text(
    hostile_server: PostgresServer,
) -> None:
    settings = hostile_source(hostile_server)
    friendly = f"{settings.dsn}?client_encoding=UTF8&options={quote(FRIENDLY)}"
    columns = ", ".join(f"c{n} {kind}" for n, kind in enumerate(VALUES))
    run_script(friendly, *TABLES[:-1], f"CREATE TABLE public.v ({columns})", TABLES[-1])
    async with streaming(settings, make_slot(settings)) as stream:
        inserts = [f"INSERT INTO public.v VALUES ({', '.join(map(literal, row))})" for row in rows()]
        run_script(friendly, *inserts)
        items = await read_until(stream, lambda items: commits(items) == len(inserts))
    assert [texts(payload) for payload in row_payloads(items)] == rows()
    # The reads of a snapshot and of the catalog use the other kind of connection.
    with contextlib.closing(connect_sql(settings)) as connection, connection.cursor() as cursor:
        asked = [f"c{n}::text" for n in range(len(VALUES))]
        cursor.execute(f"SELECT {', '.join(asked)} FROM public.v")
        assert [list(row) for row in cursor.fetchall()] == rows()
    with contextlib.closing(Catalog(settings)) as catalog:
        assert catalog.types([790])[790].fraction_digits == 3
        # The look-up leaves the session's settings unchanged.
        with contextlib.closing(connect_sql(settings)) as connection, connection.cursor() as cursor:
            cursor.execute("SHOW lc_monetary")
            assert cursor.fetchall() == [("C",)]


@pytest.mark.parametrize(
    ("encoding", "text"), [("LATIN1", "snö ÿ"), ("EUC_JP", "日本語 テスト"), ("WIN1251", "привет")]
)
@pytest.mark.parametrize("major", [nightly(14), 18])
async def test_a_database_of_another_encoding_is_sent_in_utf8(
    pg_server: PostgresServers, major: int, encoding: str, text: str
) -> None:
    with encoded_database(pg_server(major), encoding) as settings:
        table = f'"{text}"'
        utf8 = settings.dsn + "?client_encoding=UTF8"
        run_script(utf8, f"CREATE TABLE public.{table} ({table} text PRIMARY KEY, a text[])", PUBLICATION)
        async with streaming(settings, make_slot(settings)) as stream:
            run_script(utf8, f"INSERT INTO public.{table} VALUES ('{text}', ARRAY['{text}'])")
            items = await read_until(stream, lambda items: commits(items) == 1)
        assert texts(row_payloads(items)[0]) == [
            text,
            '{"' + text + '"}' if " " in text else "{" + text + "}",
        ]
        with contextlib.closing(connect_sql(settings)) as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT relname, (SELECT count(*) FROM public."
                + table
                + ") FROM pg_class WHERE relname = %s",
                (text,),
            )
            assert cursor.fetchall() == [(text, 1)]


PUBLICATION = "CREATE PUBLICATION pub FOR ALL TABLES"


@contextlib.contextmanager
def encoded_database(server: PostgresServer, encoding: str) -> Iterator[SourceSettings]:
    name = new_database_name()
    server.execute(
        f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    try:
        yield settings_for(server, name)
    finally:
        drop_database(server, name)


@pytest.mark.parametrize("major", [nightly(14), 18])
async def test_sql_ascii_is_sent_while_it_is_utf8_and_halts_where_it_is_not(
    pg_server: PostgresServers, major: int
) -> None:
    with encoded_database(pg_server(major), "SQL_ASCII") as settings:
        run_script(settings.dsn, "CREATE TABLE public.t (v text PRIMARY KEY)", PUBLICATION)
        async with streaming(settings, make_slot(settings)) as stream:
            run_script(settings.dsn + "?client_encoding=UTF8", "INSERT INTO public.t VALUES ('snö ☕')")
            items = await read_until(stream, lambda items: commits(items) == 1)
            assert texts(row_payloads(items)[0]) == ["snö ☕"]
            run_script(settings.dsn, "INSERT INTO public.t VALUES (E'sn\\xf6')")
            with pytest.raises(SourceError) as caught:
                await read_until(stream, lambda items: commits(items) == 1)
        assert caught.value.retry is Retry.OPERATOR
        assert caught.value.context["sqlstate"] == "22021"
        assert "SQL_ASCII" in caught.value.advice
        assert "xf6" not in str(caught.value)
