"""The session: one walsender connection and one producer epoch, from the checks of a start to its end.

In: a `Config`, a stop event.  Out: an orderly end, or the error that ended it.
In the order of a session: `start_checks/` (what may refuse a start), `start_state` (fence, read again, decide), `gap`
(mark an accepted gap), `snapshot_handover` (with `slot_creation`, `snapshot_copy`), `streaming`, `closing`; `session`
goes through them. In the background run `topic_watch`, `schema_warnings` and `rotation`. `option_downgrade` decides
which options of the stream the next session leaves out, `fencing` who has ended this one's producer.
Invariant: nothing of a session outlives it (F9), except what Kafka made durable and says so itself when the next
session opens (F76).
"""
