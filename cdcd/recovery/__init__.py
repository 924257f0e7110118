"""Recovery: where a start begins, which halt replaces it, and how a halt is resolved. Pure.

In: the stored position, the slot, the server's identity, the options of the configuration.
Out: `Resume`, `Snapshot`, an error of the tree, or the progress record that resolves a halt.
Invariant: a position is resumed only if the slot has not been confirmed beyond it and the server is the one of the
position (F3, F10). The daemon and the commands decide by the same functions.
Must not: do I/O, read a clock, import Kafka's or PostgreSQL's clients.
"""
