"""Framed Avro records to Arrow columns: no Python object for a record or a value.

    Arrow binary column + writer schemas (by id) -> program (a plan per schema) -> columns of one Arrow schema

In: values or keys of Kafka records (0x00, schema id, Avro binary) and the schemas of their ids.
Out: Arrow arrays.  Pure: no I/O, no Spark; `_arrow` is the C extension, `fallback` its specification.
`_arrow` also turns librdkafka's messages into record batches, for `cdcd.spark.source.ranges`, which has the fallback.
"""
