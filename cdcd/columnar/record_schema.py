"""The columns of Kafka's records in Arrow.

In: nothing.  Out: the schema of the batches that `_messages` and its fallback return.
Invariant: `format("cdcd")` has these columns too; a change of them is a change for users.
"""

from __future__ import annotations

import pyarrow as pa

RAW_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
"""The rows of `format("cdcd")` as an Arrow schema."""
RAW_DDL = "topic string, partition int, offset long, timestamp timestamp_ltz, key binary, value binary"
"""The same as Spark writes a schema. `timestamp` alone is TIMESTAMP_NTZ in a session that says so."""
