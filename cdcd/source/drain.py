"""Read what libpq has, up to a number of bytes, and hand it on as items.

In: a `CopyConnection`.  Out: `Drained`.
Invariant: items come in wire order and none is lost: what was read before a failure is returned first, the
failure is raised by the next call; a batch in which the server dropped a publication is not returned (F72).
Must not: wait. The twin of the compiled drain; one loop, nothing per row but bytes.
"""

from __future__ import annotations

import logging
from ctypes import byref, c_void_p, string_at
from dataclasses import dataclass

from cdcd.errors import PublicationMissing, SourceUnavailable
from cdcd.model import Item
from cdcd.source.copyboth import cut_items
from cdcd.source.failures import is_publication_notice
from cdcd.source.libpq import CopyConnection, PQconsumeInput, PQfreemem, PQgetCopyData
from cdcd.txn.whole import gathered

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Drained:
    """What one drain brought: items, their CopyData messages and bytes; `more`: stopped at the limit."""

    items: list[Item]
    messages: int
    bytes: int
    more: bool


def drain(connection: CopyConnection, max_bytes: int, gathers: bool = False) -> Drained:
    """Return what there is now, at least one message if there is one, about `max_bytes` at most.

    `gathers`: whole transactions are one item.

    Raises the translated ErrorResponse (F19), SourceUnavailable at the end of the stream or connection,
    PublicationMissing, or a ProtocolError for framing that the protocol does not allow.
    """
    if connection.failure is not None:
        raise connection.failure
    messages, size = _read(connection, max_bytes)
    look_at_notices(connection)
    if not messages and connection.failure is not None:
        raise connection.failure
    items, connection.in_stream = cut_items(messages, connection.in_stream)
    if gathers:
        items = gathered(items)
    return Drained(items, len(messages), size, size >= max_bytes)


def _read(connection: CopyConnection, max_bytes: int) -> tuple[list[bytes], int]:
    """Collect messages until two looks at the socket in a row bring nothing, or `max_bytes`."""
    messages: list[bytes] = []
    take = messages.append
    size = 0
    pgconn = connection.pgconn
    buffer = c_void_p()
    reference = byref(buffer)
    has_looked = False

    while size < max_bytes:
        length = PQgetCopyData(pgconn, reference, 1)
        if length > 0:
            take(string_at(buffer.value or 0, length))
            PQfreemem(buffer)
            size += length
            has_looked = False
        elif length == 0:
            if has_looked:
                break
            has_looked = True
            if not PQconsumeInput(pgconn):
                _note_broken(connection, messages)
                break
        else:
            connection.failure = (
                connection.end_of_copy() if length == -1 else SourceUnavailable(connection.error_message())
            )
            break
    return messages, sum(map(len, messages))


def _note_broken(connection: CopyConnection, messages: list[bytes]) -> None:
    """Take what arrived before the connection broke; the server's last word may be among it."""
    text = connection.error_message()
    while not isinstance(message := connection.read_message(), int):
        messages.append(message)
    connection.failure = connection.end_of_copy() if message == -1 else SourceUnavailable(text)


def look_at_notices(connection: CopyConnection) -> None:
    """Raise PublicationMissing for the notice that a publication is gone (F72); log that there are others."""
    notices, connection.notices = connection.notices, []
    for notice in notices:
        if is_publication_notice(notice):
            connection.failure = PublicationMissing(
                f"the server goes on without a publication: {notice.message}"
            )
            raise connection.failure
        # The text may quote data, so only its class and origin are logged.
        log.warning("server notice %s %s in %s", notice.severity, notice.sqlstate, notice.function)
