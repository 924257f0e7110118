"""The effect of a column's policy on a row: special values, oversized values, TOASTed values that were not sent."""

from __future__ import annotations

import io
import re
import struct
from typing import Any

import fastavro
import pytest

from cdcd.avro.encode import encode_batch
from cdcd.avro.plan import compile_plan
from cdcd.avro.transaction import TransactionContext
from cdcd.errors import ValueUnencodable
from cdcd.model import Column, PgType, Relation, ReplicaIdentity, RowBatch, TransactionInfo
from cdcd.schema.policy import Policies, Policy, Rule
from cdcd.schema.relation_schema import relation_schemas

LSN = 0x1_6B374D848
SECRET = "infinity"
COLUMNS = {
    "id": 25,
    "day": 1082,
    "note": 25,
    "data": 17,
    "doc": 3802,
    "days": 1182,
    "tag": 2950,
    "notes": 1009,
}
TYPES = {
    1182: PgType(1182, "pg_catalog", "_date", "b", 1082),
    1082: PgType(1082, "pg_catalog", "date", "b"),
    1009: PgType(1009, "pg_catalog", "_text", "b", 25),
    25: PgType(25, "pg_catalog", "text", "b"),
}
UNCHANGED = object()


def relation(identity: ReplicaIdentity = ReplicaIdentity.DEFAULT) -> Relation:
    columns = tuple(Column(name, oid, -1, name == "id") for name, oid in COLUMNS.items())
    return Relation(7, "public", "t", identity, columns)


def tuple_data(values: dict[str, Any]) -> bytes:
    out = struct.pack(">H", len(COLUMNS))
    for name in COLUMNS:
        value = values.get(name)
        if value is UNCHANGED or value is None:
            out += b"u" if value is UNCHANGED else b"n"
        else:
            raw = value.encode(errors="surrogateescape")
            out += b"t" + struct.pack(">I", len(raw)) + raw
    return out


def written(policies: Policies, new: dict[str, Any], old: dict[str, Any] | None = None) -> Any:
    """Return the envelope of an insert, or of an update with the full old row, as fastavro reads it."""
    described = relation(ReplicaIdentity.DEFAULT if old is None else ReplicaIdentity.FULL)
    schemas = relation_schemas(described, TYPES, ("id",), "shop", policies)
    plan = compile_plan(
        described,
        schemas,
        topic="shop.public.t",
        partitions=1,
        key_schema_id=1,
        value_schema_id=2,
        tombstones=True,
    )
    before = b"" if old is None else b"O" + tuple_data(old)
    payload = (b"I" if old is None else b"U") + struct.pack(">I", 7) + before + b"N" + tuple_data(new)
    if UNCHANGED in new.values():
        payload = b"U" + payload[1:]
    batch = RowBatch(struct.pack(">IQ", len(payload), LSN) + payload, 1)
    context = TransactionContext(
        TransactionInfo(1, 2, 3), timeline=1, name="shop", database="d", now_us=4, version="5"
    )
    (record,) = encode_batch(batch, {7: plan}, context)
    assert record.value is not None
    buffer = io.BytesIO(record.value[5:])
    value = fastavro.schemaless_reader(buffer, fastavro.parse_schema(schemas.value), None)
    assert buffer.read() == b""
    return value


def every(**choices: Any) -> Policies:
    return Policies(Policy(**choices))


def test_separate_puts_the_servers_text_into_special() -> None:
    value = written(every(), {"id": "1", "day": "infinity", "days": "{infinity}"})
    assert (value["after"]["day"], value["after"]["days"]) == (None, None)
    assert value["source"]["special"] == {"after.day": "infinity", "after.days": "{infinity}"}


def test_halt_names_the_place_and_never_the_value() -> None:
    with pytest.raises(ValueUnencodable) as caught:
        written(every(special="halt"), {"id": "1", "day": SECRET})
    context = caught.value.context
    assert (context["table"], context["column"], context["type"], context["lsn"]) == (
        "public.t",
        "day",
        "date",
        LSN,
    )
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert written(every(special="halt"), {"id": "1", "day": "2024-01-01"})["after"]["day"] is not None


