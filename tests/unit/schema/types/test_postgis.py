"""PostGIS: independently known values; fastavro decodes the bytes."""

from __future__ import annotations

import pytest

from cdcd.model import PgType
from cdcd.schema.codec import UNREADABLE
from cdcd.schema.resolve import resolve
from tests.support.avro_types import GEOGRAPHY, GEOMETRY, TYPES, codec, read

# What PostGIS 3.3 prints.
SHAPES = {
    "POINT(1 2)": "0101000000000000000000F03F0000000000000040",
    "SRID=4326;POINT(1 2)": "0101000020E6100000000000000000F03F0000000000000040",
    "POINT ZM (1 2 3 4)": "01010000C0000000000000F03F000000000000004000000000000008400000000000001040",
    "POINT EMPTY": "0101000000000000000000F87F000000000000F87F",
    "SRID=3857;GEOMETRYCOLLECTION EMPTY": "0107000020110F000000000000",
    "LINESTRING(0 0,1e300 -1e-300)": (
        "010200000002000000000000000000000000000000000000009C7500883CE4377E59F3F8C21F6EA581"
    ),
}


@pytest.mark.parametrize("oid", [GEOMETRY, GEOGRAPHY])
@pytest.mark.parametrize("text", SHAPES.values(), ids=SHAPES)
def test_a_geometry_is_its_ewkb(oid: int, text: str) -> None:
    found = codec(oid)
    assert (found.avro, found.binary is not None) == ("bytes", True)
    assert read(found.text(text.encode()), "bytes") == bytes.fromhex(text)
    assert found.binary(bytes.fromhex(text)) == found.text(text.encode())


def test_an_array_of_geometries_has_a_delimiter_of_its_own() -> None:
    types = {**TYPES, 1: PgType(1, "public", "_geometry", "b", GEOMETRY)}
    first, second = list(SHAPES.values())[:2]
    found = resolve(1, -1, types).codec
    encoded = found.text(f"{{{first}:NULL:{second}}}".encode())
    assert read(encoded, found.avro) == [bytes.fromhex(first), None, bytes.fromhex(second)]


@pytest.mark.parametrize("text", ["", "POINT(1 2)", "010"])
def test_text_that_the_server_does_not_write_is_unreadable(text: str) -> None:
    with pytest.raises(UNREADABLE):
        codec(GEOMETRY).text(text.encode())


def test_a_geometry_of_nobody_known_is_text() -> None:
    mine = {1: PgType(1, "public", "geometry", "b")}
    assert resolve(1, -1, mine).codec.avro == "string"
