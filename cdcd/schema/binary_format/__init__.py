"""Values in PostgreSQL's binary format -> the text format of the same values, byte for byte.

`table.text_of_binary` is the entry point: a type's oid -> a function of the binary value, or None where the format
cannot be decoded exactly. The text encoders then encode the binary value as its text. The texts have the format of
the replication session's settings: DateStyle ISO, IntervalStyle postgres, TimeZone UTC, extra_float_digits 3,
bytea_output hex, client encoding UTF8 (F53).
Invariant: the text is exactly the server's, or the function raises one of `codec.UNREADABLE`; the length of the value
limits the memory that the function allocates.
"""
