"""Values in PostgreSQL's binary format -> the text format of the same values, byte for byte.

`table.text_of_binary` is the way in: a type's oid -> a function of the binary value, or None where no exact reading
is known. With it a binary value takes the same way into Avro as a text. The texts are those of the replication
session's settings: DateStyle ISO, IntervalStyle postgres, TimeZone UTC, extra_float_digits 3,
bytea_output hex, client encoding UTF8 (F53).
Invariant: the text is exactly the server's, or the function raises one of `codec.UNREADABLE`; what it allocates is
bounded by the length of the value.
"""
