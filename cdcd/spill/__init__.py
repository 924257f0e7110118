"""Spill: store on disk the data of open transactions that memory cannot hold.

In: row batches and control messages of streamed transactions.  Out: the same items, in order, when they commit.
Invariant: files are private, belong to one session, and are removed when it ends or when the next session starts.
No recovery depends on them, because the server sends open transactions again after a crash (F27, F30).
Must not: decode rows, confirm anything, know Kafka or PostgreSQL.
"""
