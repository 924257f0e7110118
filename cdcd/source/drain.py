"""Read the available data from libpq, up to a number of bytes, and return it as items.

In: a `CopyConnection`.  Out: `DrainResult`.
Invariant: items are in wire order and none is lost: items read before a failure are returned first, and the next call
raises the failure. A batch during which a publication was dropped is not returned (F72).
Must not: wait, or decode a message: `Batch` reads and cuts, compiled or in Python (`cdcd.extensions`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from types import ModuleType

from cdcd.errors import PublicationMissing, SourceUnavailable
from cdcd.extensions import extension
from cdcd.model import Item
from cdcd.ops.notices import NOTICES
from cdcd.source import batch as fallback
from cdcd.source.batch import BROKEN, COPY_ENDED, LATER, Batch
from cdcd.source.error_map import is_publication_notice
from cdcd.source.libpq import CopyConnection, PQconsumeInput, PQfreemem, PQgetCopyData

reading: ModuleType = extension("cdcd.source.reading") or fallback
LIBPQ = reading.Libpq(PQgetCopyData, PQfreemem, PQconsumeInput)


@dataclass(frozen=True, slots=True)
class DrainResult:
    """The result of one drain: items, the number of CopyData messages and bytes; `more`: it stopped at the limit."""

    items: list[Item]
    messages: int
    bytes: int
    more: bool


def drain(connection: CopyConnection, max_bytes: int, batches_transactions: bool = False) -> DrainResult:
    """Return the available messages, at least one if there is one, about `max_bytes` at most.

    `batches_transactions`: complete transactions are combined into one item (`TransactionBatch`).

    Raises the error for an ErrorResponse (F19), SourceUnavailable at the end of the stream or connection,
    PublicationMissing, or a ProtocolError for illegal framing.
    """
    if connection.failure is not None:
        raise connection.failure
    batch = reading.Batch(connection.in_stream, batches_transactions)
    _read(connection, batch, max_bytes)
    look_at_notices(connection)
    if not batch.messages and connection.failure is not None:
        raise connection.failure
    items, connection.in_stream = batch.finish()
    return DrainResult(items, batch.messages, batch.size_bytes, batch.size_bytes >= max_bytes)


def _read(connection: CopyConnection, batch: Batch, max_bytes: int) -> None:
    """Fill the batch; note a failure on the connection."""
    ended = batch.read(LIBPQ, connection.pgconn, max_bytes)
    text = None
    if ended == BROKEN:
        text = connection.error_message()
        ended = batch.read_rest(LIBPQ, connection.pgconn)  # this may include the server's last error
    if ended == COPY_ENDED:
        connection.failure = connection.end_of_copy()
    elif text is not None or ended != LATER:
        connection.failure = SourceUnavailable(text or connection.error_message())


def look_at_notices(connection: CopyConnection) -> None:
    """Raise PublicationMissing for the notice that a publication does not exist (F72); log other notices."""
    notices, connection.notices = connection.notices, []
    for notice in notices:
        if is_publication_notice(notice):
            connection.failure = PublicationMissing(
                f"the server continues without a publication: {notice.message}"
            )
            raise connection.failure
        # The text may quote data, so only its class and origin are logged.
        NOTICES.say(
            logging.WARNING,
            "server_notice",
            severity=notice.severity,
            sqlstate=notice.sqlstate,
            function=notice.function,
        )
