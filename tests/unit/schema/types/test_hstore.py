"""hstore: independently known values; fastavro decodes the bytes."""

from __future__ import annotations

import pytest

from cdcd.model import PgType
from cdcd.schema.codec import UNREADABLE
from cdcd.schema.resolve import resolve
from tests.support.avro_types import HSTORE, codec, read


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ('"a"=>"1"', {"a": "1"}),
        ('"a"=>NULL, "b"=>"NULL", "c"=>""', {"a": None, "b": "NULL", "c": ""}),
        ('""=>"x"', {"": "x"}),
        ('"q\\"uo\\\\te"=>"=>, \\"b\\"=>NULL"', {'q"uo\\te': '=>, "b"=>NULL'}),
        ('"☕"=>"line\nbreak"', {"☕": "line\nbreak"}),
    ],
)
def test_text(text: str, expected: dict[str, str | None]) -> None:
    found = codec(HSTORE)
    assert found.avro == {"type": "map", "values": ["null", "string"]}
    assert read(found.text(text.encode()), found.avro) == expected


@pytest.mark.parametrize(
    "text",
    ['"a"', '"a"=>', '"a"=>null', 'a=>"1"', '"a"=>"1",', '"a"=>"1", ', '"a"=>"1","b"=>"2"', '"a"=>"1"\n',
     '"a\\x"=>"1"', '"a"=>"1'],
)  # fmt: skip
def test_text_that_the_server_does_not_write_is_unreadable(text: str) -> None:
    with pytest.raises(UNREADABLE):
        codec(HSTORE).text(text.encode())


def test_another_extensions_hstore_is_text() -> None:
    other = {1: PgType(1, "public", "hstore", "b", extension="else"), 2: PgType(2, "public", "hstore", "b")}
    assert [resolve(oid, -1, other).codec.avro for oid in other] == ["string", "string"]
