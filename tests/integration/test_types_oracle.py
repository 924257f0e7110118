"""PostgreSQL judges the types: the output of its output and send functions, encoded, decoded by fastavro and cast
back, equals the original value. Text and binary of one value give the same Avro bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import fastavro
import psycopg2
import pytest

from cdcd.schema.codec import Codec, Special
from cdcd.schema.named_types import defined_once
from cdcd.schema.resolve import resolve
from cdcd.source.catalog import Catalog
from cdcd.source.settings import SourceSettings
from tests.support.stack import NEWEST_POSTGRES, PostgresServers, filled_database

SETTINGS = """
    set datestyle = 'ISO'; set intervalstyle = 'postgres'; set timezone = 'UTC';
    set extra_float_digits = 3; set bytea_output = 'hex'; set client_encoding = 'UTF8'; set lc_monetary = 'C'
"""
TYPES = """
    create type mood as enum ('sad', 'so so', 'it''s "ok"');
    create domain price as numeric(10, 2) check (value > -100);
    create domain net_price as price;
    create type address as (street text, number int);
    create type nothing as ();
    create type single as (a text);
    create extension hstore; create extension citext; create extension ltree; create extension cube;
    create extension isn; create extension seg; create extension intarray;
    create type "Per son" as ("first name" text, home address, others address[], born date, paid net_price,
                              tags hstore, matrix single[], gone int);
    alter type "Per son" drop attribute gone;
    create table log (id int, "at" timestamptz, payload bytea)
