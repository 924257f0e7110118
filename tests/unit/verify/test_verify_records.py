"""Records of topics become entries: encoded by fastavro with cdcd's own schemas, read without servers."""

from __future__ import annotations

import io
import json
import struct
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from cdcd.model import Column, PgType, Relation, ReplicaIdentity
from cdcd.schema.relation_schema import RelationSchemas, relation_schemas
from cdcd.verify.columns import compared_column
from cdcd.verify.fold import hashes_of
from cdcd.verify.hashes import MISSING, UNCHANGED, column_constant, hash64, key_id
from cdcd.verify.records import (
    COPIED,
    DELETED,
    HEAD_BYTES,
    KEY_BYTES,
    ROW,
    UNKNOWN,
    UPDATED,
    ComparedTable,
    Place,
    Records,
    commit_of,
    kind_of,
    place_of,
    share_of,
    windows_of,
)

TYPES = {
    23: PgType(23, "pg_catalog", "int4", "b"),
    25: PgType(25, "pg_catalog", "text", "b"),
    20: PgType(20, "pg_catalog", "int8", "b"),
    1042: PgType(1042, "pg_catalog", "bpchar", "b"),
    1043: PgType(1043, "pg_catalog", "varchar", "b"),
    1700: PgType(1700, "pg_catalog", "numeric", "b"),
}
COLUMNS = (("id", 23, -1), ("note", 25, -1), ("price", 1700, (9 << 16 | 2) + 4))
HERE = Place(0, 1, 7)
RELID = 500


def schemas(
    columns: Any = COLUMNS, attnums: tuple[int, ...] | None = (1, 2, 3), relid: int = RELID
) -> RelationSchemas:
    described = tuple(Column(name, oid, typmod, is_key=name == "id") for name, oid, typmod in columns)
    relation = Relation(relid, "public", "t", ReplicaIdentity.DEFAULT, described)
    return relation_schemas(relation, TYPES, ("id",), "shop", attnums=attnums)


def table(columns: Any = COLUMNS, **over: Any) -> ComparedTable:
    compared = tuple(
        compared_column(name, number, oid, typmod, TYPES)
        for number, (name, oid, typmod) in enumerate(columns, 1)
    )
    return ComparedTable(RELID, "public", "t", compared, (0,), TYPES, **over)


class Topic:
    """A topic's schemas by id, and the records that a test writes."""

    def __init__(self, written: RelationSchemas, compared: ComparedTable | None = None) -> None:
        assert written.key is not None
        self._schemas: dict[int, Any] = {1: written.key, 2: written.value}
        self.records = Records(compared or table(), self._schemas.__getitem__)

    def framed(self, number: int, value: Any) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(
            out, fastavro.parse_schema(json.loads(json.dumps(self._schemas[number]))), value
        )
        return struct.pack(">bI", 0, number) + out.getvalue()

    def entry(self, op: str, row: dict[str, Any] | None, key: Any = 1, **source: Any) -> bytes | None:
        block = {
            "version": "1", "connector": "postgresql", "name": "shop", "ts_ms": 1, "snapshot": "false", "db": "d",
            "schema": "public", "table": "t", "txId": 90, "timeline": 1, "commit_lsn": 100, "tx_seq": 1,
            "unchanged": [], **source,
        }  # fmt: skip
        value = {"before": None, "after": row, "source": block, "transaction": None, "op": op}
        framed_key = None if key is None else self.framed(1, {"id": key})
        return self.records.entry(HERE, framed_key, self.framed(2, value))


def row(**over: Any) -> dict[str, Any]:
    return {"id": 1, "note": "n", "price": Decimal("1.50"), **over}


def hashed(text: bytes, attnum: int, key: bytes = b"1") -> int:
    return hash64(text, hash64(key, 0) ^ column_constant(attnum))


def test_a_change_has_the_hashes_of_the_server_s_texts() -> None:
    entry = Topic(schemas()).entry("c", row())
    assert entry is not None
    assert entry[:KEY_BYTES] == key_id(b"1")
    assert (kind_of(entry), commit_of(entry), place_of(entry)) == (ROW, (100, 90), HERE)
    assert hashes_of(entry, HEAD_BYTES) == (hashed(b"1", 1), hashed(b"n", 2), hashed(b"1.50", 3))


