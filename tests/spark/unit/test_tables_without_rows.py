"""A table whose topic has no schema yet, because it never had a row, in the option `table`."""

from __future__ import annotations

import pytest

from cdcd.errors import SparkReadError
from cdcd.spark import data_source
from cdcd.spark.clients.connection import Connection
from cdcd.spark.source.table_options import table_options
from tests.spark.events import column
from tests.support.decoded import given, schema

ITEMS, NEW, LOST = "shop.public.items", "shop.public.new", "shop.public.lost"


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Connection:
    """ITEMS has rows and a schema, NEW has neither; LOST has records whose schemas the registry does not have."""
    monkeypatch.setattr(data_source, "existing_tables", lambda _: [ITEMS, NEW, LOST])
    monkeypatch.setattr(data_source, "is_without_records", lambda _, topic: topic == NEW)
    schemas = given({1: schema(column("name", "string"))}, {ITEMS: (1,)})
    return Connection("127.0.0.1:1", "shop", registry=schemas)


def topics_read(connection: Connection, table: str) -> list[str]:
    tables = table_options({"table": table})
    assert tables is not None
    return [one.topic for one in data_source._decoding(connection, tables).versions]


def test_a_pattern_leaves_out_a_table_that_never_had_a_row(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    assert topics_read(connection, "public.[in]*") == [ITEMS]
    assert [NEW in line and "no row yet" in line for line in caplog.messages] == [True]


@pytest.mark.parametrize(
    "table", ["public.new", "public.items,public.new", "public.*,public.new", "public.n*"]
)
def test_a_table_that_was_named_or_is_the_only_one_is_an_error(connection: Connection, table: str) -> None:
    with pytest.raises(
        SparkReadError, match="cdcd registers the schemas of a table with its first row"
    ) as raised:
        topics_read(connection, table)
    assert raised.value.context["subject"] in (f"{NEW}-value", f"{LOST}-value")


def test_a_topic_with_records_and_no_schema_is_never_left_out(connection: Connection) -> None:
    with pytest.raises(SparkReadError, match="there is no value schema"):
        topics_read(connection, "public.*")
