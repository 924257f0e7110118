"""Monitoring: the state of the daemon and of its server while the daemon streams.

In: reports of a session's parts; queries of the slot, the publications and the sessions on the server.
Out: `Status` (probes, metrics, /status), `Waits`, and errors that end the session.
Invariant: nothing here writes a record or confirms a position. Monitoring and the pipeline do not import each other.
Must not: lock a user's table, wait for Kafka, show a row value.
"""
