"""libpq's CopyBoth functions, called through ctypes on a connection that psycopg2 opened.

In: a psycopg2 connection that START_REPLICATION has put into CopyBoth.  Out: CopyData payloads, reports.
Invariant: the symbols are resolved through psycopg2's own shared object, so they belong to the libpq that created the
PGconn, bundled or the system's. No call blocks: the connection is set to non-blocking.
Must not: be used after `close`, or from two threads at a time.
Why: psycopg2's own replication cursor confirms positions by itself (F71).
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_void_p, string_at

from psycopg2 import _psycopg
from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.errors import SourceError, SourceUnavailable
from cdcd.redaction import clean
from cdcd.source.error_map import (
    MAX_REPORT_CHARACTERS,
    ServerReport,
    failure_for,
    first_line,
    refuse_want_of_memory,
)

# The functions below return at once on a non-blocking connection, so holding the GIL (PyDLL) is cheaper than
# releasing it for each message.
_LIBRARY = ctypes.PyDLL(_psycopg.__file__)
_Receiver = ctypes.PYFUNCTYPE(None, c_void_p, c_void_p)

_SEVERITY, _SQLSTATE, _PRIMARY, _FUNCTION = (ord(letter) for letter in "VCMR")
_FATAL_ERROR = 7  # ExecStatusType
_MAX_NOTICES = 100
COPY_FAILED = -2
"""PQgetCopyData's result if it cannot return the next message; the copy may continue."""


def _bind(name: str, result: type | None, *arguments: type) -> ctypes._NamedFuncPointer:
    function = getattr(_LIBRARY, name)
    function.restype = result
    function.argtypes = list(arguments)
    return function  # type: ignore[no-any-return]


PQgetCopyData = _bind("PQgetCopyData", c_int, c_void_p, POINTER(c_void_p), c_int)
PQfreemem = _bind("PQfreemem", None, c_void_p)
PQconsumeInput = _bind("PQconsumeInput", c_int, c_void_p)
_PQputCopyData = _bind("PQputCopyData", c_int, c_void_p, c_char_p, c_int)
_PQputCopyEnd = _bind("PQputCopyEnd", c_int, c_void_p, c_char_p)
_PQflush = _bind("PQflush", c_int, c_void_p)
_PQisBusy = _bind("PQisBusy", c_int, c_void_p)
_PQsocket = _bind("PQsocket", c_int, c_void_p)
_PQsetnonblocking = _bind("PQsetnonblocking", c_int, c_void_p, c_int)
_PQerrorMessage = _bind("PQerrorMessage", c_char_p, c_void_p)
_PQgetResult = _bind("PQgetResult", c_void_p, c_void_p)
_PQclear = _bind("PQclear", None, c_void_p)
_PQresultStatus = _bind("PQresultStatus", c_int, c_void_p)
_PQresultErrorField = _bind("PQresultErrorField", c_char_p, c_void_p, c_int)
_PQsetNoticeReceiver = _bind("PQsetNoticeReceiver", c_void_p, c_void_p, _Receiver, c_void_p)


