"""One module per type family: the Avro fragment, the text encoder and, where exact, the binary encoder.

Each family exports `BUILDERS`: type oid -> function of the type modifier -> `Codec`. `resolve` puts them
together. `Codec.binary` is a direct way from the send format to Avro. Whether binary can be read at all decides
`binary_format.table`, by which arrays, composites and ranges of the type are read too: a new type is entered there.
The text encoders rely on the session's settings: DateStyle ISO, IntervalStyle postgres, TimeZone
UTC, extra_float_digits 3, bytea_output hex, client encoding UTF8 (F53).
"""
