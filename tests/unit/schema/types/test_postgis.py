"""PostGIS: values known from elsewhere; fastavro judges the bytes."""

from __future__ import annotations

import pytest

from cdcd.model import PgType
from cdcd.schema.codec import UNREADABLE
from cdcd.schema.resolve import resolve
from tests.support.avro_types import (
    GEOGRAPHY,
    GEOMETRY,
    codec,
    read,
)

POINT_4326 = (
    "0101000020E6100000000000000000F03F0000000000000040"  # SELECT ST_SetSRID(ST_MakePoint(1, 2), 4326)
)


@pytest.mark.parametrize("oid", [GEOMETRY, GEOGRAPHY])
def test_a_geometry_is_its_ewkb(oid: int) -> None:
    found = codec(oid)
    assert found.avro == "bytes"
    assert read(found.text(POINT_4326.encode()), "bytes") == bytes.fromhex(POINT_4326)


@pytest.mark.parametrize("text", ["", "POINT(1 2)", "010"])
def test_text_that_the_server_does_not_write_is_unreadable(text: str) -> None:
    with pytest.raises(UNREADABLE):
        codec(GEOMETRY).text(text.encode())


def test_a_geometry_of_nobody_known_is_text() -> None:
    mine = {1: PgType(1, "public", "geometry", "b")}
    assert resolve(1, -1, mine).codec.avro == "string"
