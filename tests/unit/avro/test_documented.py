"""docs/records.md lists each field of each schema, in order, with its type, and the options of a TRUNCATE."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cdcd.avro.logical_message import message_key_schema, message_value_schema
from cdcd.avro.transaction_metadata import metadata_key_schema, metadata_value_schema
from cdcd.schema.envelope import envelope_schema, source_schema, transaction_schema
from cdcd.schema.flat import flat_schema
from cdcd.schema.policy import FlatNames

TEXT = (Path(__file__).parents[3] / "docs" / "records.md").read_text()
VALUE = {"type": "record", "name": "n.Value", "fields": []}


def section(title: str) -> str:
    return re.split(r"(?m)^#+ ", TEXT.split(f"# {title}\n")[1])[0]


def documented(title: str) -> list[tuple[str, str]]:
    """Return names and types from the section's table."""
    return re.findall(r"(?m)^\| `(\w+)` \| ([\w ]+) \|", section(title))


def spoken(avro: Any) -> str:
    """Return the document's name of a type."""
    if isinstance(avro, list):
        (kind,) = [one for one in avro if one != "null"]
        return f"{spoken(kind)} or null"
    if not isinstance(avro, dict):
        return "row" if avro == VALUE["name"] else str(avro)
    inner = {"array": "items", "map": "values"}.get(avro["type"])
    if inner is not None:
        return f"{avro['type']} of {spoken(avro[inner])}"
    return "row" if avro is VALUE else str(avro["type"])


def collections_schema() -> Any:
    (field,) = [one for one in metadata_value_schema()["fields"] if one["name"] == "data_collections"]
    return field["type"][1]["items"]


@pytest.mark.parametrize(
    ("title", "schema"),
    [
        ("A table's record", envelope_schema("n", VALUE)),
        ("source", source_schema()),
        ("transaction", transaction_schema()),
        ("A flat table's record", flat_schema("n.Value", [], FlatNames(), "n", {})),
        ("A logical message's record", message_value_schema("n")),
        ("A transaction's record", metadata_value_schema()),
        ("data_collections", collections_schema()),
    ],
)
def test_every_field_is_there_with_its_type(title: str, schema: Any) -> None:
    assert documented(title) == [(field["name"], spoken(field["type"])) for field in schema["fields"]]


@pytest.mark.parametrize(
    ("title", "schema"),
    [
        ("A logical message's record", message_key_schema("n")),
        ("A transaction's record", metadata_key_schema()),
    ],
)
def test_the_fields_of_the_keys_are_there(title: str, schema: Any) -> None:
    (field,) = schema["fields"]
    assert f"the key is a record with the field `{field['name']}`" in section(title)