@pytest.mark.parametrize(
    ("op", "source", "kind"),
    [
        ("c", {}, ROW),
        ("u", {}, UPDATED),
        ("d", {}, DELETED),
        ("r", {"snapshot": "incremental", "txId": None}, COPIED),
        ("g", {"special": {"gap.dead_letters": "d"}}, UNKNOWN),
    ],
)
def test_the_kinds(op: str, source: dict[str, Any], kind: int) -> None:
    entry = Topic(schemas()).entry(op, row() if op in "cur" else None, **source)
    assert entry is not None
    assert kind_of(entry) == kind


def test_null_unchanged_special_and_omitted_values() -> None:
    topic = Topic(schemas())
    entry = topic.entry("c", row(note=None, price=None), special={"after.price": "NaN"})
    assert entry is not None
    assert hashes_of(entry, HEAD_BYTES)[1:] == (0, hashed(b"NaN", 3))
    entry = topic.entry("u", row(note=None), unchanged=["note"])
    assert entry is not None
    assert hashes_of(entry, HEAD_BYTES)[1] == UNCHANGED
    entry = topic.entry("u", row(note=None), special={"after.note.omitted_bytes": "9"})
    assert entry is not None
    assert hashes_of(entry, HEAD_BYTES)[1] == MISSING


def test_a_column_that_the_record_does_not_have_is_missing() -> None:
    entry = Topic(schemas(COLUMNS[:2], (1, 2))).entry("c", {"id": 1, "note": "n"})
    assert entry is not None
    assert hashes_of(entry, HEAD_BYTES)[2] == MISSING


def test_a_renamed_column_is_the_same_and_one_added_again_is_another() -> None:
    before = (COLUMNS[0], ("remark", 25, -1), COLUMNS[2])
    entry = Topic(schemas(before)).entry("c", {"id": 1, "remark": "n", "price": None})
    assert entry is not None
    assert hashes_of(entry, HEAD_BYTES)[1] == hashed(b"n", 2)
    entry = Topic(schemas(attnums=(1, 9, 3))).entry("c", row())
    assert entry is not None
    assert hashes_of(entry, HEAD_BYTES)[1] == MISSING


def test_without_attnums_the_names_decide() -> None:
    entry = Topic(schemas(attnums=None)).entry("c", row())
    assert entry is not None
    assert hashes_of(entry, HEAD_BYTES)[1] == hashed(b"n", 2)


@pytest.mark.parametrize(
    ("now", "expected"),
    [((20, -1), hashed(b"5", 2)), ((1700, -1), MISSING)],
    ids=["a wider integer has the same text", "another type may have been rewritten"],
)
def test_the_type_of_a_column_was_changed(now: tuple[int, int], expected: int) -> None:
    before = (COLUMNS[0], ("n", 23, -1))
    topic = Topic(schemas(before, (1, 2)), table((COLUMNS[0], ("n", *now))))
    entry = topic.entry("c", {"id": 1, "n": 5})
    assert entry is not None
    assert hashes_of(entry, HEAD_BYTES)[1] == expected


def test_what_holds_for_the_whole_table() -> None:
    topic = Topic(schemas())
    assert topic.entry("t", None, key=None, commit_lsn=5) is None
    assert topic.entry("g", None, key=None, special={"gap.from_lsn": "0/1"}, commit_lsn=6) is None
    found = topic.records.found
    assert [(xid, places) for xid, places in found.truncates.values()] == [(90, {(0, 1)})]
    assert (found.gap, found.keyless, found.records) == (b"", b"", 2)
    assert topic.entry("g", None, key=None, special={"gap.to_lsn": "0/9"}) is None
    assert found.gap
    assert topic.entry("c", row(), key=None) is None
    assert found.keyless


def test_a_tombstone_and_a_row_of_a_former_table_are_no_entries() -> None:
    topic = Topic(schemas(relid=499))
    assert topic.records.entry(HERE, b"k", None) is None
    assert topic.entry("c", row()) is None
    assert topic.records.found.former


