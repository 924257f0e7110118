"""The text of a topic's keys, from their bytes; the deletes made of it; the truncates of a topic.

The texts are PostgreSQL's output. The judges of deletes are those that the stream would have sent.
"""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from cdcd.avro.columns import encode_key
from cdcd.avro.encode import encode_batch, encode_gap, encode_truncate
from cdcd.avro.key_text import KeyTexts, deletes_of
from cdcd.avro.plan import RelationPlan
from cdcd.avro.transaction import TransactionContext
from cdcd.avro.truncates import is_truncate
from cdcd.errors import SnapshotRefused
from cdcd.model import Column, PgType, RowBatch, TransactionInfo
from cdcd.schema.policy import NO_RULES, Policies, Policy
from tests.support.plans import plan_of_columns

LSN = 0x1000
KINDS = {
    "i": (23, -1, "-7"),
    "note": (25, -1, None),
    "u": (2950, -1, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "d": (1700, (10 << 16 | 2) + 4, "-12.50"),
    "t": (1184, -1, "2026-01-01 00:00:00.5+00"),
    "b": (17, -1, "\\xdeadbeef"),
    "f": (16, -1, "t"),
    "w": (25, -1, "two wörds"),
}
BASE_TYPES = {
    oid: PgType(oid, "pg_catalog", name, "b")
    for oid, name in {
        16: "bool", 700: "float4", 701: "float8", 1186: "interval", 1560: "bit", 1700: "numeric"
    }.items()
} | {790: PgType(790, "pg_catalog", "money", "b", fraction_digits=2)}  # fmt: skip
FLAT = Policies(Policy(value="flat"))
TYPES = {
    "boolean": (16, -1, ("t", "f")),
    "smallint": (21, -1, ("-32768", "0", "32767")),
    "integer": (23, -1, ("-2147483648", "0", "2147483647")),
    "bigint": (20, -1, ("-9223372036854775808", "9223372036854775807")),
    "oid": (26, -1, ("0", "4294967295")),
    "text": (25, -1, ("", "a'b\\c", "ü€😀", "\t\n")),
    "varchar": (1043, -1, ("", "x")),
    "char": (1042, 7, ("ab ",)),
    "name": (19, -1, ("pg_class",)),
    "uuid": (2950, -1, ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",)),
    "bytea": (17, -1, ("\\x", "\\x00ff")),
    "numeric": (1700, -1, ("0", "1.00", "-1.0", "12345678901234567890.123456789", "NaN", "Infinity")),
    "numeric(10,2)": (1700, (10 << 16 | 2) + 4, ("0.00", "-0.05", "0.05", "12345678.90", "-99999999.99")),
    "numeric(5,0)": (1700, (5 << 16) + 4, ("0", "-99999", "7")),
    "date": (1082, -1, ("2024-02-29", "0001-01-01", "0044-03-15 BC", "1969-12-31", "12345-06-07")),
    "time": (1083, -1, ("00:00:00", "23:59:59.999999", "12:00:00.5")),
    "timetz": (1266, -1, ("12:00:00.5+01",)),
    "timestamp": (1114, -1, ("1999-12-31 23:59:59.999999", "0044-03-15 12:00:00 BC", "12345-06-07 00:00:00")),
    "timestamptz": (1184, -1, ("2026-01-01 00:00:00.5+00", "0044-03-15 12:00:00+00 BC")),
    "real": (700, -1, ("0", "-0", "1.5", "1e+20", "3.4028235e+38", "NaN", "-Infinity", "0.1")),
    "double precision": (701, -1, ("0", "-0", "0.1", "1e+300", "5e-324", "Infinity", "NaN", "1e+15")),
    "inet": (869, -1, ("10.0.0.1/8", "::1")),
    "macaddr": (829, -1, ("08:00:2b:01:02:03",)),
}


def plan_of(key: tuple[str, ...], policies: Policies, *, is_required: bool = True) -> RelationPlan:
    columns = tuple(Column(name, oid, typmod, name in key) for name, (oid, typmod, _) in KINDS.items())
    return plan_of_columns(columns, key, policies, types=BASE_TYPES, is_required=is_required)


def context() -> TransactionContext:
    info = TransactionInfo(0, 0x2000, 0, snapshot="incremental")
    return TransactionContext(info, timeline=1, name="shop", database="shop", now_us=1, version="1")


def deletes(key: tuple[str, ...], count: int) -> RowBatch:
    parts: list[bytes] = []
    for name, (_, _, text) in KINDS.items():
        if name in key and text is not None:
            parts.append(b"t" + struct.pack(">I", len(text.encode())) + text.encode())
        else:
            parts.append(b"n")
    payload = b"D" + struct.pack(">I", 7) + b"K" + struct.pack(">H", len(KINDS)) + b"".join(parts)
    return RowBatch((struct.pack(">IQ", len(payload), LSN) + payload) * count, count)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("is_required", [True, False])
def test_the_text_of_a_key_is_a_text_of_its_value(name: str, is_required: bool) -> None:
    """Of a floating-point number PostgreSQL writes another text of the same value."""
    oid, typmod, texts = TYPES[name]
    columns = (Column("v", 25, -1, is_key=False), Column("k", oid, typmod, is_key=True))
    plan = plan_of_columns(columns, ("k",), NO_RULES, types=BASE_TYPES, is_required=is_required)
    keys = KeyTexts(plan)
    for text in texts:
        key = encode_key(plan, [None, text.encode()], True, LSN)
        (found,) = keys.of(key)
        if oid in (700, 701):
            assert encode_key(plan, [None, found.encode()], True, LSN) == key
            assert repr(float(found)) == repr(float(text)) or oid == 700
        else:
            assert found == text


@pytest.mark.parametrize(
    ("oid", "typmod", "policy"),
    [
        (1186, -1, Policy()),
        (1186, -1, Policy(interval_as="fields")),
        (1186, -1, Policy(interval_as="microseconds")),
        (790, -1, Policy()),
        (1560, 1, Policy()),
        (1700, -1, Policy(numeric_as="double")),
    ],
    ids=["interval", "fields", "microseconds", "money", "bit(1)", "a numeric as double, which merges values"],
)
def test_a_type_whose_text_is_not_known_is_refused(oid: int, typmod: int, policy: Policy) -> None:
    plan = plan_of_columns(
        (Column("k", oid, typmod, is_key=True),), ("k",), Policies(policy), types=BASE_TYPES
    )
    with pytest.raises(SnapshotRefused, match="a type whose text"):
        KeyTexts(plan)


@pytest.mark.parametrize("key", [("i",), ("w", "i"), ("u", "d", "t", "b", "f", "i", "w")])
@pytest.mark.parametrize("policies", [NO_RULES, FLAT], ids=["envelope", "flat"])
@pytest.mark.parametrize("tombstones", [True, False])
def test_it_is_the_delete_that_the_stream_sends(
    key: tuple[str, ...], policies: Policies, tombstones: bool
) -> None:
    plan = replace(plan_of(key, policies), tombstones=tombstones, compiled=None)
    sent = deletes(key, 2)
    keys = [record.key for record in encode_batch(sent, {7: plan}, context()) if record.value is not None]
    assert len(keys) == 2
    texts = KeyTexts(plan)
    assert deletes_of(plan, [texts.of(one or b"") for one in keys], LSN) == sent


def test_a_key_with_a_null_has_no_row() -> None:
    plan = plan_of(("note", "i"), NO_RULES, is_required=False)
    (record, _) = encode_batch(deletes(("note", "i"), 1), {7: plan}, context())
    with pytest.raises(SnapshotRefused, match="cannot be derived"):
        KeyTexts(plan).of(record.key or b"")


def test_a_key_of_another_schema_or_with_other_bytes_is_refused() -> None:
    plan = plan_of(("w", "i"), NO_RULES)
    (key,) = {record.key for record in encode_batch(deletes(("w", "i"), 1), {7: plan}, context())}
    assert key is not None
    texts = KeyTexts(plan)
    for other in (key[:4] + b"\x63" + key[5:], key + b"\x00", key[:-1], b""):
        with pytest.raises(SnapshotRefused, match="another schema"):
            texts.of(other)
    not_minimal = key[:-1] + bytes((key[-1] | 0x80, 0))  # the same number, in more bytes
    with pytest.raises(SnapshotRefused, match="cannot be derived"):
        texts.of(not_minimal)


@pytest.mark.parametrize("policies", [NO_RULES, FLAT], ids=["envelope", "flat"])
def test_a_truncate_is_known_and_a_gap_is_none(policies: Policies) -> None:
    plan = plan_of(("i",), policies)
    changed = replace(plan, value_header=b"\0\0\0\0\x63")  # of an earlier version of the table
    truncate, *_ = encode_truncate(changed, lsn=LSN, cascade=True, restart_identity=False, tx=context())
    gap, *_ = encode_gap(plan, lsn=LSN, details={"reason": b"lost"}, tx=context())
    assert is_truncate(plan, truncate.value or b"") is True
    assert is_truncate(plan, gap.value or b"") is False
    row = encode_batch(deletes(("i",), 1), {7: plan}, context())[0].value
    for other in (b"", b"\0\0\0\0\x0c", (truncate.value or b"")[:-30], row or b""):
        assert is_truncate(plan, other) is None
