"""PostgreSQL judges the send formats: a send function's bytes, decoded, equal the output function's text.

Every base type of the catalog, alone and in arrays, composites and ranges; text and binary give one Avro form.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer, programs_from_wheel
from cdcd.model import PgType
from cdcd.schema.binary_format.table import OF_EXTENSIONS, text_of_binary
from cdcd.schema.codec import Encoder, Special
from cdcd.schema.resolve import resolve
from cdcd.source.catalog import Catalog
from cdcd.source.connection import connect_sql
from tests.support.nightly import nightly, nightly_except
from tests.support.source import settings_for
from tests.support.stack import PostgresServers, drop_database, new_database_name
from tests.support.values import (
    AS_TEXT,
    EXTENSIONS,
    RANDOM_LITERALS,
    VECTORS,
    WITHOUT_LITERALS,
    literals,
    random_literals,
)

MAJORS = (14, 18)


@dataclass(frozen=True)
class Column:
    """One column's rows: bytes of the send function and text of the output function."""

    oid: int
    typmod: int
    types: dict[int, PgType]
    rows: list[tuple[bytes, bytes]]


class Judge:
    """One database of one major, with the session settings of the daemon's own connections."""

    def __init__(self, server: Any, dbname: str) -> None:
        self.settings = settings_for(server, dbname)
        self.connection = connect_sql(self.settings)
        self.catalog = Catalog(self.settings)
        self.cursor = self.connection.cursor()
        self.major = self.connection.server_version // 10_000
        self.execute("set search_path = public, pg_catalog")

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        self.cursor.execute(statement, values or None)
        return self.cursor.fetchall() if self.cursor.description else []

    def keep(self, type_name: str, values: list[str]) -> None:
        """Create the table `kept` with these values."""
        self.execute("drop table if exists kept cascade")
        self.execute(f"create table kept (id serial, x {type_name})")
        # cast from text: a query's parameter would have a type before its cast
        self.execute(
            f"insert into kept (x) select v::{type_name} from unnest(%s::text[]) with ordinality u(v, o) order by o",
            values,
        )

    def column(self, expression: str = "x", where: str = "true") -> Column:
        """Return the bytes and the text of an expression over `kept`."""
        self.execute("drop table if exists judged")
        self.execute(f"create table judged as select id, {expression} as x from kept where {where}")
        ((oid, typmod),) = self.execute(
            "select atttypid, atttypmod from pg_attribute where attrelid = 'judged'::regclass and attname = 'x'"
        )
        sent = io.BytesIO()
        self.cursor.copy_expert("copy (select x from judged order by id) to stdout (format binary)", sent)
        written = [row[0].encode() for row in self.execute("select format('%s', x) from judged order by id")]
        rows = list(zip(cut_copy(sent.getvalue()), written, strict=True))
        return Column(oid, typmod, self.catalog.types([oid]), rows)


def cut_copy(data: bytes) -> Iterator[bytes]:
    """Return the values of a binary COPY of one column without nulls (protocol: 19 bytes of header, then rows)."""
    position = 19
    while True:
        (fields,) = struct.unpack_from(">h", data, position)
        if fields == -1:
            return
        (size,) = struct.unpack_from(">i", data, position + 2)
        assert (fields, size >= 0) == (1, True)
        yield data[position + 6 : position + 6 + size]
        position += 6 + size


@pytest.fixture(params=nightly_except(MAJORS, 18))
def judge(request: pytest.FixtureRequest, pg_server: PostgresServers) -> Iterator[Judge]:
    server = pg_server(request.param)
    name = new_database_name()
    server.create_database(name)
    judge = Judge(server, name)
    yield judge
    judge.catalog.close()
    judge.connection.close()
    drop_database(server, name)


def avro_of(encode: Encoder, raw: bytes) -> tuple[str, bytes]:
    try:
        return "encoded", encode(raw)
    except Special as special:
        return "special", special.text


def assert_one_form(column: Column, what: str) -> int:
    """Check that bytes and text give the same text and the same Avro."""
    text_of = text_of_binary(column.oid, column.types)
    assert text_of is not None, what
    codec = resolve(column.oid, column.typmod, column.types).codec
    assert codec.binary is not None, what
    for sent, written in column.rows:
        assert text_of(sent) == written, f"{what}: {sent.hex()}"
        assert avro_of(codec.binary, sent) == avro_of(codec.text, written), f"{what}: {sent.hex()}"
    return len(column.rows)


def assert_every_shape(judge: Judge, type_name: str, values: list[str]) -> int:
    """Check the values alone, in arrays of each shape, in composites, and in ranges if the type can be a range's."""
    judge.keep(type_name, values)
    seen = assert_one_form(judge.column(), type_name)
    for shape in (
        "array[x]", "array[x, null, x]", "array[[x, null], [null, x]]", "array[[[x]], [[x]]]",
        "array_fill(x, array[2, 1], array[-3, 5])", "array_fill(x, array[2], array[0])", f"'{{}}'::{type_name}[]",
        f"array[null]::{type_name}[]",
    ):  # fmt: skip
        seen += assert_one_form(judge.column(shape), f"{type_name}: {shape}")
    return seen + assert_in_others(judge, type_name)


