"""The function `sums`: sorted entries to the sums of their rows by bucket, as `cdcd.verify.fold` makes them."""

cdef enum:
    BUCKETS = 4096
    BUCKET_SHIFT = 4

cdef uint64_t WINDOW_BYTES = <uint64_t>1 << 36  # as in `cdcd.verify.visible`
cdef int64_t XIDS = <int64_t>1 << 32
cdef int64_t HALF = <int64_t>1 << 31
cdef int64_t FIRST_NORMAL_XID = 3


cdef class _View:
    """Which changes a snapshot has: `cdcd.verify.visible.View`, which decides about the others."""

    cdef object given, in_progress
    cdef uint64_t marker_lsn
    cdef int64_t xmin, xmax

    def __cinit__(self, given):
        self.given, self.marker_lsn = given, given.marker_lsn
        self.xmin, self.xmax = given.snapshot.xmin, given.snapshot.xmax
        self.in_progress = given.snapshot.in_progress

    cdef bint has(self, uint64_t lsn, int64_t xid) except -1:
        cdef int64_t full
        if lsn >= self.marker_lsn:
            return False
        if xid == 0 or (self.marker_lsn > WINDOW_BYTES and lsn < self.marker_lsn - WINDOW_BYTES):
            return True
        full = (xid - self.xmax + HALF) % XIDS
        full = self.xmax + (full + XIDS if full < 0 else full) - HALF
        if xid < FIRST_NORMAL_XID or full < FIRST_NORMAL_XID:
            return self.given.has(lsn, xid)  # raises
        return full < self.xmin or (full < self.xmax and full not in self.in_progress)


cdef class _Sums:
    """The state of one key, and the sums of the keys before it."""

    cdef int width
    cdef _View view
    cdef bytes emptied, hidden
    cdef uint64_t* state
    cdef uint64_t* buckets[BUCKETS]  # rows, unknown, then a sum for each column, then the rows that lack it
    cdef uint8_t key[KEY_BYTES]
    cdef bint has_key, has_state, has_last, is_unknown, is_hidden, is_incomplete
    cdef int64_t skipped_copies, incomplete

    def __cinit__(self, width, view, emptied, hidden):
        self.width, self.view = width, _View(view)
        self.emptied, self.hidden = emptied, hidden
        for one in (emptied, hidden):
            if len(one) not in (0, POSITION_BYTES):
                raise ValueError("a position of another size")
        self.state = <uint64_t*>calloc(self.width + 1, sizeof(uint64_t))
        if self.state == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef int number
        free(self.state)
        for number in range(BUCKETS):
            free(self.buckets[number])

    cdef int add(self, const uint8_t* entry) except -1:
        """Fold the next entry."""
        cdef int kind = entry[POSITION_END]
        if not self.has_key or memcmp(entry, self.key, KEY_BYTES):
            self.finish()
            memcpy(self.key, entry, KEY_BYTES)
            self.has_key = True
        if self.emptied and memcmp(entry + KEY_BYTES, PyBytes_AS_STRING(self.emptied), POSITION_BYTES) <= 0:
            return 0
        if not self.view.has(u64_of(entry + KEY_BYTES + 4), u32_of(entry + POSITION_END + 1)):
            self.is_hidden = True
            self.skipped_copies += kind == COPIED
        elif kind == COPIED and (self.is_hidden or self._is_after_hidden(entry)):
            self.is_unknown = self.is_unknown or not self.has_last
        elif kind == DELETED:
            self.has_state = self.is_unknown = self.is_incomplete = False
            self.has_last = True
        elif kind == UNKNOWN:
            self.has_last = self.is_unknown = True
            self.is_incomplete = False
        else:
            self._merge(entry + HEAD_BYTES, kind)
        return 0

    cdef bint _is_after_hidden(self, const uint8_t* entry) noexcept:
        return (
            PyBytes_GET_SIZE(self.hidden) != 0
            and memcmp(entry + KEY_BYTES, PyBytes_AS_STRING(self.hidden), POSITION_BYTES) > 0
        )

    cdef void _merge(self, const uint8_t* hashes, int kind) noexcept nogil:
        """Take the hashes of a row, and those of before where a value is unchanged."""
        cdef bint is_first = self.is_incomplete or (not self.has_state and not self.is_unknown)
        cdef bint has_former = self.has_state and not self.is_unknown
        cdef bint has_unchanged = False
        cdef int column
        cdef uint64_t found
        for column in range(self.width):
            found = u64_of(hashes + 8 * column)
            if found == UNCHANGED:
                has_unchanged = True
                found = self.state[column] if has_former else MISSING
            self.state[column] = found
        self.is_incomplete = is_first and kind == UPDATED and has_unchanged
        self.has_state = self.has_last = True
        self.is_unknown = False

    cdef int finish(self) except -1:
        """Add the row of the key to its bucket."""
        cdef uint64_t* bucket
        cdef int column, number
        self.incomplete += self.is_incomplete
        if self.has_key and (self.is_unknown or self.is_incomplete or (self.has_last and self.has_state)):
            number = ((<int>self.key[0] << 8) | self.key[1]) >> BUCKET_SHIFT
            if self.buckets[number] == NULL:
                self.buckets[number] = <uint64_t*>calloc(2 + 2 * self.width, sizeof(uint64_t))
                if self.buckets[number] == NULL:
                    raise MemoryError
            bucket = self.buckets[number]
            bucket[0] += 1
            if self.is_unknown or self.is_incomplete:
                bucket[1] += 1
            else:
                for column in range(self.width):
                    if self.state[column] == MISSING:
                        bucket[2 + self.width + column] += 1
                    else:
                        bucket[2 + column] += self.state[column]
        self.has_key = self.has_state = self.has_last = False
        self.is_unknown = self.is_hidden = self.is_incomplete = False
        return 0


def sums(blocks, int width, view, bytes emptied not None, bytes hidden not None):
    """Return by bucket (rows, unknown, sums modulo 2^64, lacking), and the counts of `Fold`. `blocks`: in order."""
    cdef _Sums found = _Sums(width, view, emptied, hidden)
    cdef Py_ssize_t size = HEAD_BYTES + 8 * width, at
    cdef const uint8_t* data
    cdef int number, column
    cdef uint64_t* one
    for block in blocks:
        if len(<bytes>block) % size:
            raise ValueError("a block has whole entries")
        data = <const uint8_t*>PyBytes_AS_STRING(block)
        for at in range(0, PyBytes_GET_SIZE(block), size):
            found.add(data + at)
    found.finish()
    made = {}
    for number in range(BUCKETS):
        one = found.buckets[number]
        if one != NULL:
            columns = [one[2 + column] for column in range(width)]
            lacking = [one[2 + width + column] for column in range(width)]
            made[number] = (one[0], one[1], columns, lacking)
    return made, found.skipped_copies, found.incomplete
