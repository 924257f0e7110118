"""Schemas that cdcd did not register: the records under them go to quarantine, and cost no time and no memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from cdcd.errors import SparkReadError
from cdcd.spark.clients.connection import Connection, GivenAccess
from cdcd.spark.clients.kafka import Cluster
from cdcd.spark.decoding.change_columns import ErrorPolicy
from cdcd.spark.decoding.decode import decoding_of
from cdcd.spark.decoding.reader_schema import reading_of
from cdcd.spark.decoding.schemas import MOST_TYPES, load, value_subject
from cdcd.spark.mirroring.empty_tables import EmptyTables
from cdcd.spark.testing import Database, Table
from tests.spark.unit.test_foreign_records import FOREIGN, FOREIGN_ID, A, Shop, framed


def doubled(times: int) -> str:
    """Return a small schema of records that have each other twice: the type inside, and a reference to it."""
    avro: Any = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "int"}]}
    for number in range(1, times):
        reference = {"name": "b", "type": f"R{number - 1}"}
        fields = [{"name": "a", "type": avro}, reference]
        avro = {"type": "record", "name": f"R{number}", "fields": fields}
    return json.dumps(avro)


SCHEMAS = {name: text for name, (_, text) in FOREIGN.items() if text is not None} | {"doubled": doubled(60)}


def read(text: str, on_error: ErrorPolicy) -> list[dict[str, Any]]:
    """Return the changes of a topic with a record under another schema, which the topic's subject does not have."""
    shop = Database(A)
    shop.commit(A.insert(id=1), A.insert(id=2))
    (first, *_, last) = shop.records.to_pylist()
    access = shop.connection.schemas
    assert isinstance(access, GivenAccess)
    access = replace(access, texts=(*access.texts, (FOREIGN_ID, text)))
    decoding = decoding_of(access, [A.topic], on_error=on_error)
    rows = [first, {**first, "offset": 7, "value": framed()}, last]
    batch = pa.RecordBatch.from_pylist(rows, schema=shop.records.schema)
    return [row for found in decoding.decode(iter([batch])) for row in found.to_pylist()]


@pytest.mark.parametrize("name", SCHEMAS)
def test_records_under_a_schema_that_is_not_of_changes_go_to_quarantine(name: str) -> None:
    rows = read(SCHEMAS[name], "quarantine")
    assert [(one["op"], one["error"] is not None) for one in rows] == [
        ("c", False),
        (None, True),
        ("c", False),
    ]
    assert (rows[1]["raw_value"], rows[1]["offset"]) == (framed(), 7)
    with pytest.raises(SparkReadError, match=rf"cannot be decoded.*topic={A.topic} partition=0 offset=7"):
        read(SCHEMAS[name], "fail")


def test_a_small_schema_with_very_many_types_is_refused_before_it_is_read(tmp_path: Path) -> None:
    assert len(doubled(60)) < 6000
    (writer,) = reading_of(pa.schema([("op", pa.string())]), {7: doubled(60)}).writers
    assert f"may have {MOST_TYPES}" in writer.problem
    with pytest.raises(SparkReadError, match="types, and may have") as raised:
        decoding_of(
            GivenAccess(((7, doubled(60)),), ((value_subject("shop.public.a"), (7,)),)), ["shop.public.a"]
        )
    assert raised.value.context["topic"] == "shop.public.a" or "schema_id" in raised.value.context
    shop = Shop(tmp_path)
    shop.schemas[FOREIGN_ID] = doubled(60)
    shop.add(framed())
    assert list(shop.run(schema_of=lambda number: load(shop.schemas[number])).parked) == [A.topic]


def test_a_table_with_the_most_columns_is_read() -> None:
    """PostgreSQL's limit is 1,600."""
    names = {f"c{number}": "numeric(10,2)" for number in range(1600)}
    wide = Table("public.wide", names, key=["c0"])
    assert load(wide.value_text)["type"] == "record"


@pytest.mark.parametrize("name", SCHEMAS)
def test_an_empty_topic_with_a_schema_of_another_program_is_left_out(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    access = GivenAccess(((7, SCHEMAS[name]),), ((value_subject(A.topic), (7,)),))
    connection = Connection("127.0.0.1:1", "testing", registry=access)
    tables = EmptyTables(cast(Cluster, EmptyTopic()), connection)
    assert [tables.look([]), tables.look([]), tables.look([])] == [[], [], []]
    (line,) = [one for one in caplog.messages if "has no row yet, and is not in the mirror" in one]
    assert line.startswith(A.topic)


class EmptyTopic:
    """A cluster with the topic of a table and no record in it."""

    def partitions(self) -> dict[str, list[int]]:
        return {A.topic: [0]}

    def high_watermarks(self, places: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(places, 0)
