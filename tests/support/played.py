"""A scripted libpq, for situations that a real server cannot be forced into.

In: messages and return values.  Out: functions for `Batch.read`.
Invariant: each message has memory of exactly its size, so that AddressSanitizer detects a read past its end.
"""

from __future__ import annotations

import ctypes
from ctypes import PYFUNCTYPE, c_int, c_size_t, c_void_p, memmove
from typing import Any

_libc = ctypes.CDLL(None)
_libc.malloc.restype, _libc.malloc.argtypes = c_void_p, [c_size_t]
_libc.free.restype, _libc.free.argtypes = None, [c_void_p]

_GetCopyData = PYFUNCTYPE(c_int, c_void_p, c_void_p, c_int)
_Free = PYFUNCTYPE(None, c_void_p)
_ConsumeInput = PYFUNCTYPE(c_int, c_void_p)


class Played:
    """A scripted libpq: each call of PQgetCopyData gives the next message or return value, then 0.

    `broken_at`: which call of PQconsumeInput fails, from 1 on. Each message has memory of exactly its size.
    """

    def __init__(self, *answers: bytes | int, broken_at: int = 0) -> None:
        self._answers = iter(answers)
        self._broken_at = broken_at
        self.looks = 0
        self.freed = 0
        self.given: set[int] = set()
        """Addresses of the messages that were not freed yet."""
        self._callbacks = (
            _GetCopyData(self._get),
            _Free(self._free),
            _ConsumeInput(self._consume),
        )

    @property
    def functions(self) -> tuple[Any, Any, Any]:
        """Return PQgetCopyData, PQfreemem and PQconsumeInput."""
        return self._callbacks

    def _get(self, _connection: int, place: int, _is_async: int) -> int:
        answer = next(self._answers, 0)
        if isinstance(answer, int):
            return answer
        address = _libc.malloc(len(answer))
        memmove(address, answer, len(answer))
        self.given.add(address)
        c_void_p.from_address(place).value = address
        return len(answer)

    def _free(self, address: int) -> None:
        self.freed += 1
        if address in self.given:  # an exception does not propagate out of a ctypes callback
            self.given.remove(address)
            _libc.free(address)

    def _consume(self, _connection: int) -> int:
        self.looks += 1
        return int(self.looks != self._broken_at)
