"""pgoutput: the bytes of PostgreSQL's logical replication messages, read.

In: the payload of one XLogData message.  Out: one frozen message object, in wire form.
Invariant: `messages` is the one table; `decode` derives from it, and so does the writer that tests use.
Must not: know the order of messages, keep state, look anything up. That is `cdcd.txn` and beyond.
"""
