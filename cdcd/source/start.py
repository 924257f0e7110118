"""Put a walsender connection into CopyBoth with the START_REPLICATION command. Blocking.

In: settings, options, the LSN to start at.  Out: `StartedStream`, a `CopyConnection` with the server's time-out.
Invariant: every name is quoted for the grammar that parses it, a publication for two grammars. The reason why a slot
cannot be read is determined from the server's catalog, not from translated text.
Must not: read from the stream.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Any

import psycopg2
from psycopg2.extensions import connection as Connection  # noqa: N812
from psycopg2.extras import LogicalReplicationConnection

from cdcd.errors import CdcdError, SlotActive, SlotLost, SlotMissing, SlotUnusable, SourceUnavailable
from cdcd.lsn import Lsn, format_lsn
from cdcd.source.connection import connect_replication, fetch, translate
from cdcd.source.deadline import within
from cdcd.source.identity import ServerIdentity, check_same_server
from cdcd.source.libpq import CopyConnection
from cdcd.source.settings import SourceSettings, StreamOptions
from cdcd.source.slot import read_slot_over_walsender

RECEIVE_BUFFER_BYTES = 196_608
"""Small, so that the walsender buffers while the reader pauses, but large enough that it does not stop for long: with
64 kB, rows of 200 bytes arrived at two thirds of the rate; with 256 kB, transactions of one row a tenth slower."""

_NEAR_RTT_US = 2_000
_TCP_INFO_RTT = struct.Struct("=68xI")  # struct tcp_info: 8 bytes, 15 words, then tcpi_rtt in microseconds


@dataclass(frozen=True, slots=True)
class StartedStream:
    """A started stream. `server_timeout_ms` is wal_sender_timeout, 0 if it is off.

    `backend_pid` is the walsender's pid.
    """

    copy: CopyConnection
    server_timeout_ms: int
    is_tcp: bool
    backend_pid: int


def start(
    settings: SourceSettings,
    options: StreamOptions,
    start_lsn: Lsn,
    expected: ServerIdentity | None = None,
) -> StartedStream:
    """Connect and start the stream. Raises SlotActive, SlotMissing, SlotLost, SlotUnusable, Source*.

    `expected`: the server with which the position was compared; no stream is started on another server (F59).
    """
    connection = connect_replication(settings)
    try:
        if expected is not None:
            check_same_server(connection, expected)
        return start_on(connection, settings, options, start_lsn)
    except BaseException:
        connection.close()
        raise


def start_on(
    connection: LogicalReplicationConnection, settings: SourceSettings, options: StreamOptions, start_lsn: Lsn
) -> StartedStream:
    """Start the stream on this walsender connection, which the caller closes after an error. Raises as `start`."""
    rows = fetch(connection, "SELECT setting::int FROM pg_settings WHERE name = 'wal_sender_timeout'")
    _start_replication(settings, connection, start_command(settings, options, start_lsn))
    copy = CopyConnection(connection)
    try:
        return StartedStream(copy, rows[0][0], _tune_socket(copy.socket), connection.info.backend_pid)
    except BaseException:
        copy.close()
        raise


def start_command(settings: SourceSettings, options: StreamOptions, start_lsn: Lsn) -> str:
    """Return the START_REPLICATION command; a publication name is an identifier inside a string literal."""
    names = ",".join(quote_identifier(name) for name in settings.publications)
    given = {"proto_version": str(options.protocol_version), "publication_names": names}
    if options.streaming != "off":
        given["streaming"] = options.streaming
    if options.binary:
        given["binary"] = "true"
    if options.messages:
        given["messages"] = "true"
    if options.origin != "any":
        given["origin"] = options.origin
    if options.two_phase:
        given["two_phase"] = "true"
    listed = ", ".join(f"{key} {quote_literal(value)}" for key, value in given.items())
    slot = quote_identifier(settings.slot)
    return f"START_REPLICATION SLOT {slot} LOGICAL {format_lsn(start_lsn)} ({listed})"


def quote_identifier(name: str) -> str:
    """Return the name as a quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """Return the text as a string literal of the replication grammar, in which a backslash is not special."""
    return "'" + text.replace("'", "''") + "'"


def _start_replication(
    settings: SourceSettings, connection: LogicalReplicationConnection, command: str
) -> None:
    cursor: Any = connection.cursor()  # the type stubs lack this class
    try:
        with within(connection):
            cursor.start_replication_expert(command, decode=False)
    except psycopg2.Error as error:
        raise _explained(settings, connection, translate(error)) from None


def _explained(settings: SourceSettings, connection: Connection, error: CdcdError) -> CdcdError:
    """Return the error, or a more specific one if the slot's state shows why it cannot be read (F23)."""
    if isinstance(error, (SlotActive, SlotMissing, SourceUnavailable)):
        return error
    try:
        slot = read_slot_over_walsender(connection, settings.slot)
    except CdcdError:
        return error  # the connection ended with the command: report the first error
    if slot is None:
        return error
    sqlstate = error.context.get("sqlstate")
    if slot.is_lost:
        reason = slot.invalidation_reason or "its WAL was removed"
        return SlotLost(f"slot {slot.name} was invalidated: {reason}", sqlstate=sqlstate)
    if slot.slot_type != "logical" or slot.plugin != "pgoutput":
        return SlotUnusable(f"slot {slot.name} is not a logical slot of pgoutput", sqlstate=sqlstate)
    return error


def _tune_socket(descriptor: int) -> bool:
    """Shrink the receive buffer of a TCP connection with a short round trip; return whether it is TCP.

    With a long round trip, a small buffer would limit the rate to buffer size / round-trip time.
    """
    with socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as probe:
        if probe.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) == socket.AF_UNIX:
            return False
        info = probe.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_RTT.size)
        if len(info) == _TCP_INFO_RTT.size and _TCP_INFO_RTT.unpack(info)[0] < _NEAR_RTT_US:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    return True