"""

EXACT: list[tuple[str, list[str]]] = [
    ("bool", ["t", "f"]),
    ("int2", ["-32768", "0", "32767"]),
    ("int4", ["-2147483648", "-1", "2147483647"]),
    ("int8", ["-9223372036854775808", "9223372036854775807"]),
    ("oid", ["0", "4294967295"]),
    ("xid", ["3", "4294967295"]),
    ("float4", ["0.1", "-0", "NaN", "Infinity", "-Infinity", "1e-45", "3.4028235e38", "1.17549435e-38",
                "16777217"]),
    ("float8", ["0.1", "-0", "NaN", "Infinity", "-Infinity", "5e-324", "1.7976931348623157e308", "1e22"]),
    ("numeric(10,2)", ["0", "-0.01", "99999999.99", "-99999999.99", "1.28", "-1.28"]),
    ("numeric(38,0)", ["9" * 38, "-" + "9" * 38]),
    ("numeric(38,38)", ["0." + "9" * 38, "-0." + "0" * 37 + "1"]),
    ("numeric(20,10)", ["0.0000000001", "1234567890.0001"]),
    ("numeric", ["0", "0.00", "1.10", "NaN", "Infinity", "1e100", "-1e-100", "1234567890.12345",
                 "10000", "0.00001"]),
    ("numeric(50,5)", ["123456789012345678901234567890.12345"]),
    ("numeric(5,-2)", ["12300"]),
    ("numeric(3,5)", ["0.00123"]),
    ("money", ["0", "-0.01", "1234567.89", "92233720368547758.07"]),
    ("text", ["", "naïve ☕ 😀", "NULL", "back\\slash", "line\nbreak"]),
    ("varchar(10)", ["abc"]),
    ("char(5)", ["ab"]),
    ("name", ["a_name"]),
    ('"char"', ["x", ""]),
    ("json", ['{"a":  1}', "null"]),
    ("jsonb", ['{"a": [1, null]}', '"☕"']),
    ("xml", ["<a/>"]),
    ("uuid", ["0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", "00000000-0000-0000-0000-000000000000"]),
    ("bytea", ["\\x", "\\x00ff7f5c"]),
    ("bit(1)", ["0", "1"]),
    ("bit(10)", ["0101010101"]),
    ("varbit", ["", "1", "010101010"]),
    ("date", ["1970-01-01", "2024-02-29", "0001-01-01", "0044-03-15 BC", "4714-11-24 BC",
              "10000-01-01", "5874897-12-31"]),
    ("time", ["00:00:00", "23:59:59.999999", "12:30:00.5"]),
    ("time(0)", ["12:30:00"]),
    ("timetz", ["00:00:00+00", "24:00:00-15:59:59", "12:00:00.5+05:30"]),
    ("timestamp", ["2024-01-01 00:00:00.123456", "1969-12-31 23:59:59.9", "0044-03-15 12:00 BC",
                   "4714-11-24 00:00:00 BC", "10000-01-01 00:00:00", "294247-01-10 04:00:54.775807"]),
    ("timestamptz", ["2024-01-01 05:30:00.1+05:30", "0044-03-15 12:00+00 BC",
                     "294247-01-10 04:00:54.775807+00", "1900-01-01 00:00:00+00"]),
    ("interval", ["0", "1 year 2 mons 3 days 04:05:06.789", "-1 year -2 mons +3 days -04:05:06", "1 mon",
                  "-0.000001 sec", "-178956970 years -8 mons", "-2147483648 days", "2562047788:00:54.775807",
                  "1 mon -1 days", "-1 mons +1 day", "1 day -00:00:01", "-1 day +00:00:01", "100:00:00",
                  "13 mons", "30 days"]),
    ("int4[]", ["{}", "{1,NULL,-3}"]),
    ("text[]", ["{}", '{"",NULL,"NULL",plain,"a b","{x,y}","q\\"uo\\\\te","☕"}']),
    ("numeric(10,2)[]", ["{1,NULL,-0.01}"]),
    ("float8[]", ["{0.1,NaN,Infinity}"]),
    ("bool[]", ["{t,f,NULL}"]),
    ("bytea[]", ['{"\\\\x00ff","\\\\x"}']),
    ("date[]", ["{2024-02-29,NULL}"]),
    ("timestamptz[]", ['{"2024-01-01 00:00:00+00"}']),
    ("interval[]", ['{"1 day 02:00:00",NULL}']),
    ("uuid[]", ["{0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0}"]),
    ("jsonb[]", ['{"{\\"a\\": 1}",NULL}']),
    ("box[]", ["{(1,1),(0,0);(2,2),(1,1)}"]),
    ("mood", ["sad", "so so", 'it\'s "ok"']),
    ("mood[]", ['{sad,"so so","it\'s \\"ok\\"",NULL}']),
    ("price", ["1.50", "-99"]),
    ("net_price", ["1.50"]),
    ("price[]", ["{1.50,NULL}"]),
    ("address", ['("Main ""St""",1)', "(,)", '("",-1)', '(" a",0)', '("a\nb\t(),\\\\\\"""",)', "(NULL,1)"]),
    ("address[]", ['{"(Main,1)",NULL,"(,)","(\\"\\",2)","(\\"q\\"\\"x\\",3)"}', "{}"]),
    ("nothing", ["()"]),
    ("single", ["()", '("")', "(x)"]),
    ('"Per son"', ['(Ann,"(Main,1)","{""(a b,2)"",NULL}",2000-01-01,1.50,"k=>v, n=>NULL",)', "(,,,,,,)",
                   '("☕ ""q""","(\\"\\",)",{},0044-03-15 BC,-0.01,,"{(),NULL,""(\\\\""\\\\"")""}")']),
    ("log", ['(1,"2024-01-01 00:00:00.5+00","\\\\x00ff")']),
    ("hstore", ["", "a=>1",
                'a=>NULL, b=>"NULL", c=>""', '"q\\"uo\\\\te"=>"=>, \\"b\\"=>NULL"', '"☕"=>"line\nbreak", ""=>x']),
    ("hstore[]", ['{"\\"a\\"=>\\"1\\"",NULL,""}']),
    ("citext", ["CiText ☕"]),
    ("ltree", ["Top.Science", ""]),
    ("lquery", ["Top.*{1,2}"]),
    ("ltxtquery", ["Europe & !Asia"]),
    ("cube", ["(0.30000000000000004, -1e-300),(1, 2)"]),
    ("isbn13", ["978-0-393-04002-9"]),
    ("seg", ["1.50 .. <2.0", "~1.0"]),
    ("query_int", ["1&(2|!3)"]),
    ("int4range", ["[1,5)", "empty"]),
    ("inet", ["10.0.0.0/8", "::1"]),
    ("macaddr", ["08:00:2b:01:02:03"]),
    ("point", ["(1.5,-2)"]),
    ("tsvector", ["'a':1 'b'"]),
    ("pg_lsn", ["16/B374D848"]),
    ("int2vector", ["1 2 3"]),
    ("regclass", ["pg_class"]),
]  # fmt: skip

