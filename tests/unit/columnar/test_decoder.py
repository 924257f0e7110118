"""Records to columns: fastavro wrote the records and is the judge; the C extension equals its Python fallback."""

from __future__ import annotations

from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdcd.columnar import decoder, layout
from cdcd.columnar.decoder import DecodedRows, RecordDecoder
from cdcd.columnar.fallback import ColumnsInPython
from cdcd.columnar.faults import REASONS, Fault
from cdcd.columnar.program import AVRO_NAME
from cdcd.errors import SparkReadError
from tests.support.arrow_values import shown

from .avro_types import pruned, records, without_names, written

IMPLEMENTATIONS = list(dict.fromkeys([decoder.Columns, ColumnsInPython]))
at_first_slow = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
"""Before its first draw, Hypothesis reads the sources of all modules that are imported."""
both = pytest.mark.parametrize("columns_class", IMPLEMENTATIONS, ids=lambda one: one.__name__)


def wanted(type_: pa.StructType) -> pa.Schema:
    return pa.schema(list(type_))


def decoded(
    avro: Any, type_: pa.DataType, framed: list[bytes | None], columns_class: Any, large: bool = False
) -> DecodedRows:
    reader = RecordDecoder(wanted(type_), lambda number: without_names(avro), columns_class)
    found = reader.decode(pa.array(framed, pa.large_binary() if large else pa.binary()))
    found.rows.validate(full=True)
    return found


def plain(value: Any, arrow: pa.DataType) -> Any:
    """Return fastavro's value as pyarrow shows it: only the fields of the type; a map as pairs."""
    if value is None:
        return None
    if pa.types.is_struct(arrow):
        return {field.name: plain(value[field.name], field.type) for field in arrow}
    if pa.types.is_list(arrow):
        return [plain(item, arrow.value_type) for item in value]
    if pa.types.is_map(arrow):
        return [(key, plain(item, arrow.item_type)) for key, item in value.items()]
    return value


@both
@at_first_slow
@given(st.data(), st.booleans())
def test_what_fastavro_wrote_is_in_the_columns(columns_class: Any, data: st.DataObject, large: bool) -> None:
    kind, values = data.draw(records())
    framed = [None if value is None else written(kind.avro, value) for value in values]
    found = decoded(kind.avro, kind.arrow, framed, columns_class, large)
    assert found.rows.to_pylist() == [plain(value, kind.arrow) for value in values]
    assert found.schema_ids.to_pylist() == [None if value is None else 1 for value in values]
    assert not found.bad


@both
@at_first_slow
@given(st.data())
def test_columns_that_are_not_wanted_are_skipped(columns_class: Any, data: st.DataObject) -> None:
    kind, values = data.draw(records())
    some = data.draw(pruned(kind.arrow))
    framed = [None if value is None else written(kind.avro, value) for value in values]
    found = decoded(kind.avro, some, framed, columns_class)
    assert found.rows.to_pylist() == [plain(value, some) for value in values]


@at_first_slow
@given(st.data())
def test_the_extension_equals_its_fallback_for_any_bytes(data: st.DataObject) -> None:
    kind, values = data.draw(records())
    some = data.draw(st.just(kind.arrow) | pruned(kind.arrow))
    framed = [None if value is None else broken(data, written(kind.avro, value)) for value in values]
    array = pa.array([b"", *framed], pa.binary()).slice(data.draw(st.integers(0, 1)))
    found = []
    for columns_class in (decoder.Columns, ColumnsInPython):
        reader = RecordDecoder(wanted(some), lambda number: without_names(kind.avro), columns_class)
        reader.decode(array)  # twice: nothing of the first time is left
        found.append(reader.decode(array))
    found[0].rows.validate(full=True)
    assert found[0].bad == found[1].bad
    assert shown(found[0].rows) == shown(found[1].rows)
    assert found[0].schema_ids.equals(found[1].schema_ids)


def broken(data: st.DataObject, record: bytes) -> bytes:
    """Return the record with a byte changed, added or removed, or whole."""
    if data.draw(st.booleans()):
        return record
    place = data.draw(st.integers(0, len(record)))
    put = data.draw(
        st.binary(max_size=3) | st.sampled_from([b"\xff" * 9 + b"\x01", b"\xff" * 11, b"\x80", b"\x02"])
    )
    return record[:place] + put + record[place + data.draw(st.integers(0, 2)) :]


def row(*fields: tuple[str, Any]) -> Any:
    return {
        "type": "record",
        "name": "row",
        "fields": [{"name": name, "type": type_} for name, type_ in fields],
    }


