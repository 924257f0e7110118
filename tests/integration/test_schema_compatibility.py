"""cdcd's own compatibility check, compared with a real registry and with fastavro on the same pairs."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from fastavro.utils import generate_many

from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.schema.compatibility import differences
from tests.support.topics import new_name
from tests.unit.schema.compatibility_cases import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_registry_says_the_same(case: Case, registry: SchemaRegistry) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    subject = new_name("compatibility") + "-value"
    client.set_compatibility(subject, "BACKWARD")
    client.register_schema(subject, Schema(json.dumps(case.writer), "AVRO"))
    passes = client.test_compatibility(subject, Schema(json.dumps(case.reader), "AVRO"), "latest")
    assert passes is (case.is_stricter or not differences(case.reader, case.writer))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_fastavro_reads_what_differs_in_nothing(case: Case) -> None:
    """A hundred values written under one schema: the other reads all of them exactly if cdcd finds no difference."""
    if case.is_stricter:
        return
    assert reads_all(case.writer, case.reader) is (not differences(case.reader, case.writer))


def reads_all(writer: Any, reader: Any) -> bool:
    for value in generate_many(writer, 100):
        body = io.BytesIO()
        fastavro.schemaless_writer(body, writer, value)
        body.seek(0)
        try:
            fastavro.schemaless_reader(body, writer, reader)
        except (
            fastavro.schema.SchemaParseException,
            fastavro.read.SchemaResolutionError,
            ValueError,
            TypeError,
        ):
            return False
    return True
