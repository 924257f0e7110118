"""Relation messages -> Avro schemas and the codec of every column. Pure.

In: a `Relation`, the `PgType`s of its columns, the key columns from the catalog, the prefix.  Out: `RelationSchemas`.
Invariant: the result is a function of these arguments alone, so that every process that reads the same Relation
message writes the same schema.
Must not: do I/O, log, or put a row value into an error.
"""
