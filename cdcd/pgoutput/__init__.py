"""pgoutput: the bytes of PostgreSQL's logical replication messages, read and written.

In: the payload of one XLogData message.  Out: one frozen message object, in wire form.
Invariant: `messages` is the one table; `decode`, `encode` and the tests derive from it.
Must not: know the order of messages, keep state, look anything up. That is `cdcd.txn` and beyond.
"""