def framed(body: bytes) -> bytes:
    return b"\0\0\0\0\x01" + body


LONGEST = 20
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
ARRAY = {"type": "array", "items": "boolean"}
TIMES = {"type": "long", "logicalType": "time-micros"}
BROKEN: list[tuple[Fault, Any, pa.DataType, bytes]] = [
    (Fault.HEADER, "int", pa.int32(), b""),
    (Fault.HEADER, "int", pa.int32(), b"\0\0\0\1"),
    (Fault.HEADER, "int", pa.int32(), b"\1\0\0\0\1\2"),
    (Fault.TRUNCATED, "int", pa.int32(), framed(b"\x80")),
    (Fault.TRUNCATED, "double", pa.float64(), framed(bytes(7))),
    (Fault.NUMBER, "int", pa.int32(), framed(b"\x80\x80\x80\x80\x10")),  # 2^31
    (Fault.NUMBER, "long", pa.int64(), framed(b"\xff" * 9 + b"\x02")),  # 65 bits
    (Fault.NUMBER, "long", pa.int64(), framed(b"\xff" * 11)),
    (Fault.LENGTH, "string", pa.string(), framed(b"\x01")),
    (Fault.LENGTH, "string", pa.string(), framed(b"\x04a")),
    (Fault.BRANCH, ["null", "int"], pa.int32(), framed(b"\x04\x02")),
    (Fault.BOOLEAN, "boolean", pa.bool_(), framed(b"\x02")),
    (Fault.TEXT, "string", pa.string(), framed(b"\x02\xff")),
    (Fault.TEXT, "string", pa.string(), framed(b"\x06\xed\xa0\x80")),  # a surrogate
    (
        Fault.TEXT,
        {"type": "map", "values": "int"},
        pa.map_(pa.string(), pa.int32()),
        framed(b"\x02\x02\xff\x02\0"),
    ),
    (Fault.DECIMAL, DECIMAL, pa.decimal128(5, 2), framed(b"\x06\x01\x86\xa0")),  # 100000
    (Fault.DECIMAL, DECIMAL, pa.decimal128(38, 2), framed(b"\x22\x01" + bytes(16))),  # 2^128
    (Fault.COUNT, ARRAY, pa.list_(pa.bool_()), framed(b"\x08\x01\x00\x01")),
    (Fault.COUNT, ARRAY, pa.list_(pa.bool_()), framed(b"\xff" * 9 + b"\x01\x00\x01")),  # -2^63 items
    (Fault.TRAILING, "int", pa.int32(), framed(b"\x02\x02")),
]


@both
@pytest.mark.parametrize(("fault", "avro", "arrow", "record"), BROKEN)
def test_a_broken_record_is_named_and_leaves_nothing(
    columns_class: Any, fault: Fault, avro: Any, arrow: pa.DataType, record: bytes
) -> None:
    """The columns before the broken value have values already, also inside an array."""
    schema = row(("before", {"type": "array", "items": "string"}), ("value", avro))
    type_ = pa.struct([("before", pa.list_(pa.string())), ("value", arrow)])
    some = b"\x04\x02a\x02b\x00"  # an array of two strings
    whole = {"int": b"\x0e", "long": b"\x0e", "double": bytes(8), "boolean": b"\x01", "string": b"\x02c"}
    good = framed(some + (whole.get(avro, b"\0") if isinstance(avro, str) else b"\0"))
    record = record if fault is Fault.HEADER else record[:5] + some + record[5:]
    found = decoded(schema, type_, [good, record, good], columns_class)
    ((place, seen, schema_id, _),) = found.bad
    assert (place, seen) == (1, fault)
    assert found.bad[0].reason == REASONS[fault]
    assert schema_id == (None if fault is Fault.HEADER else 1)
    shown = found.rows.to_pylist()
    assert shown[1] is None
    assert shown[0] == shown[2]
    assert shown[0]["before"] == ["a", "b"]


