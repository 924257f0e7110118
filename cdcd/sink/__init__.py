"""The sink: records in, durable Kafka records and one progress record per group out.

`producer` writes and commits, `client` is the one producer that it has at a time, `progress` is the form of the
progress record, `topics` makes topics, `names` gives them their names, `faults` is the one table from Kafka's error
codes to cdcd's errors.
Must not: import config, know PostgreSQL, or decide what is retried.
"""
