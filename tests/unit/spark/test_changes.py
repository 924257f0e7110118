"""The columns of `decode` without Spark: records that fastavro wrote, decoded by `ChangeReader`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdcd.errors import RegistryUnavailable, SparkReadError
from cdcd.model import Column, PgType, Relation, ReplicaIdentity
from cdcd.schema.relation_schema import relation_schemas
from cdcd.spark.decoding import frame
from cdcd.spark.decoding.change_columns import ChangeReader, Choices, change_schema
from cdcd.spark.decoding.schemas import expand, value_record
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
        self.record = value_record(expand(self.schema))

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
    names = frame.renamed_columns(one.record for one in topics)
    return Choices(**({"row": frame.unite_fields(rows, "after"), "key": None, "names": names} | rest))


def read(values: Sequence[bytes | None], *topics: Topic, **rest: Any) -> list[dict[str, Any]]:
    schemas = {one.number: expand(one.schema) for one in topics}
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
    (few,) = frame.choose_columns([of_topic], ["n"])
    (found,) = read([topic.value("c", after={"id": 1, "note": "x", "n": 5})], topic, row=few.row)
    assert found["after"] == {"n": 5}
    with pytest.raises(SparkReadError, match=r"name=m\].*the columns are id, note, n"):
        frame.choose_columns([of_topic], ["m"])
    (without,) = read([topic.value("c", after={"id": 1})], topic, row=(), special="string")
    assert (without["op"], "after" in without, "special_after" in without) == ("c", False, False)


def test_fields_of_the_source_on_request() -> None:
    topic = Topic([ID])
    envelope = expand(topic.schema)
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
    record = value_record(expand(schemas.value))
    fields = frame.fields_of(record)
    assert [one.name for one in fields] == ["id", "Straße.1"]
    assert [frame.properties_of(one) for one in fields] == [
        {"pg.type": "int8", "pg.typmod": -1, "pg.not_null": True},
        {"pg.type": "varchar", "pg.typmod": 14},
    ]
    written = frame.renamed_columns([record])
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
    one = Topic([column("id", "long", required=True, **same, **{"pg.domain": "shop.a"})])
    other = Topic(
        [column("id", "long", required=True, **same, **{"pg.domain": "shop.b"})], 2, "shop.public.other"
    )
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


# --- special values ------------------------------------------------------------------------------------------

SPECIAL = {"after.born": "infinity", "after.gone": "x", "truncate.cascade": "true"}


def _with_special(topic: Topic) -> list[bytes | None]:
    return [
        topic.value("c", after={"id": 1, "born": 5}),
        None,
        topic.value("u", {"special": SPECIAL}, before={"id": 2}, after={"id": 2}),
        topic.value(
            "u", {"special": {"after.born": "-infinity", "before.born": "infinity"}}, after={"id": 3}
        ),
        topic.value("u", {"special": {"before.born": "infinity"}}, after={"id": 4}),
    ]


@pytest.fixture
def born() -> Topic:
    return Topic([ID, column("born", DATE)])


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("map", [None, None, SPECIAL, {"after.born": "-infinity", "before.born": "infinity"}]),
        (
            "string",
            [None, None, {"after.gone": "x", "truncate.cascade": "true"}, {"before.born": "infinity"}],
        ),
        ("null", [None, None, {"after.gone": "x", "truncate.cascade": "true"}, {"before.born": "infinity"}]),
    ],
)
def test_a_policy_takes_its_columns_texts_out_of_the_map_and_no_other(
    born: Topic, policy: str, expected: list[Any]
) -> None:
    found = read(_with_special(born), born, special=policy)
    shown = [None if one["special"] is None else dict(one["special"]) for one in found]
    assert shown == [*expected, {"before.born": "infinity"}]
    assert [None if one["after"] is None else one["after"]["born"] for one in found[1:]] == [None] * 4


def test_texts_in_columns_of_their_own(born: Topic) -> None:
    found = read(_with_special(born), born, special="string", before=True)
    nothing = {"id": None}
    assert [one["special_after"] for one in found] == [
        None,
        None,
        nothing | {"born": "infinity"},
        nothing | {"born": "-infinity"},
        None,
    ]
    assert [one["special_before"] for one in found[2:]] == [
        None,
        nothing | {"born": "infinity"},
        nothing | {"born": "infinity"},
    ]
    assert [one["special"] is None for one in found] == [True, True, False, True, True]


def test_a_special_value_as_an_error_names_the_column_and_never_the_value() -> None:
    topic = Topic([ID, column("b_u002e1", DATE, **{"pg.name": "b.1"})])
    values = [None, topic.value("u", {"special": {"after.b_u002e1": "infinity"}}, after={"id": 2})]
    with pytest.raises(SparkReadError) as error:
        read(values, topic, special="error")
    assert error.value.context == {"topic": TOPIC, "partition": 2, "offset": 101, "column": "after.b.1"}
    assert "infinity" not in str(error.value)
    _, found = read(values, topic, special="error", on_error="quarantine")
    assert found["error"] == "a value is outside the type of its column after.b.1"
    assert (found["op"], found["raw_value"]) == (None, values[1])


def test_a_special_value_of_a_column_that_is_not_wanted_is_no_error(born: Topic) -> None:
    (identity, _) = choices(born).row
    found = read(_with_special(born), born, special="error", row=(identity,))
    assert [one["op"] for one in found] == ["c", None, "u", "u", "u"]


# --- broken records ------------------------------------------------------------------------------------------

OF_CHANGES = (
    "op",
    "after",
    "timeline",
    "commit_lsn",
    "tx_seq",
    "snapshot",
    "lsn",
    "ts_us",
    "unchanged",
    "special",
)


def test_quarantine_returns_each_record_and_the_broken_ones_with_reason_and_bytes() -> None:
    topic = Topic([ID])
    good = topic.value("c", after={"id": 1})
    values = [good, good[:-1], None, b"{}", good]
    found = read(values, topic, on_error="quarantine")
    assert [one["op"] for one in found] == ["c", None, None, None, "c"]
    assert [one["error"] for one in found] == [
        None,
        "the value of a record cannot be decoded: it ends within a value",
        None,
        "the value of a record cannot be decoded: it is not framed as 0x00, schema id, Avro",
        None,
    ]
    assert [one["raw_value"] for one in found] == [None, values[1], None, values[3], None]
    assert [one["offset"] for one in found] == [100, 101, 102, 103, 104]
    assert [one["schema_id"] for one in found] == [1, 1, None, None, 1]
    assert [{one[name] for name in OF_CHANGES} for one in (found[1], found[3])] == [{None}, {None}]


def test_records_of_a_schema_that_does_not_fit_go_to_quarantine_too() -> None:
    now, before = Topic([ID, column("n", "long")]), Topic([ID, column("n", "string")], 2)
    values = [before.value("c", after={"id": 1, "n": "x"}), now.value("c", after={"id": 2, "n": 3})]
    schemas = {1: expand(now.schema), 2: expand(before.schema)}
    reader = ChangeReader(choices(now, on_error="quarantine"), schemas.__getitem__)
    first, second = reader.read(batch(values)).to_pylist()
    assert first["error"].endswith("cannot be converted to their column (column after.n, type string)")
    assert (first["raw_value"], first["schema_id"], second["after"]) == (values[0], 2, {"id": 2, "n": 3})
    with pytest.raises(
        SparkReadError, match=r"column after.n.*offset=100 schema_id=2.* start the query again"
    ):
        ChangeReader(choices(now), schemas.__getitem__).read(batch(values))


def test_a_broken_key_makes_the_row_broken_and_the_value_stays_in_its_bytes() -> None:
    topic = Topic([ID])
    key = events.key_schema(TOPIC, [ID])
    value = topic.value("c", after={"id": 1})
    keys = [events.frame(2, key, {"id": 1}), b"\0\0\0\0\2", None]
    raw = batch([value] * 3)
    raw = raw.set_column(3, "key", pa.array(keys, pa.binary()))
    wanted = choices(topic, key=frame.fields_of(expand(key)), on_error="quarantine")
    schemas = {1: expand(topic.schema), 2: expand(key)}
    found = ChangeReader(wanted, schemas.__getitem__).read(raw).to_pylist()
    assert [one["key"] for one in found] == [{"id": 1}, None, None]
    assert [one["op"] for one in found] == ["c", None, "c"]
    assert (found[1]["raw_key"], found[1]["raw_value"]) == (keys[1], value)
    assert found[1]["error"] == "the key of a record cannot be decoded: it ends within a value"


def test_an_outage_of_the_registry_is_no_broken_record() -> None:
    def schema_of(number: int) -> Any:
        raise RegistryUnavailable("the registry cannot be reached")

    topic = Topic([ID])
    reader = ChangeReader(choices(topic, on_error="quarantine"), schema_of)
    with pytest.raises(RegistryUnavailable):
        reader.read(batch([topic.value("c", after={"id": 1})]))


# --- any mixture ---------------------------------------------------------------------------------------------

_KEYS = [
    "after.born",
    "after.a_u002eb",
    "before.born",
    "before.a_u002eb.not_logged",
    "gap.reason",
    "after.gone",
]
_SOME = st.none() | st.dictionaries(st.sampled_from(_KEYS), st.text(max_size=3))
_KINDS = st.sampled_from(["change", "tombstone", "broken"])
_NAMES = st.lists(st.sampled_from(["born", "a_u002eb"]), max_size=2)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(_KINDS, _SOME, _NAMES), max_size=6),
    st.sampled_from(["map", "string", "null", "error"]),
)
def test_any_mixture_of_records_has_the_entries_of_each(
    rows: list[tuple[str, dict[str, str] | None, list[str]]], policy: str
) -> None:
    topic = Topic([ID, column("born", DATE), column("a_u002eb", DATE, **{"pg.name": "a.b"})])
    made = {
        "tombstone": lambda value: None,
        "broken": lambda value: value[:-1],
        "change": lambda value: value,
    }
    values = [
        made[kind](topic.value("u", {"special": special, "unchanged": names}, after={"id": 1}))
        for kind, special, names in rows
    ]
    found = read(values, topic, special=policy, on_error="quarantine")
    for (kind, special, names), one in zip(rows, found, strict=True):
        wanted = {key: text for key, text in (special or {}).items() if key in _KEYS[:2]}
        is_change = kind == "change" and not (policy == "error" and wanted)
        others = {key: text for key, text in (special or {}).items() if policy == "map" or key not in wanted}
        assert (one["op"] == "u", one["error"] is None) == (is_change, is_change or kind == "tombstone")
        assert one["unchanged"] == ([_renamed(name) for name in names] if is_change else None)
        renamed = {_renamed(key): text for key, text in others.items()}
        assert dict(one["special"] or ()) == (renamed if is_change else {})
        if policy == "string":
            texts = {"id": None, "born": wanted.get("after.born"), "a.b": wanted.get("after.a_u002eb")}
            assert one["special_after"] == (texts if is_change and wanted else None)


def _renamed(name: str) -> str:
    return name.replace("a_u002eb", "a.b")
