"""The pipeline: items of one walsender session become Kafka transactions, and the position that may be confirmed.

In: items from the source.  Out: records and progress records through the sink; `confirm(safe LSN)`.
`pump` passes each item on, and `event_encoder` encodes its rows by the plans of `plans`, which has the schemas from
`topic_schemas`; `own_topics` encodes events that are not rows. `stream_progress` has the positions. `writer` writes
the records, commits groups and confirms. `buffers` bounds memory, `partial_transaction` drops the changes that an
earlier session wrote, `dead_letters` replaces records that are larger than Kafka allows.
Invariant: a position is confirmed only after the Kafka transaction with its progress record was committed (F7, F64).
Must not: decide where a session begins, or import the monitors; the package reports through its own protocols.
"""
