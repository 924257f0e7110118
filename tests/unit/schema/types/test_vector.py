"""pgvector: independently known values; fastavro decodes the bytes."""

from __future__ import annotations

import pytest

from cdcd.schema.codec import UNREADABLE
from tests.support.avro_types import HALFVEC, SPARSEVEC, VECTOR, codec, read, value_of


@pytest.mark.parametrize("oid", [VECTOR, HALFVEC])
def test_a_vector_is_an_array_of_floats(oid: int) -> None:
    found = codec(oid)
    assert found.avro == {"type": "array", "items": "float"}
    assert read(found.text(b"[1,2.5,-3e-05,0]"), found.avro) == [1, 2.5, pytest.approx(-3e-05), 0]
    assert read(found.text(b"[65504]"), found.avro) == [65504]


@pytest.mark.parametrize("text", ["", "[]", "[1", "1]", "[1,]", "[1, 2]", "(1,2)", "{1,2}", "[NULL]"])
def test_text_that_the_server_does_not_write_is_unreadable(text: str) -> None:
    with pytest.raises(UNREADABLE):
        codec(VECTOR).text(text.encode())


def test_a_sparse_vector_is_the_servers_text() -> None:
    assert codec(SPARSEVEC).avro == "string"
    assert value_of(SPARSEVEC, "{1:1.5,3:2}/5") == "{1:1.5,3:2}/5"
