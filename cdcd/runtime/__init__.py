"""The only room that knows all rooms: the flow (`pump`, `writer`), its sessions, and what happens on errors.

In: a `Config`.  Out: a running daemon, and its exit status.
Invariant: one session is one walsender connection and one producer epoch; nothing of a session outlives it
(F9), except what Kafka made durable and says so itself when the next session opens (F76).
"""