SPECIAL = [
    ("numeric(10,2)", ["NaN"]),
    ("numeric(10,2)[]", ["{1,NaN}"]),
    ("date", ["infinity", "-infinity"]),
    ("date[]", ["{infinity}"]),
    ("time", ["24:00:00"]),
    ("timestamp", ["infinity", "-infinity", "294247-01-10 04:00:54.775808", "294276-12-31 23:59:59.999999"]),
    ("timestamptz", ["infinity", "294276-12-31 23:59:59.999999+00"]),
    ("interval", ["infinity", "-infinity"]),
    ("int4[]", ["{{1,2},{3,4}}", "[0:1]={1,2}"]),
    ("text[]", ['[2:3]={a,"b c"}', '{{a},{"}"}}']),
    ('"Per son"', ["(,,,infinity,,,)", '(,,"{{""(a,1)""}}",,,,)', '(,,,,,,"[0:0]={()}")']),
    ("log[]", ['{"(1,infinity,)"}']),
]


@dataclass(frozen=True)
class Value:
    """One value from the server: its output function's text, and its send function's bytes."""

    codec: Codec
    text: bytes
    binary: bytes


class Oracle:
    def __init__(self, dsn: str) -> None:
        self.catalog = Catalog(SourceSettings(dsn, lambda: None, "none", (), "cdcd test"))
        self.connection = psycopg2.connect(dsn)
        self.connection.autocommit = True
        self.cursor = self.connection.cursor()
        self.cursor.execute(SETTINGS)
        self.cursor.execute(TYPES)

    def one(self, statement: str, *values: Any) -> Any:
        self.cursor.execute(statement, values)
        row = self.cursor.fetchone()
        assert row is not None
        return row[0]

    def value(self, type_name: str, literal: str) -> Value:
        self.cursor.execute("drop table if exists t")
        self.cursor.execute(f"create table t (x {type_name})")
        self.cursor.execute("insert into t values (%s)", (literal,))
        self.cursor.execute(
            "select atttypid, atttypmod from pg_attribute where attrelid = 't'::regclass and attnum = 1"
        )
        ((oid, typmod),) = self.cursor.fetchall()
        codec = resolve(oid, typmod, self.catalog.types([oid])).codec
        sent = io.BytesIO()
        if codec.binary is not None:
            self.cursor.copy_expert("copy t to stdout (format binary)", sent)
        # 19 bytes of header, int16 fields, int32 length, the value, int16 -1
        return Value(codec, self.one("select format('%%s', x) from t").encode(), sent.getvalue()[25:-2])

    def text_of(self, expression: str, values: list[Any]) -> str:
        return str(self.one(f"select format('%%s', {expression})", *values))


@pytest.fixture(scope="module")
def oracle(pg_server: PostgresServers) -> Iterator[Oracle]:
    """Yield one oracle for all types: its database and extensions take longer than the values."""
    with filled_database(pg_server, NEWEST_POSTGRES, ()) as (server, database):
        oracle = Oracle(server.dsn(database))
        yield oracle
        oracle.connection.close()
        oracle.catalog.close()


def back(avro: Any, value: Any) -> tuple[str, list[Any]]:
    """Return an SQL expression that rebuilds the value from fastavro's (logical types as plain numbers)."""
    if value is None:
        return "null", []
    if isinstance(avro, dict) and avro["type"] == "array":
        items = [back(avro["items"][1], item) for item in value]
        return f"array[{', '.join(i[0] for i in items)}]", [v for i in items for v in i[1]]
    if isinstance(avro, dict) and avro["type"] == "record":
        parts = [(back(f["type"][1], value[f["name"]]), f["pg.type"]) for f in avro["fields"]]
        fields = ", ".join(f"({part[0]})::{quoted(name)}" for part, name in parts)
        return f"row({fields})::{quoted(avro['pg.type'])}", [v for part, _ in parts for v in part[1]]
    if isinstance(avro, dict) and avro["type"] == "map":
        return "hstore(%s::text[], %s::text[])", [list(value), list(value.values())]
    match avro.get("logicalType") if isinstance(avro, dict) else None:
        case "date":
            return "(date '1970-01-01' + %s::int)", [value]
        case "time-micros":
            return "(time '00:00' + %s * interval '1 microsecond')", [value]
        case "local-timestamp-micros":
            return "(timestamp '1970-01-01' + %s * interval '1 day' + %s * interval '1 microsecond')", [
                *divmod(value, DAY_US)
            ]
        case "timestamp-micros":
            return "(timestamptz '1970-01-01' + %s * interval '1 day' + %s * interval '1 microsecond')", [
                *divmod(value, DAY_US)
            ]
        case "decimal":
            unscaled = int.from_bytes(value, "big", signed=True)
            return "%s::numeric", [f"{unscaled}e-{avro['scale']}"]
    if isinstance(value, bytes):
        return "%s::bytea", [value]
    if isinstance(value, bool):
        return "%s::int::text", [value]  # both bool and bit(1) are read as 0 and 1
    return "%s::text", [value if isinstance(value, str) else repr(value)]


