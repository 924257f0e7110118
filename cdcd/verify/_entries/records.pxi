"""The class `Reader`: batches of records to entries, as `cdcd.verify.records.Records.entry` makes them one by one."""

cdef enum:  # slots of an envelope, as in `cdcd.verify.program`
    TIMELINE = 0
    COMMIT_LSN = 1
    TX_SEQ = 2
    TX_ID = 3
    SNAPSHOT = 4
    UNCHANGED_NAMES = 5
    SPECIAL = 6
    OP = 7
    AFTER = 8

cdef int64_t MOST_U32 = 0xFFFFFFFF
cdef uint32_t MOST_TOPIC = 0xFF  # an entry has a byte for the number

cdef struct Change:
    int kind
    bint is_copy, is_ordered
    uint64_t key_hash
    const uint8_t* position
    const uint8_t* unchanged  # the names, NULL if there are none
    const uint8_t* unchanged_end


cdef class Reader:
    """Reads records of schemas that were added. `share` and `first`: those of `ComparedTable`."""

    cdef dict _values, _keys
    cdef Program _value, _key  # the last ones
    cdef int64_t _value_id, _key_id
    cdef uint64_t* _constants
    cdef int _columns
    cdef uint32_t _share, _first
    cdef Text _text, _entries
    # The place of the last record, and what `Found.take` has found there.
    cdef object _topic, _partition
    cdef uint32_t _topic_number, _partition_number
    cdef uint8_t _least[POSITION_BYTES]
    cdef uint8_t _last[POSITION_BYTES]
    cdef uint8_t _disordered[POSITION_BYTES]
    cdef uint8_t _copied[POSITION_BYTES]
    cdef bint _has_place, _has_least, _has_last, _is_disordered, _has_copied
    cdef int64_t _records

    def __cinit__(self, constants, share, first):
        self._values, self._keys = {}, {}
        self._value_id = self._key_id = -1
        self._columns = len(constants)
        self._constants = <uint64_t*>calloc(self._columns + 1, sizeof(uint64_t))
        if self._constants == NULL:
            raise MemoryError
        for number, one in enumerate(constants):
            self._constants[number] = one
        self._share, self._first = share, first

    def __dealloc__(self):
        free(self._constants)
        free(self._text.data)
        free(self._entries.data)

    def add_value(self, int64_t schema_id, program):
        """Read values of this schema. Its columns are those of the table."""
        self._values[schema_id] = Program(program)
        if (<Program>self._values[schema_id]).columns != self._columns:
            raise ValueError("a program has the columns of the table")

    def add_key(self, int64_t schema_id, program):
        """Read keys of this schema."""
        self._keys[schema_id] = Program(program)

    def read(self, list batch, Py_ssize_t at, dict numbers, found):
        """Return the index of the first record from `at` on that the specification reads, and the entries before.

        `numbers`: of the topics; `found`: the records are noted there, as by `Found.take`.
        """
        cdef Py_ssize_t count = len(batch)
        self._entries.size = self._records = 0
        self._has_place = self._is_disordered = self._has_copied = False
        while at < count:
            topic, partition, offset, key, value = <tuple>batch[at]
            if value is not None:
                if key is None or not self._is_read(<bytes>value, <bytes>key):
                    break
                self._enter(topic, partition, numbers, found)
                if not self._append(offset):
                    break
            at += 1
        self._leave(found)
        found.records += self._records
        if self._is_disordered:
            found.disordered = max(found.disordered, _position(self._disordered))
        if self._has_copied:
            found.copied = max(found.copied, _position(self._copied))
        return at, PyBytes_FromStringAndSize(<const char*>self._entries.data, self._entries.size)

    # --- one record

    cdef bint _is_read(self, bytes value, bytes key) except -1:
        """Find the values of a record; return False if it is left to the specification."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(value), key_size = PyBytes_GET_SIZE(key)
        cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(value)
        cdef const uint8_t* key_data = <const uint8_t*>PyBytes_AS_STRING(key)
        if size < HEADER_BYTES or key_size < HEADER_BYTES:
            return False
        if self._value_id != u32_of(data + 1):
            self._value = self._values.get(u32_of(data + 1))
            self._value_id = u32_of(data + 1) if self._value is not None else -1
        if self._key_id != u32_of(key_data + 1):
            self._key = self._keys.get(u32_of(key_data + 1))
            self._key_id = u32_of(key_data + 1) if self._key is not None else -1
        if self._value is None or self._key is None:
            return False
        return (
            self._value.walk_all(data + HEADER_BYTES, size - HEADER_BYTES) == OK
            and self._key.walk_all(key_data + HEADER_BYTES, key_size - HEADER_BYTES) == OK
        )

    cdef bint _append(self, int64_t offset) except -1:
        """Append the entry of the record, if it is one; return False if it is left to the specification."""
        cdef Change change
        cdef uint8_t position[POSITION_BYTES]
        cdef uint8_t key[KEY_BYTES]
        cdef int64_t begin = self._entries.size, size = HEAD_BYTES + 8 * self._columns, xid = 0
        cdef uint8_t* entry
        if self._topic_number > MOST_TOPIC or not self._has_change(&change, position, &xid) or not self._has_key(key):
            return False
        change.key_hash = u64_of(key)
        if ((((<uint32_t>key[8] << 8) | key[9]) - self._first) & 0xFFFF) < self._share:
            if reserve(&self._entries, size):
                raise MemoryError
            entry = self._entries.data + begin
            memcpy(entry, key, KEY_BYTES)
            memcpy(entry + KEY_BYTES, position, POSITION_BYTES)
            entry[POSITION_END] = change.kind
            put_u32(entry + POSITION_END + 1, <uint32_t>xid)
            entry[POSITION_END + 5] = self._topic_number
            put_u32(entry + POSITION_END + 6, self._partition_number)
            put_u64(entry + POSITION_END + 10, offset)
            if not self._has_hashes(&change, entry + HEAD_BYTES):
                return False
            self._entries.size += size
        self._take(position, change.is_ordered)
        if change.is_copy and (not self._has_copied or memcmp(position, self._copied, POSITION_BYTES) > 0):
            memcpy(self._copied, position, POSITION_BYTES)
            self._has_copied = True
        self._records += 1
        return True

    cdef bint _has_change(self, Change* change, uint8_t* position, int64_t* xid) noexcept:
        """Read the source block and the operation; return False if they are unusual."""
        cdef Program of = self._value
        cdef Slot* found = of.found
        cdef int64_t timeline, commit_lsn, tx_seq
        if not (found[TIMELINE].begin and found[COMMIT_LSN].begin and found[TX_SEQ].begin and found[OP].begin):
            return False
        timeline, commit_lsn = of.number_at(TIMELINE), of.number_at(COMMIT_LSN)
        tx_seq = of.number_at(TX_SEQ)
        xid[0] = of.number_at(TX_ID) if found[TX_ID].begin else 0
        if not (0 <= timeline <= MOST_U32 and commit_lsn >= 0 and tx_seq >= 0 and 0 <= xid[0] <= MOST_U32):
            return False
        if found[SPECIAL].begin and found[SPECIAL].begin[0] != 0:  # not an empty map
            return False
        if of.is_text(OP, b"c", 1):
            change.kind = ROW
        elif of.is_text(OP, b"u", 1):
            change.kind = UPDATED
        elif of.is_text(OP, b"d", 1):
            change.kind = DELETED
        elif of.is_text(OP, b"r", 1):
            change.kind = COPIED
        else:
            return False
        if change.kind != DELETED and not found[AFTER].begin:
            return False
        change.unchanged, change.unchanged_end = found[UNCHANGED_NAMES].begin, found[UNCHANGED_NAMES].end
        if change.unchanged == NULL:
            return False
        change.is_copy = change.kind == COPIED or (
            found[SNAPSHOT].begin != NULL and not of.is_text(SNAPSHOT, b"false", 5)
        )
        change.is_ordered = not change.is_copy and found[TX_ID].begin != NULL
        put_u32(position, <uint32_t>timeline)
        put_u64(position + 4, <uint64_t>commit_lsn)
        position[PHASE_AT] = 0 if change.is_copy else 1
        put_u64(position + PHASE_AT + 1, <uint64_t>tx_seq)
        return True

    cdef bint _has_key(self, uint8_t* into) except -1:
        """Write the two hashes of the key; return False if its text is unusual."""
        cdef Program of = self._key
        cdef Text* text = &self._text
        cdef int column
        cdef int64_t begin, shift
        cdef uint8_t size_text[32]
        cdef Text sized
        sized.data, sized.size, sized.capacity = size_text, 0, 32
        text.size = 0
        for column in range(of.columns):
            if of.is_null(column):
                if put(text, <const uint8_t*>b"-:", 2):
                    raise MemoryError
                continue
            begin = text.size
            if of.put_column(column, text):
                return False
            if of.columns == 1:
                continue
            sized.size = 0
            put_number(&sized, text.size - begin, 0)
            size_text[sized.size] = c':'
            shift = sized.size + 1
            if reserve(text, shift):
                raise MemoryError
            memmove(text.data + begin + shift, text.data + begin, text.size - begin)
            memcpy(text.data + begin, size_text, shift)
            text.size += shift
        put_u64(into, hash_of(text.data, text.size, 0))
        put_u64(into + 8, hash_of(text.data, text.size, 1))
        return True

    cdef bint _has_hashes(self, const Change* change, uint8_t* into) except -1:
        """Write the hashes of the columns; return False if a value is unusual."""
        cdef Program of = self._value
        cdef int column
        cdef uint64_t found
        cdef bint has_unchanged = change.unchanged_end - change.unchanged > 1
        for column in range(self._columns):
            if change.kind == DELETED or of.forms[column].form == NO_FORM:
                found = MISSING
            elif has_unchanged and self._is_unchanged(change, of.names[column]):
                found = UNCHANGED
            elif of.is_null(column):
                found = NULL_HASH
            else:
                self._text.size = 0
                if of.put_column(column, &self._text):
                    return False
                found = hash_of(self._text.data, self._text.size, change.key_hash ^ self._constants[column])
            put_u64(into + 8 * column, found)
        return True

    cdef bint _is_unchanged(self, const Change* change, bytes name) noexcept:
        cdef Input data
        cdef const uint8_t* value
        cdef int64_t items = 0, size
        data.at, data.end = change.unchanged, change.unchanged_end
        while not _block(&data, &items) and items:
            while items:
                items -= 1
                _bytes(&data, &value, &size)
                if size == PyBytes_GET_SIZE(name) and memcmp(value, PyBytes_AS_STRING(name), size) == 0:
                    return True
        return False

    # --- what the records of a partition say together

    cdef int _enter(self, topic, partition, dict numbers, found) except -1:
        """Begin with a record of this partition."""
        if self._has_place and self._partition == partition and self._topic == topic:
            return 0
        self._leave(found)
        self._topic, self._partition = topic, partition
        self._topic_number, self._partition_number = numbers[topic], partition
        at = (numbers[topic], partition)
        self._has_least = _is_given(found.firsts.get(at), self._least)
        self._has_last = _is_given(found.lasts.get(at), self._last)
        self._has_place = True
        return 0

    cdef int _leave(self, found) except -1:
        if not self._has_place:
            return 0
        at = (self._topic_number, self._partition_number)
        if self._has_least:
            found.firsts[at] = _position(self._least)
        if self._has_last:
            found.lasts[at] = _position(self._last)
        self._has_place = False
        return 0

    cdef void _take(self, const uint8_t* position, bint is_ordered) noexcept nogil:
        if not self._has_least or memcmp(position, self._least, POSITION_BYTES) < 0:
            memcpy(self._least, position, POSITION_BYTES)
            self._has_least = True
        if not is_ordered:
            return
        if not self._has_last or memcmp(position, self._last, POSITION_BYTES) > 0:
            memcpy(self._last, position, POSITION_BYTES)
            self._has_last = True
        elif not self._is_disordered or memcmp(position, self._disordered, POSITION_BYTES) > 0:
            memcpy(self._disordered, position, POSITION_BYTES)
            self._is_disordered = True


cdef object _position(const uint8_t* position):
    return PyBytes_FromStringAndSize(<const char*>position, POSITION_BYTES)


cdef bint _is_given(position, uint8_t* into) except -1:
    """Copy a position, if there is one."""
    if not position:
        return False
    if PyBytes_GET_SIZE(position) != POSITION_BYTES:
        raise ValueError("a position of another size")
    memcpy(into, PyBytes_AS_STRING(position), POSITION_BYTES)
    return True