@pytest.mark.parametrize("text", ["{{\udcff}}", "[0:0]={a\udcc3}"])
def test_special_text_that_is_not_utf_8_halts_with_its_place(text: str) -> None:
    """A database in SQL_ASCII, or "char" before PostgreSQL 15, can have bytes that are not an Avro string."""
    with pytest.raises(ValueUnencodable, match="UTF-8") as caught:
        written(every(), {"id": "1", "notes": text})
    context = caught.value.context
    assert (context["table"], context["column"], context["type"], context["lsn"]) == (
        "public.t",
        "notes",
        "text[]",
        LSN,
    )
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert "xff" not in str(caught.value)


def test_string_makes_the_columns_of_such_types_the_servers_text() -> None:
    value = written(every(special="string"), {"id": "1", "day": "infinity", "days": "{{2024-01-01}}"})
    assert (value["after"]["day"], value["after"]["days"]) == ("infinity", "{{2024-01-01}}")
    assert value["source"]["special"] is None


def test_a_rule_is_for_its_columns_alone() -> None:
    rule = Rule(re.compile(r"public\.t"), re.compile("day"), {"special": "string"})
    value = written(Policies(rules=(rule,)), {"id": "1", "day": "infinity", "days": "{infinity}"})
    assert value["after"]["day"] == "infinity"
    assert value["source"]["special"] == {"after.days": "{infinity}"}


def test_a_value_that_is_too_long_halts_with_its_size() -> None:
    policies = every(max_value_bytes=10)
    assert written(policies, {"id": "1", "note": "x" * 10})["after"]["note"] == "x" * 10
    with pytest.raises(ValueUnencodable, match="11 bytes") as caught:
        written(policies, {"id": "1", "note": "x" * 11})
    assert "xx" not in str(caught.value)
    assert caught.value.context["column"] == "note"


def test_or_is_omitted_under_a_name_that_no_column_has() -> None:
    """Field names have no dot, so `after.note.omitted_bytes` is unambiguous. The size is that of the text."""
    policies = every(max_value_bytes=10, oversized="omit")
    row = {"id": "1", "note": "x" * 11, "data": "\\x" + "00" * 5, "doc": "{}"}
    value = written(policies, row, {"id": "1", "note": "ü" * 9, "day": "infinity"})
    assert value["after"] == {**dict.fromkeys(COLUMNS), "id": "1", "doc": "{}"}
    assert value["source"]["special"] == {
        "before.day": "infinity",
        "before.note.omitted_bytes": "18",
        "after.note.omitted_bytes": "11",
        "after.data.omitted_bytes": "12",
    }


@pytest.mark.parametrize("choice", ["halt", "omit"])
def test_a_key_is_never_left_out(choice: str) -> None:
    with pytest.raises(ValueUnencodable) as caught:
        written(every(max_value_bytes=3, oversized=choice), {"id": "long"})
    assert "omit" not in caught.value.advice


def test_the_placeholder_stands_in_string_and_bytes_columns() -> None:
    """F46: `unchanged` still lists the column."""
    unsent = dict.fromkeys(("note", "data", "doc", "days", "tag"), UNCHANGED)
    value = written(every(placeholder="__unchanged ☕"), {"id": "1", **unsent})
    assert value["after"] == {
        "id": "1",
        "day": None,
        "note": "__unchanged ☕",
        "data": "__unchanged ☕".encode(),
        "doc": "__unchanged ☕",
        "days": None,
        "tag": None,
        "notes": None,
    }
    assert value["source"]["unchanged"] == ["note", "data", "doc", "days", "tag"]


def test_without_a_placeholder_it_is_null() -> None:
    value = written(every(), {"id": "1", "note": UNCHANGED})
    assert value["after"]["note"] is None
    assert value["source"]["unchanged"] == ["note"]