def quoted(type_name: str) -> str:
    """Return a type's name from the schema, quoted for SQL."""
    element, brackets = (type_name[:-2], "[]") if type_name.endswith("[]") else (type_name, "")
    return ".".join(f'"{part}"' for part in element.split(".")) + brackets


DAY_US = 86_400_000_000


def plain(avro: Any) -> Any:
    if isinstance(avro, dict):
        return {
            key: plain(value)
            for key, value in avro.items()
            if key not in ("logicalType", "precision", "scale")
        }
    return [plain(branch) for branch in avro] if isinstance(avro, list) else avro


def decode(encoded: bytes, avro: Any) -> Any:
    buffer = io.BytesIO(encoded)
    value = fastavro.schemaless_reader(buffer, fastavro.parse_schema(plain(defined_once(avro))), None)
    assert buffer.read() == b""
    return value


@pytest.mark.parametrize(("type_name", "literals"), EXACT, ids=[name for name, _ in EXACT])
def test_a_value_comes_back_to_postgresql_as_it_was(
    oracle: Oracle, type_name: str, literals: list[str]
) -> None:
    for literal in literals:
        value = oracle.value(type_name, literal)
        encoded = value.codec.text(value.text)
        if value.codec.binary is not None:
            assert value.codec.binary(value.binary) == encoded, literal
        expression, values = back(value.codec.avro, decode(encoded, value.codec.avro))
        assert oracle.text_of(f"({expression})::{type_name}", values).encode() == value.text, literal


@pytest.mark.parametrize(("type_name", "literals"), SPECIAL, ids=[name for name, _ in SPECIAL])
def test_a_special_value_keeps_the_servers_text(oracle: Oracle, type_name: str, literals: list[str]) -> None:
    for literal in literals:
        value = oracle.value(type_name, literal)
        with pytest.raises(Special) as caught:
            value.codec.text(value.text)
        assert caught.value.text == value.text
        assert value.codec.binary is not None
        with pytest.raises(Special) as caught:
            value.codec.binary(value.binary)
        assert caught.value.text == value.text


def test_intervals_are_what_intervalstyle_iso_8601_writes(oracle: Oracle) -> None:
    for literal in dict(EXACT)["interval"]:
        value = oracle.value("interval", literal)
        oracle.cursor.execute("set intervalstyle = 'iso_8601'")
        expected = oracle.one("select x::text from t")
        oracle.cursor.execute("set intervalstyle = 'postgres'")
        assert decode(value.codec.text(value.text), "string") == expected


def test_every_day_of_the_calendar_is_postgresqls(oracle: Oracle) -> None:
    oracle.cursor.execute("""
        select format('%s', d), d - date '1970-01-01'
        from (select date '4714-11-24 BC' + n as d from generate_series(0, 5000000, 3671) n
              union all select date '1999-12-25' + n from generate_series(0, 1500) n
              union all select date '0003-12-25 BC' + n from generate_series(0, 1500) n
              union all select date '5874890-12-25' + n from generate_series(0, 2500) n) s
    """)
    codec = resolve(1082, -1, {}).codec
    for text, days in oracle.cursor.fetchall():
        assert decode(codec.text(text.encode()), codec.avro) == days, text


def test_any_real_is_postgresqls(oracle: Oracle) -> None:
    oracle.cursor.execute("""
        select format('%s', x), float4send(x) from (select
            ((1 + random()) * 10 ^ ((random() * 82)::int - 44))::float4 as x from generate_series(1, 20000)
        ) s
    """)
    codec = resolve(700, -1, {}).codec
    for text, sent in oracle.cursor.fetchall():
        assert codec.text(text.encode()) == bytes(sent)[::-1], text
