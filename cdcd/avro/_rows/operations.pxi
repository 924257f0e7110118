"""The operations on a column's bytes, with the numbers of `cdcd.schema.codec.Op`, and their results."""

from libc.stdint cimport int64_t

from cdcd.schema.codec import Op

cdef enum:
    CALL = 0
    BOOLEAN_TEXT = 1
    BOOLEAN_BINARY = 2
    INTEGER_TEXT = 3
    INTEGER_BINARY = 4
    UNSIGNED_BINARY = 5
    STRING = 6
    JSONB_BINARY = 7
    BYTES = 8
    BYTEA_TEXT = 9
    REAL_TEXT = 10
    REAL_BINARY = 11
    DOUBLE_TEXT = 12
    DOUBLE_BINARY = 13
    DECIMAL_TEXT = 14
    DECIMAL_BINARY = 15
    NUMERIC_TEXT = 16
    NUMERIC_BINARY = 17
    DATE_TEXT = 18
    DATE_BINARY = 19
    TIME_TEXT = 20
    TIME_BINARY = 21
    TIMESTAMP_TEXT = 22
    TIMESTAMPTZ_TEXT = 23
    TIMESTAMP_BINARY = 24
    UUID_TEXT = 25
    UUID_BINARY = 26
    ARRAY_TEXT = 27

_KNOWN = {
    "CALL": CALL, "BOOLEAN_TEXT": BOOLEAN_TEXT, "BOOLEAN_BINARY": BOOLEAN_BINARY,
    "INTEGER_TEXT": INTEGER_TEXT, "INTEGER_BINARY": INTEGER_BINARY, "UNSIGNED_BINARY": UNSIGNED_BINARY,
    "STRING": STRING, "JSONB_BINARY": JSONB_BINARY, "BYTES": BYTES, "BYTEA_TEXT": BYTEA_TEXT,
    "REAL_TEXT": REAL_TEXT, "REAL_BINARY": REAL_BINARY, "DOUBLE_TEXT": DOUBLE_TEXT,
    "DOUBLE_BINARY": DOUBLE_BINARY, "DECIMAL_TEXT": DECIMAL_TEXT, "DECIMAL_BINARY": DECIMAL_BINARY,
    "NUMERIC_TEXT": NUMERIC_TEXT, "NUMERIC_BINARY": NUMERIC_BINARY, "DATE_TEXT": DATE_TEXT,
    "DATE_BINARY": DATE_BINARY, "TIME_TEXT": TIME_TEXT, "TIME_BINARY": TIME_BINARY,
    "TIMESTAMP_TEXT": TIMESTAMP_TEXT, "TIMESTAMPTZ_TEXT": TIMESTAMPTZ_TEXT,
    "TIMESTAMP_BINARY": TIMESTAMP_BINARY, "UUID_TEXT": UUID_TEXT, "UUID_BINARY": UUID_BINARY,
    "ARRAY_TEXT": ARRAY_TEXT,
}
if {op.name: int(op) for op in Op} != _KNOWN:
    raise ImportError("the compiled row codec was built for another version of cdcd")

cdef enum:
    DONE = 0
    DECLINED = 1  # the column's encoder, or the Python fallback, has to encode it
    FAILED = -1  # a Python error is set

cdef struct Operation:
    int op
    int64_t low
    int64_t high
    int64_t max_bytes
    int element_op
    int64_t element_low
    int64_t element_high
