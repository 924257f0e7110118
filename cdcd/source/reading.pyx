# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The drain as a C extension: reads many messages in one call and cuts them into items. `cdcd.source.batch` is its
Python fallback and its specification: equal items, or the same error.

In: libpq's functions by address, so that libpq is not linked and TLS works; or payloads by `feed`.  Out: items.
Invariant: a byte of a message is read only after a check against the message's length. The Python fallback raises the
error for a message that does not have the expected form, so that only one module has the error messages.
Must not: create a Python object for a row, or release the GIL (libpq calls back for a notice).
"""

from cdcd.model import Control, Keepalive, RowBatch, TransactionBatch
from cdcd.source import copyboth

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport UINT32_MAX, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcmp, memcpy

include "../big_endian.pxi"
include "../frame_layout.pxi"
include "../function_address.pxi"

LATER, COPY_ENDED, COPY_FAILED, BROKEN = 0, -1, -2, 1

ctypedef int (*get_copy_data_t)(void *, char **, int) noexcept
ctypedef void (*free_t)(void *) noexcept
ctypedef int (*consume_input_t)(void *) noexcept

cdef size_t XLOG_BYTES = copyboth.XLOG_BYTES
cdef size_t XLOG_LSN_AT = copyboth.XLOG_LSN_AT
cdef size_t XLOG_SENT_AT = copyboth.XLOG_SENT_AT
cdef size_t KEEPALIVE_BYTES = copyboth.KEEPALIVE_BYTES
cdef size_t KEEPALIVE_LSN_AT = copyboth.KEEPALIVE_LSN_AT
cdef size_t KEEPALIVE_SENT_AT = copyboth.KEEPALIVE_SENT_AT
cdef size_t KEEPALIVE_REPLY_AT = copyboth.KEEPALIVE_REPLY_AT

cdef enum:
    FIRST_BYTES = 65536
    DOUBLED_BYTES = 4194304  # a larger buffer grows by a quarter, and is not reused

cdef extern from *:
    """
    #ifdef __SANITIZE_ADDRESS__
    #define CDCD_IS_CHECKED 1
    #else
    #define CDCD_IS_CHECKED 0
    #endif
    """
    bint IS_CHECKED "CDCD_IS_CHECKED"  # buffers have exactly the requested size, to detect overruns

# The last batch's buffer, reused for the next one: its pages are already mapped. Protected by the GIL.
cdef uint8_t *_spare = NULL
cdef size_t _spare_bytes = 0


cdef inline bytes _bytes(const uint8_t *at, size_t size):
    return PyBytes_FromStringAndSize(<const char *> at, <Py_ssize_t> size)


cdef class Libpq:
    """The functions of libpq that a drain calls, as ctypes functions."""

    cdef get_copy_data_t get_copy_data
    cdef free_t free
    cdef consume_input_t consume_input
    cdef tuple _functions  # a callback lives only while it is referenced

    def __init__(self, get_copy_data, free, consume_input):
        self._functions = (get_copy_data, free, consume_input)
        self.get_copy_data = <get_copy_data_t> function_address(get_copy_data)
        self.free = <free_t> function_address(free)
        self.consume_input = <consume_input_t> function_address(consume_input)


cdef class Batch:
    """The messages of one drain.

    `in_stream`: the first message is inside a stream segment. `gathers`: complete transactions are combined into one
    item. `_frames` has, in this order: complete transactions; the frame of a Begin whose Commit may follow; rows.
    If `_has_idle`, a keepalive is between the transactions and the Begin: another keepalive, or the Commit of that
    Begin, makes it redundant.
    """

    cdef uint8_t *_frames
    cdef size_t _used, _capacity
    cdef size_t _whole_bytes
    cdef Py_ssize_t _whole, _rows
    cdef bint _has_begin, _has_idle, _in_stream, _gathers
    cdef int64_t _begin_sent_at, _idle_sent_at
    cdef uint64_t _idle_lsn
    cdef uint32_t _xid
    cdef list _items
    cdef bytes _odd
    cdef readonly Py_ssize_t messages, size_bytes

    def __cinit__(self):
        global _spare, _spare_bytes
        self._frames, self._capacity = _spare, _spare_bytes
        _spare, _spare_bytes = NULL, 0

    def __dealloc__(self):
        global _spare, _spare_bytes
        if _spare == NULL and self._capacity <= DOUBLED_BYTES and not IS_CHECKED:
            _spare, _spare_bytes = self._frames, self._capacity
        else:
            PyMem_Free(self._frames)

    def __init__(self, bint in_stream, bint gathers):
        self._in_stream = in_stream
        self._gathers = gathers
        self._items = []

    def feed(self, bytes message not None):
        """Add one CopyData payload."""
        self._take(<const uint8_t *> PyBytes_AS_STRING(message), <size_t> PyBytes_GET_SIZE(message))

    def read(self, Libpq libpq not None, uintptr_t pgconn, Py_ssize_t max_bytes):
        """Read messages until `max_bytes`, or until the socket has no more data; return the reason for the end."""
        cdef void *connection = <void *> pgconn
        cdef bint has_looked = False
        cdef int got
        while self.size_bytes < max_bytes:
            got = self._get(libpq, connection)
            if got < 0:
                return got
            if got > 0:
                has_looked = False
            elif has_looked:
                return LATER
            else:
                has_looked = True
                if not libpq.consume_input(connection):
                    return BROKEN
        return LATER

    def read_rest(self, Libpq libpq not None, uintptr_t pgconn):
        """Read the remaining messages of a broken connection, without a limit; return the reason for the end."""
        cdef int got
        while True:
            got = self._get(libpq, <void *> pgconn)
            if got <= 0:
                return got

    def finish(self):
        """Return the items, and whether the last message was inside a stream segment. To be called once.

        Raises a ProtocolError for illegal framing.
        """
        if self._odd is not None:
            copyboth.cut_items([self._odd], self._in_stream)
            raise AssertionError("the compiled drain refuses a message that its fallback takes")
        self._flush()
        return self._items, self._in_stream

    cdef inline int _get(self, Libpq libpq, void *connection) except? -3:
        """Read one message; return its size, or PQgetCopyData's result without one."""
        cdef char *message = NULL
        cdef int size = libpq.get_copy_data(connection, &message, 1)
        if size > 0:
            try:
                self._take(<const uint8_t *> message, <size_t> size)
            finally:
                libpq.free(message)
        return size

    cdef int _take(self, const uint8_t *data, size_t size) except -1:
        self.messages += 1
        self.size_bytes += size
        if self._odd is not None:
            return 0  # the batch ends with an error; later messages only have to be removed from libpq
        if size > XLOG_BYTES and data[0] == c'w' and size - XLOG_BYTES <= UINT32_MAX:
            return self._payload(data, size - XLOG_BYTES)
        if size == KEEPALIVE_BYTES and data[0] == c'k' and data[KEEPALIVE_REPLY_AT] <= 1:
            return self._keepalive(data)
        self._odd = _bytes(data, size)
        return 0

    cdef int _keepalive(self, const uint8_t *data) except -1:
        cdef uint64_t lsn = cdcd_u64(data + KEEPALIVE_LSN_AT)
        cdef int64_t sent_at = <int64_t> cdcd_u64(data + KEEPALIVE_SENT_AT)
        cdef bint is_before = self._has_idle and lsn < self._idle_lsn
        if data[KEEPALIVE_REPLY_AT] or not self._whole or is_before or self._has_begin or self._rows:
            self._flush()
            self._items.append(Keepalive(lsn, sent_at, data[KEEPALIVE_REPLY_AT] == 1))
        else:
            self._has_idle, self._idle_lsn, self._idle_sent_at = True, lsn, sent_at
        return 0

    cdef int _payload(self, const uint8_t *data, size_t size) except -1:
        """Add one XLogData message whose payload has `size` bytes, at least one."""
        cdef const uint8_t *payload = data + XLOG_BYTES
        cdef uint8_t kind = payload[0]
        if kind == c'I' or kind == c'U' or kind == c'D':
            return self._row(data, size)
        if self._gathers:
            if kind == c'B' and size == <size_t> BEGIN_BYTES:
                if self._has_begin or self._rows or self._is_before_idle(payload):
                    self._flush()
                self._append(data, size)
                self._has_begin = True
                self._begin_sent_at = <int64_t> cdcd_u64(data + XLOG_SENT_AT)
                return 0
            if self._has_begin and kind == c'C' and size == <size_t> COMMIT_BYTES and self._is_its(payload):
                self._append(data, size)
                self._whole += 1
                self._whole_bytes = self._used
                self._has_begin = self._has_idle = False
                self._rows = 0
                return 0
        self._flush()
        lsn, sent_at = cdcd_u64(data + XLOG_LSN_AT), <int64_t> cdcd_u64(data + XLOG_SENT_AT)
        self._items.append(Control(lsn, _bytes(payload, size), sent_at))
        if kind == c'S':
            self._in_stream = True
        elif kind == c'E':
            self._in_stream = False
        return 0

    cdef inline bint _is_before_idle(self, const uint8_t *begin) noexcept:
        """Return whether this Begin commits before the position of the pending keepalive."""
        return self._has_idle and cdcd_u64(begin + BEGIN_COMMIT_LSN_AT) < self._idle_lsn

    cdef inline bint _is_its(self, const uint8_t *commit) noexcept:
        """Return whether this Commit has no flags and the commit LSN of the pending Begin."""
        cdef const uint8_t *begin = self._frames + self._whole_bytes + FRAME_BYTES
        if commit[COMMIT_FLAGS_AT] != 0:
            return False
        return memcmp(commit + COMMIT_LSN_AT, begin + BEGIN_COMMIT_LSN_AT, LSN_BYTES) == 0

    cdef inline int _row(self, const uint8_t *data, size_t size) except -1:
        cdef uint32_t xid
        if self._in_stream:
            if size < <size_t> STREAMED_RELID_AT:
                self._odd = _bytes(data, XLOG_BYTES + size)
                return 0
            xid = cdcd_u32(data + XLOG_BYTES + XID_AT)
            if self._has_begin or (self._rows and xid != self._xid):
                self._flush()
            self._xid = xid
        self._append(data, size)
        self._rows += 1
        return 0

    cdef inline int _append(self, const uint8_t *data, size_t size) except -1:
        """Add the frame of an XLogData message."""
        cdef size_t needed = self._used + FRAME_BYTES + size
        if needed > self._capacity:
            self._grow(needed)
        cdef uint8_t *at = self._frames + self._used
        cdcd_put32(at, <uint32_t> size)
        memcpy(at + FRAME_LSN_AT, data + XLOG_LSN_AT, LSN_BYTES)
        memcpy(at + FRAME_BYTES, data + XLOG_BYTES, size)
        self._used = needed
        return 0

    cdef int _grow(self, size_t needed) except -1:
        cdef size_t capacity = self._capacity
        capacity += capacity if capacity < DOUBLED_BYTES else capacity // 4
        capacity = needed if IS_CHECKED else max(capacity, needed, <size_t> FIRST_BYTES)
        cdef void *grown = PyMem_Realloc(self._frames, capacity)
        if grown == NULL:
            raise MemoryError
        self._frames = <uint8_t *> grown
        self._capacity = capacity
        return 0

    cdef int _flush(self) except -1:
        """Convert all pending data in the buffer to items."""
        cdef size_t at = self._whole_bytes
        if self._whole:
            self._items.append(TransactionBatch(_bytes(self._frames, at), self._whole))
        if self._has_idle:
            self._items.append(Keepalive(self._idle_lsn, self._idle_sent_at, False))
        if self._has_begin:
            lsn = cdcd_u64(self._frames + at + FRAME_LSN_AT)
            begin = _bytes(self._frames + at + FRAME_BYTES, BEGIN_BYTES)
            self._items.append(Control(lsn, begin, self._begin_sent_at))
            at += FRAME_BYTES + BEGIN_BYTES
        if self._rows:
            xid = self._xid if self._in_stream else None
            self._items.append(RowBatch(_bytes(self._frames + at, self._used - at), self._rows, xid))
        self._used = self._whole_bytes = 0
        self._whole = self._rows = 0
        self._has_begin = self._has_idle = False
        return 0
