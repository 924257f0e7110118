"""What the comparison of a mirror fills in: only the default of a column that the row's last record lacks."""

from __future__ import annotations

import pyarrow as pa

from tests.faults.assertions.folds import Fold
from tests.faults.facts import Table
from tests.faults.mirrored import with_defaults


def test_only_a_column_that_was_not_sent_gets_its_default() -> None:
    sent = Fold(Table("coded", ("code",)))
    sent.put({"code": "1"})
    sent.put({"code": "2", "added": None})
    sent.put({"code": "3", "added": "8"})
    rows = pa.table({"code": [1, 2, 3, 4], "added": pa.array([None, None, 8, None], pa.int32())})
    found = with_defaults(rows, sent, {"added": 7, "of another table": "x"})
    assert found.schema == rows.schema
    assert found["added"].to_pylist() == [7, None, 8, None]
