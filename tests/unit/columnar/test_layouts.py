"""Records whose skipped fields are at the same places as before are skipped at once: no other record may be taken for
one of them. The C extension equals its Python fallback, which looks at each field.
"""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from cdcd.columnar import decoder
from cdcd.columnar.decoder import RecordDecoder
from cdcd.columnar.fallback import HEADER_BYTES, ColumnsInPython
from tests.support.arrow_values import shown
from tests.support.nightly import nightly_except

from .avro_types import written

SKIPPED: list[tuple[str, Any]] = [
    ("text", "string"),
    ("number", "long"),
    ("maybe_text", ["null", "string"]),
    ("maybe_number", ["long", "null"]),
    ("flag", "boolean"),
    ("single", "float"),
    ("double", ["null", "double"]),
    ("nanoseconds", "long"),
    ("largest", "long"),
    ("bytes", "bytes"),
]
FIELDS = [*SKIPPED, ("wanted", "long"), ("last", "string")]
AVRO = {"type": "record", "name": "row", "fields": [{"name": name, "type": type_} for name, type_ in FIELDS]}
WANTED = pa.schema([("wanted", pa.int64())])


def value(chance: random.Random, *, like_before: bool, is_short: bool) -> dict[str, Any]:
    """Return a record; mostly the fields have the same sizes as in other ones."""
    size = 5 if like_before else chance.choice([0, 5, 63, 64, 200])
    is_null = not like_before and chance.random() < 0.5
    return {
        "text": chance.choice("abc") * size,
        "number": chance.randrange(8192, 2**20) if like_before else chance.randrange(-(2**63), 2**63),
        "maybe_text": None if is_null else chance.choice("xy") * 3,
        "maybe_number": None if is_null else chance.randrange(64, 8192),
        "flag": chance.random() < 0.5,
        "single": chance.random(),
        "double": None if is_null else chance.random(),
        "nanoseconds": 1_700_000_000_000_000_000 + chance.randrange(10**15),
        "largest": 7
        if is_short
        else chance.choice([2**63 - 1, -(2**63)]),  # ten bytes are never skipped at once
        "bytes": chance.randbytes(4),
        "wanted": chance.randrange(10**6),
        "last": "z" * chance.randrange(12),
    }


def broken(chance: random.Random, record: bytes) -> bytes:
    """Return the record cut, or with a changed, added or removed byte."""
    place = chance.randrange(HEADER_BYTES, len(record))
    put = chance.choice(
        [b"", bytes([record[place] ^ (1 << chance.randrange(8))]), b"\x02", b"\x80", b"\xff" * 9]
    )
    rest = b"" if chance.random() < 0.2 else record[place + chance.randrange(2) :]
    return record[:place] + put + rest


@pytest.mark.parametrize("seed", nightly_except(range(100), *range(25)))
def test_only_equal_layouts_are_skipped_at_once(seed: int) -> None:
    chance = random.Random(seed)
    usual, is_short = chance.choice([0.5, 0.9, 1.0]), chance.random() < 0.8
    records = [
        written(AVRO, value(chance, like_before=chance.random() < usual, is_short=is_short))
        for _ in range(60)
    ]
    records = [broken(chance, one) if chance.random() < 0.3 else one for one in records]
    found = [
        RecordDecoder(WANTED, lambda number: AVRO, columns_class).decode(pa.array(records, pa.binary()))
        for columns_class in (decoder.Columns, ColumnsInPython)
    ]
    assert found[0].bad == found[1].bad
    assert shown(found[0].rows) == shown(found[1].rows)


def test_a_record_that_is_cut_after_one_with_the_same_layout_is_broken() -> None:
    whole = written(AVRO, value(random.Random(1), like_before=True, is_short=True))
    for size in range(HEADER_BYTES, len(whole)):
        decoded = RecordDecoder(WANTED, lambda number: AVRO).decode(
            pa.array([whole, whole, whole[:size], whole], pa.binary())
        )
        assert [one.row for one in decoded.bad] == [2], size
