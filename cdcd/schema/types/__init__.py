"""One module per type family: the Avro fragment, the text encoder and, where exact, the binary encoder.

Each family exports `BUILDERS`: type oid -> function of the type modifier -> `Codec`. `resolve` puts them
together. The text encoders rely on the session's settings: DateStyle ISO, IntervalStyle postgres, TimeZone
UTC, extra_float_digits 3, bytea_output hex, client encoding UTF8 (F53).
"""
