"""One module per type family: the Avro fragment, the text encoder and, where exact, the binary encoder.

Each family exports `BUILDERS`: type oid -> function of type modifier and policy -> `Codec`; `resolve` combines them.
`Codec.binary` encodes the send format directly to Avro. `binary_format.table` decides whether binary can be decoded
at all, also for arrays, composites and ranges of the type: add a new type there. The text encoders rely on the
session's settings: DateStyle ISO, IntervalStyle postgres, TimeZone UTC, extra_float_digits 3, bytea_output hex,
client encoding UTF8 (F53).
"""
