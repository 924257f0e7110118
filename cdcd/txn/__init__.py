"""Assemble items of the wire into transactions, in commit order.

In: `model.Item`s of one walsender session.  Out: `events`.
Invariant: no event of a streamed transaction is returned before its Stream Commit. The table in `states` lists the
messages that are legal in each state; any other message is an error.
Must not: do I/O, read the clock, decode a row.
"""
