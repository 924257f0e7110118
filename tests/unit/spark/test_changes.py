"""The columns of `decode` without Spark: records that fastavro wrote, decoded by `ChangeReader`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from cdcd.errors import SparkReadError
from cdcd.model import Column, PgType, Relation, ReplicaIdentity
from cdcd.schema.relation_schema import relation_schemas
from cdcd.spark import frame
from cdcd.spark.changes import ChangeReader, Choices, change_schema
from cdcd.spark.schemas import expanded, value_record
from tests.spark import events
from tests.spark.events import column

TOPIC = "shop.public.orders"
ID = column("id", "long", required=True)
DATE = {"type": "int", "logicalType": "date"}
SOURCE: dict[str, Any] = {
    "version": "test", "connector": "postgresql", "name": "shop", "ts_ms": 0, "snapshot": "false", "db": "shop",
    "schema": "public", "table": "orders", "timeline": 1, "commit_lsn": 10, "tx_seq": 1, "unchanged": [],
}  # fmt: skip


class Topic:
    """A topic's records of one schema."""

    def __init__(self, fields: Sequence[Mapping[str, Any]], number: int = 1, name: str = TOPIC) -> None:
        self.name, self.number = name, number
        self.schema = events.envelope_schema(name, fields)
        self.record = value_record(expanded(self.schema))

    def value(self, op: str, source: Mapping[str, Any] = {}, **images: Any) -> bytes:
        envelope = {"before": None, "after": None, "source": SOURCE | source, "op": op} | images
        return events.frame(self.number, self.schema, envelope)


def batch(values: Sequence[bytes | None], topic: str = TOPIC) -> pa.RecordBatch:
    count = len(values)
    columns = [
        pa.array([topic] * count),
        pa.array([2] * count, pa.int32()),
        pa.array(range(100, 100 + count), pa.int64()),
        pa.nulls(count, pa.binary()),
        pa.array(values, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["topic", "partition", "offset", "key", "value"])


def choices(*topics: Topic, **rest: Any) -> Choices:
    rows = [(one.name, frame.fields_of(one.record)) for one in topics]
    names = frame.renamed(one.record for one in topics)
    return Choices(**({"row": frame.united(rows, "after"), "key": None, "names": names} | rest))


def read(values: Sequence[bytes | None], *topics: Topic, **rest: Any) -> list[dict[str, Any]]:
    schemas = {one.number: expanded(one.schema) for one in topics}
    wanted = choices(*topics, **rest)
    found = ChangeReader(wanted, schemas.__getitem__).read(batch(values))
    found.validate(full=True)
    assert found.schema.equals(change_schema(wanted))
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def test_the_old_row_is_returned_only_if_it_is_wanted() -> None:
    topic = Topic([ID])
    values = [topic.value("u", before={"id": 1}, after={"id": 2}), topic.value("d", before={"id": 2})]
    assert "before" not in read(values, topic)[0]
    found = read(values, topic, before=True)
    assert [(one["before"], one["after"]) for one in found] == [({"id": 1}, {"id": 2}), ({"id": 2}, None)]


def test_columns_that_are_not_wanted_are_skipped() -> None:
    topic = Topic([ID, column("note", "string"), column("n", "int")])
    of_topic = frame.TopicFields(TOPIC, frame.fields_of(topic.record), None, ())
    (few,) = frame.chosen([of_topic], ["n"])
    (found,) = read([topic.value("c", after={"id": 1, "note": "x", "n": 5})], topic, row=few.row)
    assert found["after"] == {"n": 5}
    with pytest.raises(SparkReadError, match=r"name=m\].*there are id, note, n"):
        frame.chosen([of_topic], ["m"])


def test_fields_of_the_source_on_request() -> None:
    topic = Topic([ID])
    envelope = expanded(topic.schema)
    wanted = frame.source_fields(envelope, ["txId", "table", "tx_seq"])
    found = read([topic.value("c", {"txId": 77}, after={"id": 1}), None], topic, source=wanted)
    assert [one["source"] for one in found] == [{"txId": 77, "table": "orders", "tx_seq": 1}, None]
    with pytest.raises(SparkReadError, match="source has a name"):
        frame.source_fields(envelope, ["txid"])


def test_columns_have_the_names_and_properties_of_the_database() -> None:
    types = {oid: PgType(oid, "pg_catalog", name, "b") for oid, name in ((20, "int8"), (1043, "varchar"))}
    described = (Column("id", 20, -1, True), Column("Straße.1", 1043, 14, False))
    relation = Relation(1, "public", "orders", ReplicaIdentity.DEFAULT, described)
    schemas = relation_schemas(relation, types, ("id",), "shop")
    record = value_record(expanded(schemas.value))
    fields = frame.fields_of(record)
    assert [one.name for one in fields] == ["id", "Straße.1"]
    assert [frame.properties_of(one) for one in fields] == [
        {"pg.type": "int8", "pg.typmod": -1, "pg.attnum": 1, "pg.not_null": True},
        {"pg.type": "varchar", "pg.typmod": 14, "pg.attnum": 2},
    ]
    written = frame.renamed([record])
    assert written == {record["fields"][1]["name"]: "Straße.1"}


def test_texts_and_names_are_under_the_names_of_the_database() -> None:
    topic = Topic([ID, column("a_u002eb", "string", **{"pg.name": "a.b"})])
    special = {"after.a_u002eb": "text", "after.a_u002eb.omitted_bytes": "7", "after.id": "x"}
    values = [
        topic.value("u", {"unchanged": ["id", "a_u002eb"], "special": special}, after={"id": 1}),
        None,
        topic.value("u", after={"id": 2, "a_u002eb": "value"}),
    ]
    first, tombstone, last = read(values, topic)
    assert first["unchanged"] == ["id", "a.b"]
    assert dict(first["special"]) == {"after.a.b": "text", "after.a.b.omitted_bytes": "7", "after.id": "x"}
    assert (tombstone["op"], tombstone["unchanged"], tombstone["special"]) == (None, None, None)
    assert (last["after"], last["unchanged"], last["special"]) == ({"id": 2, "a.b": "value"}, [], None)


def test_a_broken_record_is_an_error_with_its_place() -> None:
    topic = Topic([ID])
    good = topic.value("c", after={"id": 1})
    with pytest.raises(SparkReadError, match=r"topic=shop.public.orders partition=2 offset=101 schema_id=1"):
        read([good, good + b"\0"], topic)


# --- several topics ------------------------------------------------------------------------------------------


def test_several_topics_have_the_columns_of_all() -> None:
    orders = Topic([ID, column("total", _decimal(10), **{"pg.type": "numeric"})])
    people = Topic([column("id", "int", required=True), column("name", "string")], 2, "shop.public.people")
    refunds = Topic([ID, column("total", _decimal(12), **{"pg.type": "numeric"})], 3, "shop.public.refunds")
    wanted = choices(orders, people, refunds)
    values = [orders.value("c", after={"id": 2**40}), people.value("c", after={"id": 1, "name": "x"})]
    found = read(values, orders, people, refunds)
    assert [one["after"] for one in found] == [
        {"id": 2**40, "total": None, "name": None},
        {"id": 1, "total": None, "name": "x"},
    ]
    assert [one.type for one in wanted.row] == [pa.int64(), pa.decimal128(12, 2), pa.string()]
    assert frame.properties_of(wanted.row[1]) == {"pg.type": "numeric"}


def _decimal(precision: int) -> Any:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 2}


