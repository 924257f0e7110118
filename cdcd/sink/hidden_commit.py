"""A committed transaction whose records no reader sees, because a killed broker did not write its markers (F86).

In: the sink's settings, after init_transactions; the LSN that PostgreSQL's slot is confirmed up to.
Out: the progress record of such a transaction, or None.
Invariant: the slot proves the commit. While cdcd streams, it confirms an LSN only after Kafka has reported the commit
of a progress record that ends there. The proof is therefore the one record above the last stable offset, if it ends
at the confirmed LSN and the last record below that offset, of a stream too, ends before. Otherwise the slot has been
there already: a slot is created at the position with which a snapshot ends, and rows that are copied while streaming,
a part of a large transaction, or a prepared transaction do not move the position.
Without this proof nothing is returned: an aborted transaction must not become visible. Its records look undecided
too, while another slot's open transaction in the same topic holds the last stable offset.
Must not: write.
"""

from __future__ import annotations

import time
from typing import TypeGuard

from confluent_kafka import Consumer

from cdcd.lsn import Lsn
from cdcd.model import Progress
from cdcd.sink.client_log import CLIENT_LOG
from cdcd.sink.error_map import making_client
from cdcd.sink.progress import key_of
from cdcd.sink.reader import bounds, last_committed, last_in
from cdcd.sink.settings import SinkSettings, reader_properties


def hidden_progress(settings: SinkSettings, confirmed_lsn: Lsn) -> Progress | None:
    """Return the progress of the slot's committed transaction above the last stable offset, None without one.

    Blocks up to the operation timeout. Raises SinkUnavailable at the deadline, TopicMissing, SinkAuthorization,
    ProgressUnreadable.
    """
    _, end = bounds(settings, settings.progress_topic)
    low, stable = bounds(settings, settings.progress_topic, is_committed=True)
    hidden = _only_record(settings, stable, end)
    is_own = hidden is not None and hidden.transactional_id == settings.transactional_id
    if not is_own or not _is_of_stream(hidden) or hidden.end_lsn != confirmed_lsn:
        return None
    before = last_committed(settings, low, stable)
    has_moved = _is_of_stream(before) and before.end_lsn < hidden.end_lsn
    return hidden if has_moved else None


def _only_record(settings: SinkSettings, lower: int, upper: int) -> Progress | None:
    """Return the slot's one position in these offsets, decided or not; None without one, and of several."""
    with making_client():
        consumer = Consumer(
            {**reader_properties(settings), "isolation.level": "read_uncommitted"}, logger=CLIENT_LOG
        )
    deadline, key = time.monotonic() + settings.operation_timeout_s, key_of(settings.slot)
    try:
        last = last_in(consumer, settings, lower, upper, deadline, key)
        if last is None or last_in(consumer, settings, lower, last.offset, deadline, key) is not None:
            return None  # of several records, some may be those of aborted transactions
    finally:
        consumer.close()
    return last.progress


def _is_of_stream(progress: Progress | None) -> TypeGuard[Progress]:
    """Return whether the position is that of a stream; the record of a command with a gap follows no confirmation."""
    return progress is not None and progress.phase == "streaming" and progress.gap is None
