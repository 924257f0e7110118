"""The initial copy of tables, joined to the stream without a gap or an overlap.

In: an exported snapshot and the published tables.  Out: batches of Insert frames, so that a copied row takes the
same way as a streamed one. Invariant: what is copied is exactly what the slot's consistent point sees (F36).
"""
