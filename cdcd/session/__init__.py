"""The session: one walsender connection and one producer epoch, from the checks of a start to its end.

In: a `Config`, a stop event.  Out: an orderly end, or the error that ended the session.
In the order of a session: `start_checks/` (all that may refuse a start), `start_state` (fence, read again, decide),
`gap` (mark an accepted gap), `snapshot_handover` (with `slot_creation`, `snapshot_copy`), `streaming`, `closing`;
`session` runs them. In the background run `topic_watch`, `schema_warnings` and `rotation`. `option_downgrade` decides
which options of the stream the next session leaves out; `fencing` decides who has ended the producer.
Invariant: nothing of a session outlives it (F9), except the records that are durable in Kafka. The next session reads
them there (F76).
"""
