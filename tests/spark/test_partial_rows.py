"""F78: an old row with unlogged columns identifies no row of a table without a key: several rows may match."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cdcd.errors import MirrorInconsistent
from cdcd.spark.decoding.events import STREAM, Event, Sequence
from cdcd.spark.tables.bag_fold import fold_bag
from cdcd.spark.target.shape import Field, TableShape, arrow_schema

SHAPE = TableShape(
    "shop.public.n", False, (Field(1, "id", "id", ["null", "int"]), Field(2, "v", "v", ["null", "string"]))
)


def event(tx_seq: int, op: str, special: dict[str, str], **images: dict[str, object]) -> Event:
    before, after = images.get("before"), images.get("after")
    return Event(Sequence(1, 10, STREAM, tx_seq), op, None, before, after, (), special, 1)


def test_a_delete_by_a_part_of_a_row_removes_no_other_row() -> None:
    target = fold_bag(
        [
            event(1, "c", {}, after={"id": 3, "v": "d"}),
            event(2, "c", {}, after={"id": 3, "v": None}),
        ],
        SHAPE,
        arrow_schema(SHAPE.fields).empty_table(),
    )
    assert target.num_rows == 2
    delete = event(3, "d", {"before.v.not_logged": "true"}, before={"id": 3, "v": None})
    with pytest.raises(MirrorInconsistent, match="only the partition's replica identity") as caught:
        fold_bag([delete], SHAPE, target)
    assert "format.key_columns" in str(caught.value)
    assert isinstance(target, pa.Table)
