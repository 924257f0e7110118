"""txn: items of the wire in, transactions out, in commit order.

In: `model.Item`s of one walsender session.  Out: `events`.
Invariant: nothing of a streamed transaction leaves before its Stream Commit; what may follow what is the
table in `states`, and a pair that it does not list is an error.
Must not: do I/O, read the clock, look inside a row.
"""
