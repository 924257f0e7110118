"""A record that cdcd did not write parks the table of its topic, with its place; the other tables continue."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from ssl import SSLCertVerificationError
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from cdcd.errors import MirrorInconsistent, RegistryRefused, RegistryUnavailable, SparkReadError
from cdcd.spark.mirroring.batches import MirrorBatches, OnError
from cdcd.spark.mirroring.dropped_tables import drop_table
from cdcd.spark.mirroring.records import Records, RecordsOnDriver
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.source.source_position import SourcePosition
from cdcd.spark.storage.uri import open_storage
from cdcd.spark.target.commit_log import read_latest
from cdcd.spark.target.mirror_sizes import DEFAULT_BUCKETS
from cdcd.spark.target.target_writer import take_over
from cdcd.spark.target.versions import TABLE_FORMATS, ScdType, TableFormat, TargetVersion
from cdcd.spark.testing import Database, Table

COLUMNS = {"id": "bigint", "n": "text"}
A, B = (Table(f"public.{name}", COLUMNS, key=["id"]) for name in "ab")
BAG = Table("public.a", COLUMNS)
FOREIGN_ID, SECRET = 99, "SECRET of a row"
_X = {"type": "record", "name": "X"}


def framed(body: bytes = b"\2x", number: int = FOREIGN_ID) -> bytes:
    return b"\0" + struct.pack(">I", number) + body


class Shop:
    """Two tables, their records, and a target; `schemas` are those of the registry."""

    def __init__(self, target: Path, table: Table = A) -> None:
        self.target, self.table = target, table
        self.database = Database(table, B)
        self.schemas: dict[int, str] = {}
        self.done = 0
        self.records: list[dict[str, Any]] = []
        self.commit(table.insert(id=1, n=SECRET), B.insert(id=1, n="y"))

    def commit(self, *changes: Any) -> None:
        before = self.database.records.num_rows
        self.database.commit(*changes)
        self.records += self.database.records.to_pylist()[before:]
        self.schemas |= dict(self.database.connection.schemas.texts)  # type: ignore[union-attr]

    def add(self, value: bytes, *, key: bytes | None = None) -> None:
        self.records.append({**self.records[0], "key": key, "value": value})

    def schema_of(self, number: int) -> Any:
        return json.loads(self.schemas[number])

    def run(
        self,
        on_error: OnError = "park",
        schema_of: Callable[[int], Any] | None = None,
        table_format: TableFormat = "parquet",
        scd_type: ScdType = 1,
        read: Callable[[pa.Table], Records] = RecordsOnDriver,
    ) -> TargetVersion:
        """Apply what is new as one batch; the records of a topic have the offsets 0, 1, 2, ..."""
        numbered = [{**one, "offset": place} for place, one in enumerate(self.records)]
        records = pa.Table.from_pylist(numbered, schema=self.database.records.schema).slice(self.done)
        storage = open_storage(self.target)
        empty = TargetVersion(
            "testing", DEFAULT_BUCKETS, cluster="testing", table_format=table_format, scd_type=scd_type
        )
        writer = take_over(storage, read_latest(storage) or empty)
        batches = MirrorBatches(storage, writer, schema_of or self.schema_of, on_error=on_error)
        try:
            end = {"testing": {"0": len(numbered)}}
            batches.apply(read(records), end, SourcePosition(self.database.lsn + 1))
            self.done = len(numbered)
            return batches.version
        finally:
            batches.close()

    def ids(self, table: Table) -> list[int]:
        return sorted(read_mirror(self.target).table(table.topic)["id"].to_pylist())


FOREIGN: dict[str, tuple[bytes, str | None]] = {
    "not framed": (b"{}", None),
    "empty": (b"", None),
    "a body that is cut": (framed(b"x", 1), None),
    "not JSON": (framed(), "nonsense"),
    "deep JSON": (framed(), "[" * 100_000),
    "a schema that is a text": (framed(), '"string"'),
    "a schema that is a number": (framed(), "5"),
    "another record": (framed(), json.dumps(_X | {"fields": [{"name": "a", "type": "string"}]})),
    "an enum without symbols": (framed(), '{"type": "enum", "name": "x"}'),
    "an unknown type": (framed(), json.dumps(_X | {"fields": [{"name": "a", "type": "com.other.Y"}]})),
    "a record without fields": (framed(), json.dumps(_X)),
}


@pytest.mark.parametrize("has_key", [True, False], ids=["with a key", "without a key"])
@pytest.mark.parametrize("name", FOREIGN)
def test_a_record_of_another_program_parks_the_table_of_its_topic(
    tmp_path: Path, name: str, has_key: bool
) -> None:
    shop = Shop(tmp_path)
    value, schema = FOREIGN[name]
    if schema is not None:
        shop.schemas[FOREIGN_ID] = schema
    shop.run()
    shop.commit(A.insert(id=2), B.insert(id=2))
    shop.add(value, key=b"\0\0\0\0\2\2" if has_key else None)
    shop.commit(A.insert(id=3), B.insert(id=3))
    version = shop.run()
    assert list(version.parked) == [A.topic]
    reason = version.parked[A.topic].reason
    assert version.parked[A.topic].code == MirrorInconsistent.code
    assert f"topic={A.topic} partition=0 offset=4" in reason, reason
    assert ("no change that cdcd wrote" in reason, SECRET in reason) == (True, False)
    assert shop.ids(B) == [1, 2, 3]
    assert read_mirror(tmp_path).version.tables[A.topic].deltas == version.tables[A.topic].deltas

    shop.add(value)  # another one changes nothing
    shop.commit(A.insert(id=4), B.insert(id=4))
    assert list(shop.run().parked) == [A.topic]
    assert shop.ids(B) == [1, 2, 3, 4]
    shop.commit(A.truncate(), A.copied(id=5))
    assert list(shop.run().parked) == []
    assert (shop.ids(A), shop.ids(B)) == ([5], [1, 2, 3, 4])


@pytest.mark.parametrize("table", [A, BAG], ids=["key", "no key"])
@pytest.mark.parametrize("scd_type", [1, 2])
@pytest.mark.parametrize("table_format", TABLE_FORMATS)
def test_each_format_parks_a_table_that_begins_with_a_record_of_another_program(
    tmp_path: Path, table_format: TableFormat, scd_type: ScdType, table: Table
) -> None:
    shop = Shop(tmp_path, table)
    shop.records.insert(0, {**shop.records[0], "value": b"{}"})
    version = shop.run(table_format=table_format, scd_type=scd_type)
    assert list(version.parked) == [table.topic]
    assert "offset=0" in version.parked[table.topic].reason
    assert shop.ids(B) == [1]
    shop.commit(table.truncate(), table.copied(id=5))
    assert list(shop.run().parked) == []
    assert shop.ids(table) == [5]


def test_a_topic_with_nothing_else_is_parked(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.records[0] = {**shop.records[0], "value": b"{}"}
    version = shop.run()
    assert list(version.parked) == [A.topic]
    assert "partition=0 offset=0" in version.parked[A.topic].reason
    assert shop.ids(B) == [1]


def test_a_schema_that_is_not_avro_parks_the_table(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.add(framed())

    def schema_of(number: int) -> Any:
        if number == FOREIGN_ID:
            raise RegistryRefused("a registered schema is not Avro", schema_id=number, kind="JSON")
        return shop.schema_of(number)

    assert list(shop.run(schema_of=schema_of).parked) == [A.topic]


@pytest.mark.parametrize("has_key", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        RegistryUnavailable("the registry cannot be reached"),
        RegistryRefused("the registry has no schema with this id", schema_id=FOREIGN_ID),
        SparkReadError("the schema topic has no schema with this id", schema_id=FOREIGN_ID),
        SSLCertVerificationError("the certificate is not valid"),  # a ValueError
    ],
)
def test_no_table_is_parked_for_an_outage_or_a_schema_that_is_lost(
    tmp_path: Path, error: Exception, has_key: bool
) -> None:
    """A registry that was restored from a backup lacks schemas of all tables."""
    shop = Shop(tmp_path)
    shop.run()
    shop.add(framed(), key=b"\0\0\0\0\2\2" if has_key else None)

    def schema_of(number: int) -> Any:
        if number == FOREIGN_ID:
            raise error
        return shop.schema_of(number)

    with pytest.raises(type(error)):
        shop.run(schema_of=schema_of)
    assert read_mirror(tmp_path).version.parked == {}


ORDERS = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "a", "type": "string"}]})


@pytest.mark.parametrize("lost", [False, True], ids=["other ids", "new ids"])
@pytest.mark.parametrize("on_error", ["park", "fail"])
@pytest.mark.parametrize("has_rows", [True, False])
def test_no_table_is_parked_for_a_registry_that_has_other_schemas(
    tmp_path: Path, has_rows: bool, on_error: OnError, lost: bool
) -> None:
    """A mirror that is started with the registry of another system, or one that gave its ids anew."""
    shop = Shop(tmp_path)
    shop.run()
    known = set(shop.schemas)
    if lost:  # the records have an id that the mirror has not seen
        shop.add(framed(number=FOREIGN_ID), key=b"\0\0\0\0\2\2")
    if has_rows:
        shop.commit(A.insert(id=2), B.insert(id=2))
    else:
        shop.commit(B.insert(id=2))
        shop.commit(A.truncate(), A.copied(id=2))
    with pytest.raises(SparkReadError, match="another schema under the id") as raised:
        shop.run(on_error, schema_of=lambda _: json.loads(ORDERS))
    assert type(raised.value) is SparkReadError
    assert raised.value.context["schema_id"] in known
    assert read_mirror(tmp_path).version.parked == {}
    shop.schemas[FOREIGN_ID] = ORDERS  # with the right registry
    if not lost:
        assert shop.run(on_error).parked == {}
        assert (2 in shop.ids(A), shop.ids(B)) == (True, [1, 2])
    elif on_error == "park":
        assert list(shop.run().parked) == [A.topic]


LOST_SCHEMAS = [
    RegistryRefused("the registry has no schema with this id", schema_id=FOREIGN_ID, error_code=40403),
    SparkReadError("the schema topic has no schema with this id", topic="t", schema_id=FOREIGN_ID),
]


@pytest.mark.parametrize("has_key", [True, False])
@pytest.mark.parametrize("error", LOST_SCHEMAS, ids=["registry", "schema topic"])
def test_a_record_under_an_id_that_is_not_known_leaves_a_way_out(
    tmp_path: Path, error: Exception, has_key: bool
) -> None:
    """The table is dropped, or was parked before; a copy resumes it."""
    shop = Shop(tmp_path)

    def schema_of(number: int) -> Any:
        if number == FOREIGN_ID:
            raise error
        return shop.schema_of(number)

    shop.run()
    shop.add(framed(), key=b"\0\0\0\0\2\2" if has_key else None)
    with pytest.raises(type(error)):
        shop.run(schema_of=schema_of)
    drop_table(tmp_path, A.name)
    shop.commit(B.insert(id=2))
    assert A.topic not in shop.run(schema_of=schema_of).tables
    assert shop.ids(B) == [1, 2]
    shop.commit(A.truncate(), A.copied(id=5))
    assert A.topic in shop.run(schema_of=schema_of).tables
    assert shop.ids(A) == [5]

    shop.add(b"{}")
    assert list(shop.run(schema_of=schema_of).parked) == [A.topic]
    shop.add(framed(), key=b"\0\0\0\0\2\2" if has_key else None)
    shop.commit(B.insert(id=3))
    assert list(shop.run(schema_of=schema_of).parked) == [A.topic]
    assert shop.ids(B) == [1, 2, 3]
    shop.commit(A.truncate(), A.copied(id=6))
    assert list(shop.run(schema_of=schema_of).parked) == []
    assert shop.ids(A) == [6]


def test_a_registry_that_is_away_is_no_foreign_record_of_a_parked_table(tmp_path: Path) -> None:
    """The record may be the TRUNCATE of its copy."""
    shop = Shop(tmp_path)
    shop.run()
    shop.add(b"{}")
    assert list(shop.run().parked) == [A.topic]
    shop.commit(A.truncate(), A.copied(id=5))

    def schema_of(number: int) -> Any:
        raise RegistryRefused("the registry refuses the login", schema_id=number, error_code=40101)

    with pytest.raises(RegistryRefused):
        shop.run(schema_of=schema_of)
    assert shop.run().parked == {}
    assert shop.ids(A) == [5]


def test_a_mirror_that_parks_no_table_ends_with_the_place_of_the_record(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.add(b"{}")
    with pytest.raises(MirrorInconsistent, match=rf"topic={A.topic} partition=0 offset=2"):
        shop.run(on_error="fail")


def test_an_avro_type_without_a_column_type_parks_the_table(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.run()
    envelope = json.loads(A.value_text)
    row = next(one["type"][1] for one in envelope["fields"] if one["name"] == "before")
    row["fields"].append({"name": "x", "type": ["int", "string", "boolean"]})
    shop.schemas[1 + max(shop.schemas)] = json.dumps(envelope)
    body = fastavro_body(envelope, shop)
    shop.add(framed(body, max(shop.schemas)), key=shop.records[0]["key"])
    version = shop.run()
    assert "cannot be those of the table" in version.parked[A.topic].reason
    assert SECRET not in version.parked[A.topic].reason


def fastavro_body(envelope: Any, shop: Shop) -> bytes:
    old = io.BytesIO(shop.records[0]["value"][5:])
    change = fastavro.schemaless_reader(old, fastavro.parse_schema(json.loads(A.value_text)))
    change["after"]["x"] = 5
    change["source"] |= {"commit_lsn": 5000, "lsn": 5000}
    new = io.BytesIO()
    fastavro.schemaless_writer(new, fastavro.parse_schema(envelope), change)
    return new.getvalue()
