"""The pipeline: items of one walsender session become Kafka transactions, and the position that may be confirmed.

In: items from the source.  Out: records and progress records through the sink; `confirm(safe LSN)`.
A row comes in at `pump` (which encodes it by a plan of `plans`) and goes out at `writer`, which commits groups and
confirms. `buffers` bounds memory, `partial_transaction` knows what an earlier session wrote, `dead_letters` takes
records that are larger than Kafka allows.
Invariant: a position is confirmed only after the Kafka transaction with its progress record was committed (F7, F64).
Must not: decide where a session begins, know the monitors; it reports through protocols that it defines itself.
"""
