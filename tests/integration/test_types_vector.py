"""pgvector's types on a server that has them: their mapping, and every value is preserved."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import psycopg2
import pytest

from cdcd.demo.stack.packages import WHEEL_POSTGRES
from cdcd.demo.stack.postgres import PostgresServer, programs_from_wheel
from cdcd.schema.codec import Codec
from cdcd.schema.resolve import EXTENSIONS, resolve
from cdcd.source.catalog import Catalog
from tests.support.nightly import nightly_except
from tests.support.source import settings_for

FLOATS = {"type": "array", "items": "float"}
ANSWERS = {"vector": FLOATS, "halfvec": FLOATS, "sparsevec": "string"}
HAND_PICKED = {
    "vector": [
        "[0]",
        "[-0,1.5]",
        "[3.4028235e+38,-3.4028235e+38]",
        "[1e-45,1.17549435e-38]",
        "[16777217,0.1]",
    ],
    "halfvec": ["[0]", "[-0,1.5]", "[65504,-65504]", "[6e-08,0.1]"],
}
RANDOM = {
    "vector": "(SELECT array_agg(((random() - 0.5) * 10 ^ ((random() * 60)::int - 30 + 0 * n * i))::real)"
    " FROM generate_series(1, 1 + n % 30) i)::vector",
    "halfvec": "(SELECT array_agg(((random() - 0.5) * 10 ^ ((random() * 9)::int - 5 + 0 * n * i))::real)"
    " FROM generate_series(1, 1 + n % 30) i)::halfvec",
}


@pytest.fixture(scope="module", params=nightly_except(WHEEL_POSTGRES, max(WHEEL_POSTGRES)))
def vector_server(stack_folder: Path, request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """Yield PostgreSQL with pgvector, from the wheel."""
    folder = stack_folder / f"postgres-vector-{request.param}"
    with PostgresServer(request.param, programs_from_wheel(request.param), folder) as server:
        server.execute("CREATE EXTENSION vector")
        yield server


def codecs(server: PostgresServer) -> dict[str, Codec]:
    oids = server.execute("SELECT oid::int8 FROM pg_type WHERE typtype <> 'p'")
    with contextlib.closing(Catalog(settings_for(server, "postgres"))) as catalog:
        types = catalog.types(oid for (oid,) in oids)
    of_vector = [entry for entry in types.values() if entry.extension == "vector" and not entry.element_oid]
    assert all((entry.extension, entry.name) in EXTENSIONS for entry in of_vector)
    return {entry.name: resolve(entry.oid, -1, types).codec for entry in of_vector}


def test_every_type_has_its_answer(vector_server: PostgresServer) -> None:
    assert {name: codec.avro for name, codec in codecs(vector_server).items()} == ANSWERS


@pytest.mark.parametrize("name", ["vector", "halfvec"])
def test_a_value_comes_back_to_postgresql_as_it_was(vector_server: PostgresServer, name: str) -> None:
    codec = codecs(vector_server)[name]
    with contextlib.closing(psycopg2.connect(vector_server.dsn())) as connection:
        cursor = connection.cursor()
        picked = ", ".join(f"('{value}'::{name})" for value in HAND_PICKED[name])
        cursor.execute(
            f"SELECT format('%s', x) FROM (VALUES {picked} UNION ALL"
            f" SELECT {RANDOM[name]} FROM generate_series(1, 300) n) s(x)"
        )
        texts = [text for (text,) in cursor.fetchall()]
        assert len(texts) > 300
        for text in texts:
            values = floats(codec.text(text.encode()))
            cursor.execute(f"SELECT %s::real[]::{name} IS NOT DISTINCT FROM %s::{name}", (values, text))
            assert cursor.fetchall() == [(True,)], text


def floats(encoded: bytes) -> Any:
    buffer = io.BytesIO(encoded)
    value = fastavro.schemaless_reader(buffer, FLOATS, None)
    assert buffer.read() == b""
    return value
