"""Of the records without a key of a table: those that the plan of a batch needs.

In: values of records without a key.  Out: which of them are retained.
Invariant: all TRUNCATEs and markers of gaps are retained, and of the other changes, which park a table with a key,
the last. A table without a key, or one that is parked or dropped, may have any number of them in a batch. What cannot
be decoded is retained: its reader raises the error.
Must not: do I/O.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from cdcd.spark.decoding.schemas import Schema
from cdcd.spark.tables.arrow_fold import AT, AT_SOURCE, decoder_of, in_order, places_of, row_numbers
from cdcd.spark.tables.unreadable import DECODING_ERRORS, is_of_a_record

__all__ = ["are_retained"]

_WANTED = pa.schema([("op", pa.string()), ("source", pa.struct(AT_SOURCE))])
_ENDS = pa.array(["t", "g"])


def are_retained(values: pa.Array, schemas: Mapping[int, Schema]) -> pa.Array:
    """Return for each record whether it is retained."""
    try:
        rows = decoder_of(_WANTED, schemas).decode(values).rows
    except DECODING_ERRORS as error:
        if not is_of_a_record(error):
            raise
        return pa.repeat(pa.scalar(True), len(values))
    op = rows.field("op")
    retained = pc.or_(rows.is_null(), pc.fill_null(pc.is_in(op, value_set=_ENDS), False))
    number = row_numbers(len(values))
    places = pa.table({"number": number, **places_of(op, rows.field("source"))}).select(["number", *AT])
    others = in_order(places.filter(pc.invert(retained)))
    return pc.or_(retained, pc.is_in(number, value_set=others["number"][-1:].combine_chunks()))