@both
def test_a_record_comes_in_the_columns_of_another_version(columns_class: Any) -> None:
    """Numbers are promoted, a field that the writer has not is null, one that the columns have not is skipped."""
    old = row(("id", "int"), ("gone", "string"), ("ratio", ["null", "float"]), ("n", "long"))
    new = row(("id", "long"), ("ratio", ["null", "double"]), ("n", "double"), ("more", ["null", "string"]))
    schemas = {1: old, 2: new}
    type_ = pa.schema(
        [
            pa.field("identity", pa.int64(), metadata={AVRO_NAME: "id"}),
            ("ratio", pa.float64()),
            ("n", pa.float64()),
            ("more", pa.string()),
        ]
    )
    fetched: list[int] = []

    def schema_of(number: int) -> Any:
        fetched.append(number)
        return schemas[number]

    reader = RecordDecoder(type_, schema_of, columns_class)
    older = written(old, {"id": 1, "gone": "x", "ratio": 0.5, "n": 3}, 1)
    newer = written(new, {"id": 2**40, "ratio": None, "n": 0.25, "more": "m"}, 2)
    found = reader.decode(pa.array([older, newer, None, older]))
    assert found.rows.to_pylist() == [
        {"identity": 1, "ratio": 0.5, "n": 3.0, "more": None},
        {"identity": 2**40, "ratio": None, "n": 0.25, "more": "m"},
        None,
        {"identity": 1, "ratio": 0.5, "n": 3.0, "more": None},
    ]
    assert found.schema_ids.to_pylist() == [1, 2, None, 1]
    reader.decode(pa.array([newer, older]))
    assert fetched == [1, 2]


@both
def test_a_schema_that_cannot_be_fetched_is_asked_for_again(columns_class: Any) -> None:
    known: dict[int, Any] = {1: row(("id", "int"))}
    reader = RecordDecoder(pa.schema([("id", pa.int32())]), lambda number: known[number], columns_class)
    batch = pa.array([written(known[1], {"id": 1}, 1), written(known[1], {"id": 2}, 2)])
    with pytest.raises(KeyError):
        reader.decode(batch)
    known[2] = known[1]
    assert reader.decode(batch).rows.to_pylist() == [{"id": 1}, {"id": 2}]


@both
def test_text_of_any_length_is_checked_at_each_place(columns_class: Any) -> None:
    """Python's own decoder is the judge."""
    pieces = [b"", b"\xc3\xa9", b"\xff", b"\xc3", b"\xed\xa0\x80"]
    texts = [b"a" * at + piece + b"z" * (20 - at) for piece in pieces for at in range(21)]
    texts = [text[:size] for text in texts for size in range(len(text) + 1)]
    found = decoded(
        row(("v", "string")),
        pa.struct([("v", pa.string())]),
        [framed(bytes([2 * len(text)]) + text) for text in texts],
        columns_class,
    )
    assert [bad.row for bad in found.bad] == [at for at, text in enumerate(texts) if not is_text(text)]
    values = [None if value is None else value["v"] for value in found.rows.to_pylist()]
    assert values == [text.decode() if is_text(text) else None for text in texts]


def is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


@both
@pytest.mark.parametrize("precision", [1, 4, 18, 19, 20, 38])
def test_decimals_of_any_length_up_to_their_last_digit(columns_class: Any, precision: int) -> None:
    most = 10**precision - 1
    near = {
        sign * (around + step)
        for around in (0, 127, 128, most, 2**63)
        for step in (-1, 0, 1)
        for sign in (1, -1)
    }
    numbers = [number for number in sorted(near) for _ in range(LONGEST)]
    sizes = [size for _ in near for size in range(1, LONGEST + 1)]
    fitting = [
        (number, size)
        for number, size in zip(numbers, sizes, strict=True)
        if -(2 ** (8 * size - 1)) <= number < 2 ** (8 * size - 1)
    ]
    found = decoded(
        row(("v", {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 0})),
        pa.struct([("v", pa.decimal128(precision, 0))]),
        [framed(bytes([2 * size]) + number.to_bytes(size, "big", signed=True)) for number, size in fitting],
        columns_class,
    )
    assert [value and int(value["v"]) for value in found.rows.to_pylist()] == [
        number if abs(number) <= most else None for number, _ in fitting
    ]


@both
def test_a_block_of_items_may_have_its_size_in_bytes(columns_class: Any) -> None:
    """The Avro specification: a negative count is followed by the block's size."""
    body = b"\x03\x08\x02a\x02b" + b"\x02\x02c" + b"\0"
    schema = row(("items", {"type": "array", "items": "string"}))
    found = decoded(schema, pa.struct([("items", pa.list_(pa.string()))]), [framed(body)], columns_class)
    assert found.rows.to_pylist() == [{"items": ["a", "b", "c"]}]


@both
def test_any_union_can_be_skipped(columns_class: Any) -> None:
    schema = row(("odd", ["int", "string", {"type": "array", "items": "long"}]), ("id", "int"))
    values = [{"odd": 5, "id": 1}, {"odd": "five", "id": 2}, {"odd": [5, 5], "id": 3}]
    framed_ = [written(schema, value) for value in values]
    found = decoded(schema, pa.struct([("id", pa.int32())]), framed_, columns_class)
    assert [one["id"] for one in found.rows.to_pylist()] == [1, 2, 3]


