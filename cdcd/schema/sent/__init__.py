"""What send functions wrote -> what output functions would have written, byte for byte.

`table.text_of_sent` is the way in: a type's oid -> a function of the sent bytes, or None where no exact reading is
known. With it a value that came in binary takes the same way into Avro as one that came as text. The texts are those
of the replication session's settings: DateStyle ISO, IntervalStyle postgres, TimeZone UTC, extra_float_digits 3,
bytea_output hex, client encoding UTF8 (F53).
Invariant: the text is exactly the server's, or the function raises one of `codec.UNREADABLE`; what it allocates is
bounded by the length of what was sent.
"""
