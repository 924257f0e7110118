"""Recovery: where a start begins, which halt it meets instead, and how a halt is resolved. Pure.

In: the stored position, the slot, the server's identity, what the configuration wants.
Out: `Resume`, `Snapshot`, an error of the tree, or the progress record that resolves a halt.
Invariant: a position is resumed only when the slot has not been confirmed beyond it and the server is the one that it
was taken from (F3, F10). The daemon and the commands decide by the same functions.
Must not: do I/O, read a clock, know Kafka's or PostgreSQL's clients.
"""