def test_only_properties_that_all_tables_have_are_the_columns() -> None:
    same = {"pg.type": "int8", "pg.typmod": -1}
    one = Topic([column("id", "long", required=True, **same, **{"pg.attnum": 1})])
    other = Topic([column("id", "long", required=True, **same, **{"pg.attnum": 2})], 2, "shop.public.other")
    without = Topic([column("n", "long", **same)], 3, "shop.public.without")
    assert frame.properties_of(choices(one, other).row[0]) == same | {"pg.not_null": True}
    assert frame.properties_of(choices(one, other, without).row[0]) == same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("string", "long"),
        ("long", "double"),  # a double has 53 bits
        (_decimal(10), _decimal(10) | {"scale": 3}),
        ({"type": "array", "items": ["null", "string"]}, {"type": "array", "items": ["null", "long"]}),
        (DATE, "int"),
    ],
)
def test_columns_of_incompatible_types_are_an_error_with_both_tables(one: Any, other: Any) -> None:
    topics = Topic([column("n", one)]), Topic([column("n", other)], 2, "shop.public.other")
    with pytest.raises(SparkReadError) as error:
        choices(*topics)
    assert error.value.context["column"] == "after.n"
    assert {error.value.context["topic"], error.value.context["other_topic"]} == {TOPIC, "shop.public.other"}


def test_attributes_of_a_composite_type_are_united_too() -> None:
    def composite(*fields: dict[str, Any]) -> Any:
        return {"type": "record", "name": "address", "fields": list(fields)}

    one = Topic([column("home", composite(column("street", "string"), column("zip", "int")))])
    other = Topic([column("home", composite(column("zip", "long"), column("town", "string")))], 2, "shop.o")
    (home,) = choices(one, other).row
    assert home.type == pa.struct([("street", pa.string()), ("zip", pa.int64()), ("town", pa.string())])
    values = [one.value("c", after={"home": {"street": "x", "zip": 1}})]
    assert read(values, one, other)[0]["after"] == {"home": {"street": "x", "zip": 1, "town": None}}


def test_names_that_differ_only_in_case_are_an_error_that_says_what_to_do() -> None:
    fields = choices(Topic([ID, column("ID", "string")])).row
    with pytest.raises(SparkReadError, match=r"columns=after.id, after.ID\].*spark.sql.caseSensitive"):
        frame.check_cases(fields, "after")
    inner = pa.field("home", pa.list_(pa.struct([("Zip", pa.string()), ("zip", pa.string())])))
    with pytest.raises(SparkReadError, match=r"after.home.Zip, after.home.zip"):
        frame.check_cases([inner], "after")
