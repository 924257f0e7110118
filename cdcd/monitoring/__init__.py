"""Monitoring: what the daemon knows of itself and of its server while it streams.

In: what the parts of a session report; looks at the slot, the publications and the sessions on the server.
Out: `Status` (probes, metrics, /status), `Waits`, and the errors that a look ends the session with.
Invariant: nothing here writes a record or confirms a position. Monitoring and the pipeline do not know each other.
Must not: lock a user's table, wait for Kafka, show a row value.
"""
