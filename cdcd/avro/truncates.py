"""Tell the truncates of a topic from rows without a key.

In: a relation's plan, the value of a record without a key, of any version of the table.  Out: what it is.
Invariant: a value is a truncate or a marker only if its bytes say so; unknown is None.
Must not: decode a row.
"""

from __future__ import annotations

from cdcd.avro.encode import OPS
from cdcd.avro.field_offsets import field_offsets, named_types
from cdcd.avro.plan import HEADER_BYTES, RelationPlan
from cdcd.avro.transaction import NULL
from cdcd.errors import SchemaError
from cdcd.schema.flat import FLAT_PROPERTY


def is_truncate(plan: RelationPlan, value: bytes) -> bool | None:
    """Return whether a record without a key is a truncate, False for a marker, None if it is neither, or unknown.

    The rows of a truncate and of a marker are null, so that in an envelope the schema of any version reads them.
    """
    schema = plan.value_schema
    no_row = plan.null_row if plan.is_flat else NULL + NULL
    if value[HEADER_BYTES : HEADER_BYTES + len(no_row)] != no_row:
        return None
    try:
        spans = field_offsets(schema, value, HEADER_BYTES, named_types(schema))
        start, end = spans[schema[FLAT_PROPERTY]["op"] if plan.is_flat else "op"]
    except (SchemaError, KeyError):
        return None
    op = value[start:end]
    return op == OPS["t"] if op in (OPS["t"], OPS["g"]) else None
