"""A column whose type was replaced: values of the former type are an error, never numbers of another unit."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Any

import pyarrow as pa
import pytest

from cdcd.errors import SparkReadError
from cdcd.spark.decoding.decode import decoding_of
from tests.spark.events import column
from tests.support.decoded import TOPIC, batch_of, given, record, rows, schema

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
ZONED = {"type": "long", "logicalType": "timestamp-micros"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
DATE = {"type": "int", "logicalType": "date"}
CLOCK = {"type": "long", "logicalType": "time-micros"}
CLOCKS = {"type": "array", "items": ["null", CLOCK]}
NUMBERS = {"type": "array", "items": ["null", "long"]}
NESTED = {"type": "record", "name": "n", "fields": [column("at", CLOCK)]}
PLAIN = {"type": "record", "name": "n", "fields": [column("at", "long")]}
VALUES = [
    ("long", 1_796_212_800, ZONED, NOON),
    ("long", 1_796_212_800, LOCAL, NOON.replace(tzinfo=None)),
    ("int", 20_261_129, DATE, date(2026, 11, 29)),
    ("long", 20_261_129, DATE, date(2026, 11, 29)),
    ("long", 43_200, CLOCK, time(12)),
    ("int", 43_200, CLOCK, time(12)),
    (NUMBERS, [43_200], CLOCKS, [time(12)]),
    (PLAIN, {"at": 43_200}, NESTED, {"at": time(12)}),
    (LOCAL, NOON.replace(tzinfo=None), ZONED, NOON),
]


@pytest.mark.parametrize("is_newest", [True, False], ids=["read again", "during the query"])
@pytest.mark.parametrize("turned", [False, True], ids=["to", "from"])
@pytest.mark.parametrize("values", VALUES, ids=lambda one: str(one[2]))
def test_values_of_a_former_type_are_an_error(values: Any, turned: bool, is_newest: bool) -> None:
    old, earlier, new, later = (*values[2:], *values[:2]) if turned else values
    schemas = {1: schema(column("v", old)), 2: schema(column("v", new))}
    records = [record(TOPIC, 1, schemas[1], v=earlier), record(TOPIC, 2, schemas[2], v=later)]
    with pytest.raises(SparkReadError, match="cannot be converted to their column"):
        rows(records, schemas, {TOPIC: (1, 2) if is_newest else (1,)})


@pytest.mark.parametrize(
    ("avro", "value", "expected"),
    [
        (CLOCK, time(12), 43_200_000_000),
        (CLOCKS, [time(12), None], [43_200_000_000, None]),
        (NESTED, {"at": time(12)}, {"at": 43_200_000_000}),
        ({"type": "map", "values": CLOCK}, {"a": time(12)}, [("a", 43_200_000_000)]),
    ],
)
def test_times_of_day_are_microseconds(avro: Any, value: Any, expected: Any) -> None:
    now = schema(column("v", avro))
    found = rows([record(TOPIC, 1, now, v=value)], {1: now}, {TOPIC: (1,)})
    assert found[0]["after"]["v"] == expected


def test_a_time_in_one_table_and_a_number_in_another_are_numbers() -> None:
    """Each table has its own unit."""
    schemas = {1: schema(column("v", CLOCK)), 2: schema(column("v", "int"))}
    known = {TOPIC: (1,), "shop.public.u": (2,)}
    decoding = decoding_of(given(schemas, known), list(known))
    records = [record(TOPIC, 1, schemas[1], v=time(12)), record("shop.public.u", 2, schemas[2], v=5)]
    found = next(decoding.decode(iter([batch_of(*records)])))["after"]
    assert found.type.field("v").type == pa.int64()
    assert [one["v"] for one in found.to_pylist()] == [43_200_000_000, 5]
