"""COPY ... TO STDOUT through libpq, on a connection that psycopg2 opened.

In: a connection in autocommit, one statement.  Out: the rows, read by libpq into `CopyRows`, many in one call.
Invariant: the calls that wait for the server release the GIL, so that other threads encode meanwhile. An error of the
server is raised, whether it comes instead of the first row or after a row.
Must not: be used by two threads at a time, or with a notice receiver in Python (see `libpq`): it needs the GIL.
Why: psycopg2 passes each row to Python.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int, c_void_p
from typing import Any, Protocol

from psycopg2 import _psycopg
from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.errors import SourceUnavailable
from cdcd.source.error_map import failure_for
from cdcd.source.libpq import message_of, report_of

_LIBRARY = ctypes.CDLL(_psycopg.__file__)
_COMMAND_OK, _COPY_OUT = 1, 3  # ExecStatusType


def _bind(name: str, result: type | None, *arguments: type) -> ctypes._NamedFuncPointer:
    function = _LIBRARY[name]  # not by attribute, which would share one object with its other users
    function.restype = result
    function.argtypes = list(arguments)
    return function


_PQexec = _bind("PQexec", c_void_p, c_void_p, c_char_p)
_PQgetResult = _bind("PQgetResult", c_void_p, c_void_p)
_PQresultStatus = _bind("PQresultStatus", c_int, c_void_p)
_PQclear = _bind("PQclear", None, c_void_p)
_PQgetCopyData = _bind("PQgetCopyData", c_int, c_void_p, ctypes.POINTER(c_void_p), c_int)
_PQfreemem = _bind("PQfreemem", None, c_void_p)


class Rows(Protocol):
    """Receives the rows: `cdcd.snapshot.copy_rows.CopyRows`."""

    def read(self, get_copy_data: Any, free_memory: Any, pgconn: int, max_bytes: int) -> int: ...  # noqa: D102


class CopyOut:
    """The COPY of one connection; `begin`, then `read` until it returns False."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self, statement: str) -> None:
        """Send the statement and wait until the copy begins. Raises Source errors."""
        self._expect(_PQexec(self._pgconn(), statement.encode()), _COPY_OUT)

    def read(self, rows: Rows, max_bytes: int) -> bool:
        """Read rows until there are `max_bytes`, or to the end; return whether more may follow.

        Raises Source errors.
        """
        if rows.read(_PQgetCopyData, _PQfreemem, self._pgconn(), max_bytes) == 0:
            return True
        self._expect(_PQgetResult(self._pgconn()), _COMMAND_OK)
        while rest := _PQgetResult(self._pgconn()):
            _PQclear(rest)
        return False

    def _pgconn(self) -> int:
        pgconn = self._connection.pgconn_ptr
        if not pgconn:
            raise SourceUnavailable("the connection is closed")
        return pgconn

    def _expect(self, result: int | None, status: int) -> None:
        if not result:
            raise SourceUnavailable(message_of(self._pgconn()))
        try:
            if _PQresultStatus(result) != status:
                raise failure_for(report_of(result))
        finally:
            _PQclear(result)