class CopyConnection:
    """A PGconn in CopyBoth. `in_stream`: the last message read was inside a stream segment."""

    def __init__(self, connection: Connection) -> None:
        pgconn = connection.pgconn_ptr
        if not pgconn:
            raise SourceUnavailable("the connection is closed")
        self._connection = connection
        self.pgconn: int = pgconn
        self.in_stream = False
        self.failure: SourceError | None = None
        self.notices: list[ServerReport] = []
        self._receiver = _Receiver(self._on_notice)  # referenced here, because libpq only has its address
        _PQsetNoticeReceiver(self.pgconn, self._receiver, None)
        if _PQsetnonblocking(self.pgconn, 1) != 0:
            raise SourceUnavailable(self.error_message())
        # A duplicate: libpq closes its socket as soon as the connection is lost, and the next opened file gets the
        # same descriptor, while the event loop still waits on it.
        self.socket: int = _own(_PQsocket(self.pgconn))

    def put(self, data: bytes) -> bool:
        """Queue one CopyData message; return False if libpq's buffer is full. Raises SourceUnavailable."""
        result: int = _PQputCopyData(self.pgconn, data, len(data))
        if result < 0:
            raise SourceUnavailable(self.error_message())
        return result == 1

    def put_end(self) -> None:
        """Queue CopyDone. Raises SourceUnavailable."""
        if _PQputCopyEnd(self.pgconn, None) < 0:
            raise SourceUnavailable(self.error_message())

    def flush(self) -> bool:
        """Send queued data; return False if the socket accepts no more now. Raises SourceUnavailable."""
        result: int = _PQflush(self.pgconn)
        if result < 0:
            raise SourceUnavailable(self.error_message())
        return result == 0

    def consume(self) -> bool:
        """Read the socket's available data; return False if the connection is broken."""
        return bool(PQconsumeInput(self.pgconn))

    def is_busy(self) -> bool:
        """Return whether PQgetResult would block."""
        return bool(_PQisBusy(self.pgconn))

    def read_message(self) -> bytes | int:
        """Return the next CopyData payload, or 0 (none yet), -1 (the copy ended), COPY_FAILED."""
        buffer = c_void_p()
        size: int = PQgetCopyData(self.pgconn, byref(buffer), 1)
        if size <= 0:
            return size
        try:
            return string_at(buffer.value or 0, size)
        finally:  # also when there is no memory for the copy
            PQfreemem(buffer)

    def end_of_copy(self) -> SourceError:
        """Return the error that ended the copy: the server's ErrorResponse (F19), or the end of the stream."""
        result = _PQgetResult(self.pgconn)
        if not result:
            return SourceUnavailable("the server ended the stream")
        try:
            if _PQresultStatus(result) == _FATAL_ERROR:
                return failure_for(report_of(result))
            return SourceUnavailable("the server ended the stream")
        finally:
            _PQclear(result)

    def finish_command(self) -> bool:
        """Read available results; return True when the server has ended the command (the slot is free)."""
        while not self.is_busy():
            result = _PQgetResult(self.pgconn)
            if not result:
                return True
            _PQclear(result)
        return False

    def error_message(self) -> str:
        """Return libpq's message about the last failure, one line. Raises MemoryError if libpq lacks memory."""
        return message_of(self.pgconn)

    def close(self) -> None:
        """Close the connection."""
        if not self.pgconn:
            return
        self.pgconn = 0
        try:
            self._connection.close()
        finally:
            os.close(self.socket)  # the last descriptor: the connection is now closed for the server, too

    def _on_notice(self, _argument: int | None, result: int | None) -> None:
        if result and len(self.notices) < _MAX_NOTICES:
            self.notices.append(report_of(result))


def _own(descriptor: int) -> int:
    try:
        return os.dup(descriptor)
    except OSError as error:
        raise SourceUnavailable(f"the connection's socket cannot be duplicated: {error.strerror}") from error


def message_of(pgconn: int) -> str:
    """Return libpq's message about a connection's last failure, one line. Raises MemoryError as libpq reports it."""
    text: bytes = _PQerrorMessage(pgconn) or b""
    line = clean(first_line(text.decode("utf-8", "replace")), MAX_REPORT_CHARACTERS)
    refuse_want_of_memory(line)
    return line or "the connection to the server broke"


def report_of(result: int) -> ServerReport:
    """Return the fields of an error or notice that cdcd uses; `result` is the address of libpq's PGresult."""
    return ServerReport(
        sqlstate=_field(result, _SQLSTATE),
        message=_field(result, _PRIMARY) or "no message",
        severity=_field(result, _SEVERITY) or "ERROR",
        function=_field(result, _FUNCTION),
    )


def _field(result: int, code: int) -> str | None:
    value: bytes | None = _PQresultErrorField(result, code)
    return None if value is None else clean(value.decode("utf-8", "replace"), MAX_REPORT_CHARACTERS)