REFUSED: list[tuple[Any, pa.DataType]] = [
    ("long", pa.int32()),
    ("double", pa.float32()),
    ("string", pa.binary()),
    ("bytes", pa.string()),
    ("int", pa.date32()),
    ("long", pa.time64("us")),
    ("long", pa.timestamp("us", "UTC")),
    ({"type": "int", "logicalType": "date"}, pa.timestamp("us")),
    ({"type": "int", "logicalType": "date"}, pa.int32()),
    ({"type": "int", "logicalType": "date"}, pa.int64()),
    (TIMES, pa.int64()),
    (TIMES, pa.timestamp("us")),
    ({"type": "long", "logicalType": "timestamp-micros"}, pa.int64()),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, pa.int64()),
    ({"type": "long", "logicalType": "timestamp-micros"}, pa.timestamp("us")),
    ({"type": "int", "logicalType": "date"}, pa.float64()),
    (DECIMAL, pa.decimal128(6, 3)),
    (DECIMAL, pa.decimal128(4, 2)),
    ("null", pa.string()),
    (["int", "string"], pa.string()),
    (["null", "int", "string"], pa.string()),
    ({"type": "enum", "name": "e", "symbols": ["a"]}, pa.string()),
    ({"type": "array", "items": "int"}, pa.list_(pa.string())),
    ({"type": "map", "values": "int"}, pa.map_(pa.binary(), pa.int32())),
    ({"type": "array", "items": {"type": "record", "name": "e", "fields": []}}, pa.list_(pa.struct([]))),
]


@pytest.mark.parametrize(("avro", "arrow"), REFUSED)
def test_values_that_cannot_be_converted_are_an_error_of_the_schema(avro: Any, arrow: pa.DataType) -> None:
    with pytest.raises(SparkReadError, match=r"column=value|column="):
        decoded(row(("value", avro)), pa.struct([("value", arrow)]), [framed(b"\0")], None)


@both
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("avro", "meaning", "fits"),
    [
        (TIMES, layout.ONLY_TIMES, True),
        ("long", layout.ONLY_TIMES, False),
        ("int", layout.ONLY_TIMES, False),
        (TIMES, layout.ALSO_NUMBERS, True),
        ("long", layout.ALSO_NUMBERS, True),
        ({"type": "long", "logicalType": "timestamp-micros"}, layout.ONLY_TIMES, False),
        ({"type": "long", "logicalType": "timestamp-micros"}, layout.ALSO_NUMBERS, False),
    ],
)
def test_an_integer_column_has_times_of_day_only_if_it_is_one_of_them(
    columns_class: Any, avro: Any, meaning: bytes, fits: bool, nested: bool
) -> None:
    arrow, value, body = pa.int64(), 7, b"\x0e"
    if nested:
        avro, arrow, value, body = {"type": "array", "items": avro}, pa.list_(arrow), [7], b"\x02\x0e\0"
    wanted_ = pa.schema([pa.field("value", arrow, metadata={layout.TIMES: meaning})])
    reader = RecordDecoder(wanted_, lambda number: row(("value", avro)), columns_class)
    if fits:
        assert reader.decode(pa.array([framed(body)])).rows.to_pylist() == [{"value": value}]
    else:
        with pytest.raises(SparkReadError, match="column=value"):
            reader.decode(pa.array([framed(body)]))


@pytest.mark.parametrize(
    "schema", ["int", {"type": "record"}, {"type": "record", "fields": [{"name": "x"}]}, 7]
)
def test_a_schema_that_is_no_record_is_an_error(schema: Any) -> None:
    reader = RecordDecoder(pa.schema([]), lambda number: schema)
    with pytest.raises(SparkReadError):
        reader.decode(pa.array([framed(b"")]))


def test_the_columns_outlive_their_decoder() -> None:
    schema = row(("day", {"type": "int", "logicalType": "date"}), ("name", "string"))

    def rows(reader: RecordDecoder, number: int) -> pa.StructArray:
        value = {"day": date(2024, 1, number), "name": f"n{number}"}
        return reader.decode(pa.array([written(schema, value)] * 1000)).rows

    reader = RecordDecoder(pa.schema([("day", pa.date32()), ("name", pa.string())]), lambda number: schema)
    first, second = rows(reader, 1), rows(reader, 2)
    del reader
    assert first.to_pylist() == [{"day": date(2024, 1, 1), "name": "n1"}] * 1000
    assert second.to_pylist() == [{"day": date(2024, 1, 2), "name": "n2"}] * 1000
