"""The reading side: topics of cdcd in PySpark, without a jar.

    Kafka -> source (ends each batch on a PostgreSQL commit) -> decode -> your own DataFrame code
                                                             -> plan, fold -> mirror: a table per topic

In: the topics that `cdcd` wrote and the schema registry.  Out: DataFrames, or Parquet tables equal to the source.
Invariant: nothing here imports what runs a daemon. Both sides share the wire format, the configuration
(`cdcd.config`), the registry's client (`cdcd.registry`) and the records of the schema topic (`cdcd.schema`).
How to connect: `connection`, `connection_options`, `secret_reference`, `client_errors`.
Pure: `cuts`, `columns`, `events`, `shape`, `fold`.  I/O: `kafka`, `schemas`, `manifest`.  Spark: `source`, `decode`,
`tasks`, `mirror`. `reading` opens a mirror, `session` a local Spark.
"""