def test_a_flat_record_is_refused() -> None:
    flat = {"type": "record", "name": "V", "cdcd.flat": {}, "fields": []}
    records = Records(table(), lambda number: flat)
    assert records.entry(HERE, None, struct.pack(">bI", 0, 1)) is None
    assert records.found.is_flat


def test_a_key_of_other_columns_is_refused() -> None:
    other = {"type": "record", "name": "Key", "fields": [{"name": "code", "type": "string"}]}
    topic = Topic(schemas())
    topic._schemas[1] = other
    assert topic.records.entry(HERE, topic.framed(1, {"code": "x"}), topic.framed(2, _value())) is None
    assert topic.records.found.other_key


@pytest.mark.parametrize(
    ("before", "now", "is_same"),
    [
        ((1042, 3 + 4), (1042, 5 + 4), False),
        ((1042, 3 + 4), (1043, 3 + 4), False),
        ((1700, (9 << 16 | 2) + 4), (1700, (9 << 16 | 3) + 4), False),
        ((1043, 3 + 4), (1043, 5 + 4), True),
        ((1043, 3 + 4), (25, -1), True),
    ],
    ids=["char(3) to char(5)", "char to varchar", "scale", "varchar(3) to varchar(5)", "varchar to text"],
)
def test_a_key_whose_texts_another_type_changes_is_refused(
    before: tuple[int, int], now: tuple[int, int], is_same: bool
) -> None:
    topic = Topic(schemas((("id", *before),), (1,)), table((("id", *now),)))
    value: Any = Decimal("1.50") if before[0] == 1700 else "a"
    assert (topic.entry("c", {"id": value}, key=value) is not None) is is_same
    assert bool(topic.records.found.other_key) is not is_same


def test_records_whose_columns_have_no_numbers_are_noted() -> None:
    topic = Topic(schemas(attnums=None))
    topic.entry("c", row())
    assert topic.records.found.unnumbered
    topic = Topic(schemas())
    topic.entry("c", row())
    assert not topic.records.found.unnumbered


def test_a_record_that_is_in_a_partition_twice_is_noted_and_a_copied_row_is_not() -> None:
    topic = Topic(schemas())
    topic.entry("c", row())
    topic.entry("r", row(), snapshot="incremental", txId=None, commit_lsn=4)
    assert not topic.records.found.disordered
    topic.entry("c", row())
    assert topic.records.found.disordered


def _value() -> dict[str, Any]:
    source = {
        "version": "1", "connector": "p", "name": "s", "ts_ms": 1, "db": "d", "schema": "public", "table": "t",
        "timeline": 1, "commit_lsn": 1, "tx_seq": 1, "unchanged": [],
    }  # fmt: skip
    return {"after": row(), "source": source, "op": "c"}


def test_a_sample_has_about_its_part_of_the_keys() -> None:
    topic = Topic(schemas(), table(share=share_of(25)))
    chosen = sum(topic.entry("c", row(), key=number) is not None for number in range(2000))
    assert 400 < chosen < 600


def test_the_windows_of_a_sample_have_each_key() -> None:
    share = share_of(30)
    assert windows_of(share) == 4
    tables = [table(share=share, first=window * share) for window in range(windows_of(share))]
    keys = [key_id(b"%d" % number) for number in range(2000)]
    by_window = [{key for key in keys if one.is_sampled(key)} for one in tables]
    assert set().union(*by_window) == set(keys)
    assert all(500 < len(chosen) < 700 for chosen in by_window)
    assert not by_window[0] & by_window[1]
    assert windows_of(share_of(100)) == 1


def test_the_text_of_a_key() -> None:
    topic = Topic(schemas())
    assert topic.records.key_text(topic.framed(1, {"id": -5})) == "-5"


@pytest.mark.parametrize("value", [b"{}", b"", b"\0\0\0", b"\1\0\0\0\7x"])
def test_a_record_without_a_schema_id_is_not_asked_for_in_the_registry(value: bytes) -> None:
    """`TopicLog` says where the record is; the registry would refuse a number that is none."""

    def schema_of(number: int) -> Any:
        raise AssertionError(number)

    with pytest.raises(ValueError, match="no schema id"):
        Records(table(), schema_of).entry(Place(0, 0, 0), b"", value)