def assert_in_others(judge: Judge, type_name: str) -> int:
    judge.execute(f"create type held as (a {type_name}, b {type_name}[], c int)")
    judge.execute("create type holder as (a held, b held[])")
    seen = assert_one_form(judge.column("row(x, array[x, null], null)::held"), f"composite of {type_name}")
    nested = "row(row(x, array[x], 1)::held, array[row(x, null, 2)::held, null])::holder"
    seen += assert_one_form(judge.column(nested), f"composite of composites of {type_name}")
    try:
        judge.execute(f"create type spanning as range (subtype = {type_name})")
    except psycopg2.Error:
        judge.execute("drop type holder, held cascade")
        return seen  # a type without an order has no ranges
    made = "spanning(x, x, '[]')"
    for shape in (
        made,
        "spanning(x, null)",
        "spanning(null, x)",
        f"array[{made}, null]",
        f"row({made}, {made})",
    ):
        if shape.startswith("row"):
            judge.execute("create type two as (a spanning, b spanning)")
            shape += "::two"
        seen += assert_one_form(judge.column(shape), f"{type_name}: {shape}")
    if judge.major >= 14:
        seen += assert_one_form(judge.column(f"multirange({made})"), f"multirange of {type_name}")
    judge.execute("drop type holder, held, two, spanning cascade")
    return seen


@pytest.mark.parametrize("random_ones", [5, nightly(RANDOM_LITERALS)])
def test_what_was_sent_reads_as_what_was_written(judge: Judge, random_ones: int) -> None:
    """`random_ones`: values of each type besides those chosen by hand."""
    seen = {}
    for type_name, values in literals(judge.major, random_ones):
        seen[type_name] = assert_every_shape(judge, type_name, values)
    print(f"PostgreSQL {judge.major}: " + ", ".join(f"{name} {count}" for name, count in seen.items()))
    assert all(seen.values())


def test_types_of_extensions_too(judge: Judge) -> None:
    seen = set()
    for extension, types in EXTENSIONS.items():
        judge.execute(f"create extension {extension}")
        for type_name, values in types.items():
            judge.keep(type_name, values)
            oid = judge.execute("select %s::regtype::oid", type_name)[0][0]
            found = judge.catalog.types([oid])
            if (extension, type_name) not in OF_EXTENSIONS:
                assert not found[oid].has_send, type_name
                assert text_of_binary(oid, found) is None
                continue
            seen.add((extension, type_name))
            assert_every_shape(judge, type_name, [*values, *random_literals(type_name)])
    assert seen == {known for known in OF_EXTENSIONS if known[0] in EXTENSIONS}


@pytest.mark.nightly
@pytest.mark.parametrize("major", [nightly(16), 18])
def test_pgvector_too(major: int, stack_folder: Path) -> None:
    """pgvector's programs are in the wheel that provides the demo's servers."""
    with PostgresServer(major, programs_from_wheel(major), stack_folder / f"vectors-{major}") as server:
        judge = Judge(server, "postgres")
        judge.execute("create extension vector")
        for type_name, values in VECTORS.items():
            assert_every_shape(judge, type_name, [*values, *random_literals(type_name)])
        judge.catalog.close()
        judge.connection.close()


def test_enums_and_domains_too(judge: Judge) -> None:
    judge.execute("""create type mood as enum ('sad', 'so so', 'it''s "ok"', 'null')""")
    assert_every_shape(judge, "mood", ["sad", "so so", 'it\'s "ok"', "null"])
    judge.execute("create domain price as numeric(10, 2); create domain net_price as price")
    assert_every_shape(judge, "net_price", ["1.50", "-99", "NaN"])
    judge.execute("create domain prices as numeric[]")
    judge.keep("prices", ["{1,NULL}", "{{1},{2}}", "[0:1]={1,2}", "{}"])
    assert_one_form(judge.column(), "domain over an array")


def test_a_composite_is_read_as_it_was_sent(judge: Judge) -> None:
    """F44: the catalog may have another shape by the time a row is read."""
    judge.execute("create type held as (a int, b text)")
    judge.keep("held", ['(1,"x y")', "(,)"])
    before = judge.column()
    judge.execute("alter type held add attribute c date")
    later = Catalog(judge.settings)
    text_of = text_of_binary(before.oid, later.types([before.oid]))
    later.close()
    assert text_of is not None
    assert [text_of(sent) for sent, _ in before.rows] == [b'(1,"x y")', b"(,)"]


def test_every_base_type_has_an_answer(judge: Judge) -> None:
    """Each type is read exactly, known to be sent as text, or no column stores its values."""
    names = {name.partition("(")[0].strip('"') for name, _ in literals(judge.major)}
    rows = judge.execute("""
        select oid, typname::text, typsend <> 0 from pg_type
        where typtype in ('b', 'r', 'm') and typnamespace = 'pg_catalog'::regnamespace
          and typoutput <> 'array_out'::regproc
    """)
    for oid, name, has_send in rows:
        is_read = text_of_binary(oid, judge.catalog.types([oid])) is not None
        if name in names:
            assert is_read, name
        elif name in AS_TEXT or not has_send:
            assert not is_read, name
        else:
            assert name in WITHOUT_LITERALS, name
    assert len(rows) >= 78


def test_every_array_of_the_catalog_is_read_when_its_element_is(judge: Judge) -> None:
    rows = judge.execute(
        "select oid, typelem from pg_type where typoutput = 'array_out'::regproc and typtype = 'b'"
    )
    for oid, element in rows:
        types = judge.catalog.types([oid])
        assert (text_of_binary(oid, types) is None) == (text_of_binary(element, types) is None), oid


@pytest.mark.parametrize("type_name", AS_TEXT)
def test_a_type_without_exact_reading_excludes_its_derived_types(judge: Judge, type_name: str) -> None:
    judge.keep(type_name, AS_TEXT[type_name])
    judge.execute(f"create type held as (a int, b {type_name})")
    for expression in ("x", "array[x]", "row(1, x)::held"):
        column = judge.column(expression)
        assert text_of_binary(column.oid, column.types) is None
        assert resolve(column.oid, column.typmod, column.types).codec.binary is None
