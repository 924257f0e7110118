"""A committed transaction whose records no reader sees, because a killed broker did not write its markers (F86).

In: the sink's settings, after init_transactions; the LSN that PostgreSQL's slot is confirmed up to.
Out: the progress record of such a transaction, or None.
Invariant: the slot proves the commit. cdcd confirms an LSN only after Kafka has reported the commit of the progress
record that ends there, so the one undecided record that ends at the confirmed LSN is that of a committed transaction.
Without this proof nothing is returned: an aborted transaction must not become visible.
Must not: write.
"""

from __future__ import annotations

import time

from confluent_kafka import Consumer

from cdcd.lsn import Lsn
from cdcd.model import Progress
from cdcd.sink.client_log import CLIENT_LOG
from cdcd.sink.error_map import making_client
from cdcd.sink.progress import key_of
from cdcd.sink.reader import bounds, last_in
from cdcd.sink.settings import SinkSettings, reader_properties


def hidden_progress(settings: SinkSettings, confirmed_lsn: Lsn) -> Progress | None:
    """Return the progress of the slot's committed transaction above the last stable offset, None without one.

    Blocks up to the operation timeout. Raises SinkUnavailable at the deadline, TopicMissing, SinkAuthorization,
    ProgressUnreadable.
    """
    _, end = bounds(settings, settings.progress_topic)
    _, stable = bounds(settings, settings.progress_topic, is_committed=True)
    with making_client():
        consumer = Consumer(
            {**reader_properties(settings), "isolation.level": "read_uncommitted"}, logger=CLIENT_LOG
        )
    deadline, key = time.monotonic() + settings.operation_timeout_s, key_of(settings.slot)
    try:
        last = last_in(consumer, settings, stable, end, deadline, key)
        if last is None or last_in(consumer, settings, stable, last.offset, deadline, key) is not None:
            return None  # of several records, some may be those of aborted transactions
    finally:
        consumer.close()
    progress = last.progress
    is_proven = progress is not None and progress.end_lsn == confirmed_lsn
    is_own = progress is not None and progress.transactional_id == settings.transactional_id
    return progress if is_proven and is_own else None
