"""spill: what memory cannot hold of open transactions waits on disk.

In: runs and control messages of streamed transactions.  Out: the same, in order, when they commit.
Invariant: files are private, belong to one session, and are gone when it ends or at the next one's start;
nothing depends on them after a crash, because the server sends open transactions again (F27, F30).
Must not: decode rows, confirm anything, know Kafka or PostgreSQL.
"""
