"""`cdcd verify` makes PostgreSQL's text of every type from the topics: no table of the oracle differs."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Collection
from pathlib import Path

import psycopg2
import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.verify.float_text import double_text, real_text
from cdcd.verify.hashes import as_bigint, hash64
from cdcd.verify.source import _CODECS
from tests.integration.test_types_through_the_topic import SOME
from tests.oracle.run import created_tables, database, insert
from tests.support.daemon import Daemon, await_confirmed
from tests.support.nightly import nightly
from tests.support.stack import PostgresServers
from tests.verify.running import verify

VALUES = 12
LOSSY = {"numeric_as": "double", "interval_as": "microseconds"}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("major", "types"), [(18, SOME), nightly(18, ()), nightly(14, ())])
def test_no_type_differs(
    pg_server: PostgresServers,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
    tmp_path: Path,
    major: int,
    types: Collection[str],
) -> None:
    server = pg_server(major)
    with database(server) as name:
        made = created_tables(server, name, VALUES, types, vectors=False)
        listed = ", ".join(table.name for table in made)
        server.execute(f"create publication cdcd_{name} for table {listed}", dbname=name)
        for table in made:
            insert(server, name, table, "id", "where id % 2 = 0")
        with Daemon(
            tmp_path / name,
            name,
            dsn=server.dsn(name),
            bootstrap=kafka.bootstrap,
            registry_url=registry.url,
            sink={"topics": {"partitions": 1}},
        ) as daemon:
            daemon.start()
            daemon.wait_state("streaming", deadline_s=300)
            for table in made:
                insert(server, name, table, "id", "where id % 2 = 1")
            await_confirmed(server, daemon, within_s=300)
            found = verify(daemon, within_s=400)
    names = {f"public.{table.name}": table.type_name for table in made}
    wrong = {
        names[title]: (one["state"], one["reason"], {c for row in one["rows"] for c in row["columns"]})
        for title, one in found.tables.items()
        if one["state"] != "equal" or one["not_compared"]
    }
    assert wrong == {}
    assert found.status == 0
    assert len(found.tables) == len(made)


def test_the_texts_of_numbers_and_the_hashes_are_the_server_s(
    postgres: PostgresServer, database: str
) -> None:
    draw = random.Random(7)
    doubles = [struct.unpack("<d", draw.randbytes(8))[0] for _ in range(20_000)]
    doubles += [float(f"{digits}e{power}") for power in range(-323, 309) for digits in (1, 2, 5, 9.5, 123)]
    doubles += [2.0**power for power in range(-1074, 1024)] + [2.0**53 + n for n in range(-9, 40)]
    reals = [struct.unpack("<f", draw.randbytes(4))[0] for _ in range(20_000)]
    reals += [2.0**power for power in range(-149, 128)] + [2.0**24 + n for n in range(-8, 40, 2)]
    texts = [draw.randbytes(draw.randrange(60)).hex() + "é€" for _ in range(2_000)] + [""]
    with contextlib.closing(psycopg2.connect(postgres.dsn(database))) as connection:
        cursor = connection.cursor()
        cursor.execute("set extra_float_digits = 3")
        for values, kind, text_of in ((doubles, "float8", double_text), (reals, "float4", real_text)):
            cursor.execute(
                f"select x::text from unnest(%s::{kind}[]) with ordinality u(x, n) order by n", (values,)
            )
            served = [text.encode() for (text,) in cursor]
            assert [(v, s, text_of(v)) for v, s in zip(values, served, strict=True) if text_of(v) != s] == []
        seeds = [as_bigint(draw.getrandbits(64)) for _ in texts]
        cursor.execute(
            'select hashtextextended(x collate "C", s) from unnest(%s::text[], %s::int8[])'
            " with ordinality u(x, s, n) order by n",
            (texts, seeds),
        )
        hashes = [as_bigint(hash64(t.encode(), s % (1 << 64))) for t, s in zip(texts, seeds, strict=True)]
        assert [found for (found,) in cursor] == hashes


def test_the_codes_of_characters_are_the_server_s(postgres: PostgresServer, database: str) -> None:
    """A character with two codes would have another hash than the server's."""
    encodings = {name: codec for name, codec in _CODECS.items() if codec != "utf-8"}
    codes = [bytes([code]) for code in range(1, 256)]
    with contextlib.closing(psycopg2.connect(postgres.dsn(database))) as connection:
        cursor = connection.cursor()
        cursor.execute(
            "create function pg_temp.converted(code bytea, encoding name) returns text language plpgsql as"
            " $$ begin return convert_from(code, encoding); exception when others then return null; end $$"
        )
        for encoding, codec in encodings.items():
            cursor.execute(
                "select pg_temp.converted(c, %s) from unnest(%s::bytea[]) with ordinality u(c, n) order by n",
                (encoding, codes),
            )
            served = {code: text for code, (text,) in zip(codes, cursor, strict=True) if text is not None}
            assert len(served) > 200
            assert {code: text.encode(codec) for code, text in served.items()} == {c: c for c in served}
