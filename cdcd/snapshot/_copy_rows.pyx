# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""COPY's text or binary format to Insert frames, as a C extension. `cdcd.snapshot.copy_rows` is its Python fallback
and its specification: equal frames, or the same error.

In: libpq's functions by address and a PGconn in COPY TO STDOUT; or its messages by `feed`.  Out: `RowBatch`es.
Invariant: no byte is read beyond a message, and no byte is written beyond the buffer's capacity. The Python fallback
raises the error for a message that does not have the expected form. The GIL is released while messages are read, so
that other rows are encoded meanwhile; a connection whose notices Python receives must not be read.
Must not: create a Python object for a row, or know what a value means.
"""

from cdcd.model import RowBatch
from cdcd.snapshot import copy_rows

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, UINT32_MAX, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy

include "../big_endian.pxi"
include "../frame_layout.pxi"
include "../function_address.pxi"

ctypedef int (*get_copy_data_t)(void *, char **, int) noexcept nogil
ctypedef void (*free_t)(void *) noexcept nogil

cdef enum:
    BLOCKING = 0
    FIRST_BYTES = 65536
    DOUBLED_BYTES = 4194304  # a larger buffer grows by a quarter, and is not reused
    HEADER_BYTES = 19
    OK = 0
    ODD = 1
    NO_MEMORY = 2

cdef extern from *:
    """
    #ifdef __SANITIZE_ADDRESS__
    #define CDCD_IS_CHECKED 1
    #else
    #define CDCD_IS_CHECKED 0
    #endif
    /* The byte that an escape stands for; 0: COPY does not write this escape. */
    static inline uint8_t cdcd_escaped(uint8_t c) {
        switch (c) {
            case 'b': return '\\b'; case 'f': return '\\f'; case 'n': return '\\n'; case 'r': return '\\r';
            case 't': return '\\t'; case 'v': return '\\v'; case '\\\\': return '\\\\'; default: return 0;
        }
    }
    static const uint8_t cdcd_copy_header[19] = {
        'P', 'G', 'C', 'O', 'P', 'Y', 0x0a, 0xff, 0x0d, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    """
    const uint8_t *COPY_HEADER "cdcd_copy_header"  # signature, no flags, no extension
    bint IS_CHECKED "CDCD_IS_CHECKED"  # buffers have exactly the requested size, to detect overruns
    uint8_t cdcd_escaped(uint8_t) noexcept nogil


cdef class CopyRows:
    """The rows of one COPY, as Insert frames of one relation at one LSN. See the fallback of the same name."""

    cdef uint8_t *_frames
    cdef size_t _used, _capacity, _last_at
    cdef Py_ssize_t _rows
    cdef uint32_t _relid
    cdef uint16_t _columns, _selected
    cdef bytes _omitted  # a byte for each column, 1: the copy does not have it; empty: it has all
    cdef const uint8_t *_is_omitted  # the bytes of `_omitted`, NULL: the copy has all columns
    cdef object _positions
    cdef uint64_t _lsn
    cdef bint _is_binary, _is_first
    cdef bytes _odd
    cdef bint _is_odd_first
    cdef readonly size_t size_bytes

    def __init__(self, uint32_t relid, uint16_t columns, uint64_t lsn, bint is_binary=False, omitted=()):
        self._relid, self._columns, self._lsn = relid, columns, lsn
        self._positions = frozenset(omitted)
        self._omitted = bytes([column in self._positions for column in range(columns)])
        self._selected = self._omitted.count(b"\0")
        self._is_omitted = NULL
        if self._selected != columns:
            self._is_omitted = <const uint8_t *> PyBytes_AS_STRING(self._omitted)
        self._is_binary, self._is_first = is_binary, True

    def __dealloc__(self):
        free(self._frames)

    def feed(self, bytes line not None):
        """Add one CopyData message: a line with its newline, or a row in binary format."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(line)
        cdef const uint8_t *data = <const uint8_t *> PyBytes_AS_STRING(line)
        if self._odd is not None:
            return  # the copy ends with the error of that message
        self._note(self._message(data, size), data, size)

    def read(self, get_copy_data, free_memory, uintptr_t pgconn, size_t max_bytes):
        """Read messages, waiting for the server, until the batch has `max_bytes`; return 0, or PQgetCopyData's end.

        Stops at a malformed message too, for which `take` raises the error.
        """
        cdef get_copy_data_t get = <get_copy_data_t> function_address(get_copy_data)
        cdef free_t give_back = <free_t> function_address(free_memory)
        cdef char *line = NULL
        cdef int size = 0, result = OK
        with nogil:
            while self.size_bytes < max_bytes:
                size = get(<void *> pgconn, &line, BLOCKING)
                if size <= 0:
                    break
                result = self._message(<const uint8_t *> line, size)
                if result != OK:
                    break
                give_back(line)
        if result != OK:
            try:
                self._note(result, <const uint8_t *> line, size)
            finally:
                give_back(line)
        return min(size, 0)

    def take(self):
        """Return the rows since the last call as a `RowBatch`, and the offset of its last frame; None without rows.

        Raises ProtocolError for a malformed message.
        """
        if self._odd is not None:
            if self._is_binary:
                copy_rows.binary_payload(
                    self._relid, self._odd, self._columns, self._is_odd_first, self._positions
                )
            else:
                copy_rows.insert_payload(self._relid, self._odd, self._columns, self._positions)
            raise AssertionError("the compiled copy refuses a message that its fallback takes")
        self.size_bytes = 0
        if not self._rows:
            return None
        batch = RowBatch(PyBytes_FromStringAndSize(<const char *> self._frames, <Py_ssize_t> self._used), self._rows)
        self._rows = 0
        self._used = 0
        if self._capacity > DOUBLED_BYTES or IS_CHECKED:
            free(self._frames)
            self._frames, self._capacity = NULL, 0
        return batch, <Py_ssize_t> self._last_at

    cdef int _note(self, int result, const uint8_t *data, Py_ssize_t size) except -1:
        if result == NO_MEMORY:
            raise MemoryError
        if result == ODD and self._odd is None:
            self._odd = PyBytes_FromStringAndSize(<const char *> data, size)
            self._is_odd_first = self._is_first
        return 0

    cdef int _message(self, const uint8_t *data, Py_ssize_t size) noexcept nogil:
        cdef int result
        self.size_bytes += size
        if not self._is_binary:
            return self._line(data, size)
        result = self._row(data, size)
        if result == OK:
            self._is_first = False
        return result

    cdef int _row(self, const uint8_t *data, Py_ssize_t size) noexcept nogil:
        """Append the frame of one row in binary format; nothing for the trailer."""
        cdef const uint8_t *end = data + size
        cdef uint8_t *at
        cdef uint32_t column, length
        if self._is_first:
            if size < HEADER_BYTES or memcmp(data, COPY_HEADER, HEADER_BYTES) != 0:
                return ODD
            data += HEADER_BYTES
        if end - data == 2 and data[0] == 0xff and data[1] == 0xff:
            return OK
        if end - data < 2 or cdcd_u16(data) != self._selected:
            return ODD
        data += 2
        # Each value needs its length in both forms, and a kind.
        at = self._begin(<size_t> (end - data) + self._columns)
        if at == NULL:
            return NO_MEMORY
        for column in range(self._columns):
            if self._is_omitted != NULL and self._is_omitted[column]:
                at[0] = c'u'
                at += 1
                continue
            if end - data < 4:
                return ODD
            length = cdcd_u32(data)
            if length == UINT32_MAX:
                at[0] = c'n'
                at += 1
                data += 4
                continue
            if length > INT32_MAX or <Py_ssize_t> length > end - data - 4:
                return ODD
            at[0] = c'b'
            memcpy(at + 1, data, 4 + <size_t> length)
            at += 5 + <size_t> length
            data += 4 + <size_t> length
        if data != end:
            return ODD
        return self._append(at)

    cdef uint8_t *_begin(self, size_t values_bytes) noexcept nogil:
        """Return the address of the first value of a new frame with room for its values, NULL without memory."""
        cdef size_t needed = self._used + FRAME_BYTES + 8 + values_bytes
        cdef uint8_t *at
        if needed > self._capacity and self._grow(needed) != OK:
            return NULL
        at = self._frames + self._used + FRAME_BYTES
        at[0] = c'I'
        cdcd_put32(at + RELID_AT, self._relid)
        at += RELID_AT + RELID_BYTES
        at[0] = c'N'
        cdcd_put16(at + 1, self._columns)
        return at + 3

    cdef int _append(self, const uint8_t *end) noexcept nogil:
        """Complete the frame that `_begin` has begun and whose values end at `end`."""
        cdef size_t size = end - (self._frames + self._used) - FRAME_BYTES
        if size > UINT32_MAX:
            return ODD
        cdcd_put32(self._frames + self._used, <uint32_t> size)
        cdcd_put64(self._frames + self._used + FRAME_LSN_AT, self._lsn)
        self._last_at = self._used
        self._used += FRAME_BYTES + size
        self._rows += 1
        return OK

    cdef int _line(self, const uint8_t *line, Py_ssize_t size) noexcept nogil:
        """Append the frame of one line."""
        cdef const uint8_t *end = line + size - 1
        cdef const uint8_t *stop
        cdef uint8_t *at
        cdef uint8_t *value
        cdef uint8_t letter
        cdef uint32_t column
        cdef bint is_first = True
        if size < 1 or end[0] != c'\n':
            return ODD
        # A value is at most as long as in the line; with each there are a kind and a length, without its delimiter.
        at = self._begin(5 * <size_t> self._columns + size)
        if at == NULL:
            return NO_MEMORY
        for column in range(self._columns):
            if self._is_omitted != NULL and self._is_omitted[column]:
                at[0] = c'u'
                at += 1
                continue
            if not is_first:
                if line >= end or line[0] != c'\t':
                    return ODD
                line += 1
            is_first = False
            stop = <const uint8_t *> memchr(line, c'\t', end - line) if end > line else NULL
            if stop == NULL:
                stop = end
            if stop - line == 2 and line[0] == c'\\' and line[1] == c'N':
                at[0] = c'n'
                at += 1
                line = stop
                continue
            at[0] = c't'
            value = at + 5
            if stop == line or memchr(line, c'\\', stop - line) == NULL:
                memcpy(value, line, stop - line)
                value += stop - line
                line = stop
            else:
                while line < stop:
                    letter = line[0]
                    line += 1
                    if letter == c'\\':
                        if line >= stop:
                            return ODD
                        letter = cdcd_escaped(line[0])
                        line += 1
                        if letter == 0:
                            return ODD
                    value[0] = letter
                    value += 1
            cdcd_put32(at + 1, <uint32_t> (value - at - 5))
            at = value
        if line != end:
            return ODD
        return self._append(at)

    cdef int _grow(self, size_t needed) noexcept nogil:
        cdef size_t capacity = self._capacity
        capacity += capacity if capacity < DOUBLED_BYTES else capacity // 4
        if IS_CHECKED or capacity < needed:
            capacity = needed
        if capacity < FIRST_BYTES and not IS_CHECKED:
            capacity = FIRST_BYTES
        cdef void *grown = realloc(self._frames, capacity)
        if grown == NULL:
            return NO_MEMORY
        self._frames = <uint8_t *> grown
        self._capacity = capacity
        return OK
