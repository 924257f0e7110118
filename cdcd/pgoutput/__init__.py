"""Decode PostgreSQL's logical replication messages (pgoutput).

In: the payload of one XLogData message.  Out: one frozen message object, in wire form.
Invariant: `messages` is the only message table; `decode` and the writer of the tests are derived from it.
Must not: know the order of messages, have state, look anything up; `cdcd.txn` and its callers do.
"""
