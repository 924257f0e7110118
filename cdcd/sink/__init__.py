"""The sink: records in, durable Kafka records and one progress record per group out.

`producer` writes and commits, `client` is its current confluent producer, `progress` is the format of the progress
record, `topics` creates topics, `names` derives their names, `error_map` is the one table from Kafka's error codes to
cdcd's errors.
Must not: import config, know PostgreSQL, or decide whether an operation is retried.
"""
