"""What there is to do with a column's bytes: `cdcd.schema.codec.Op` by number, and what an operation comes to."""

from libc.stdint cimport int64_t

from cdcd.schema.codec import Op

cdef enum:
    CALL = 0
    BOOLEAN_TEXT = 1
    BOOLEAN_SENT = 2
    INTEGER_TEXT = 3
    INTEGER_SENT = 4
    UNSIGNED_SENT = 5
    STRING = 6
    JSONB_SENT = 7
    BYTES = 8
    BYTEA_TEXT = 9
    REAL_TEXT = 10
    REAL_SENT = 11
    DOUBLE_TEXT = 12
    DOUBLE_SENT = 13
    DECIMAL_TEXT = 14
    DECIMAL_SENT = 15
    NUMERIC_TEXT = 16
    NUMERIC_SENT = 17
    DATE_TEXT = 18
    DATE_SENT = 19
    TIME_TEXT = 20
    TIME_SENT = 21
    TIMESTAMP_TEXT = 22
    TIMESTAMPTZ_TEXT = 23
    TIMESTAMP_SENT = 24
    UUID_TEXT = 25
    UUID_SENT = 26
    ARRAY_TEXT = 27

_KNOWN = {
    "CALL": CALL, "BOOLEAN_TEXT": BOOLEAN_TEXT, "BOOLEAN_SENT": BOOLEAN_SENT, "INTEGER_TEXT": INTEGER_TEXT,
    "INTEGER_SENT": INTEGER_SENT, "UNSIGNED_SENT": UNSIGNED_SENT, "STRING": STRING, "JSONB_SENT": JSONB_SENT,
    "BYTES": BYTES, "BYTEA_TEXT": BYTEA_TEXT, "REAL_TEXT": REAL_TEXT, "REAL_SENT": REAL_SENT,
    "DOUBLE_TEXT": DOUBLE_TEXT, "DOUBLE_SENT": DOUBLE_SENT, "DECIMAL_TEXT": DECIMAL_TEXT,
    "DECIMAL_SENT": DECIMAL_SENT, "NUMERIC_TEXT": NUMERIC_TEXT, "NUMERIC_SENT": NUMERIC_SENT,
    "DATE_TEXT": DATE_TEXT, "DATE_SENT": DATE_SENT, "TIME_TEXT": TIME_TEXT, "TIME_SENT": TIME_SENT,
    "TIMESTAMP_TEXT": TIMESTAMP_TEXT, "TIMESTAMPTZ_TEXT": TIMESTAMPTZ_TEXT, "TIMESTAMP_SENT": TIMESTAMP_SENT,
    "UUID_TEXT": UUID_TEXT, "UUID_SENT": UUID_SENT, "ARRAY_TEXT": ARRAY_TEXT,
}
if {op.name: int(op) for op in Op} != _KNOWN:
    raise ImportError("the compiled row codec was built for another version of cdcd")

cdef enum:
    DONE = 0
    LEFT = 1  # to the encoder, or to the fallback
    FAILED = -1  # a Python error is set

cdef struct Operation:
    int op
    int64_t low
    int64_t high
    int64_t max_bytes
    int element_op
    int64_t element_low
    int64_t element_high
