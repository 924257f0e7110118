"""The initial copy of tables, joined to the stream without a gap or an overlap.

In: an exported snapshot and the published tables.  Out: batches of Insert frames, so that a copied row takes the same
path as a streamed one. Invariant: the copied rows are exactly those visible at the slot's consistent point (F36).
"""
