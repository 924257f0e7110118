# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Framed Avro records to Arrow columns, as a C extension. `cdcd.columnar.fallback` is its Python fallback and its
specification: equal columns, or the same fault of the same record. `_arrow/messages.pxi` has the step before it:
librdkafka's messages to the binary columns.

    record: 0x00 | schema id, int32 big-endian | Avro binary of the schema's record
    columns: a validity bitmap each (absent without nulls), then numbers, or offsets and bytes, or offsets and items

In: the buffers of a binary Arrow column, and programs.  Out: Arrow arrays that own the columns' memory.
Invariant: no byte is read beyond a record, and none is written beyond a buffer's capacity. After a fault the columns
have none of the record's values.
Must not: create a Python object for a record or a value, hold the GIL while it decodes, or fetch a schema.
"""

include "../big_endian.pxi"
include "../function_address.pxi"
include "_arrow/input.pxi"
include "_arrow/buffer.pxi"
include "_arrow/store.pxi"
include "_arrow/program.pxi"
include "_arrow/value.pxi"
include "_arrow/columns.pxi"
include "_arrow/messages.pxi"
