"""The class `Messages`: ranges of records, from a queue of librdkafka to Arrow record batches.

    rd_kafka_message_t -> topic | partition | offset | timestamp | key | value, a row per record

Invariant: each message that was taken is destroyed once, at the latest by `close`. The places of the ranges' ends
are reached in one pass over the messages, which also counts the bytes; then buffers of exactly that size are
allocated, and a second pass copies. The GIL is released while messages are waited for, and while they are copied.
Must not: create a Python object for a record, or take more messages than `max_rows`.
"""

from libc.stdint cimport INT64_MAX
from libc.stdlib cimport calloc
from libc.string cimport memmove, strcmp
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

cdef enum:
    NO_ERROR = 0
    PARTITION_EOF = -191
    NO_ROW = -1  # a message beyond the end of its range, or an end of partition
    FAILED = -2  # a message that is an error
    MOST_ROWS = 1048576
    MOST_BYTES = 1073741824  # the offsets of a binary array have 32 bits

cdef struct Message:  # rd_kafka_message_t, the same in all versions
    int err
    void* topic
    int32_t partition
    void* value
    size_t value_bytes
    void* key
    size_t key_bytes
    int64_t offset
    void* opaque

ctypedef Py_ssize_t (*consume_batch_t)(void*, int, Message**, size_t) noexcept nogil
ctypedef void (*destroy_t)(Message*) noexcept nogil
ctypedef int64_t (*timestamp_t)(const Message*, int*) noexcept nogil
ctypedef const char* (*topic_name_t)(const void*) noexcept nogil

cdef struct Place:
    const char* topic
    Py_ssize_t topic_bytes
    int32_t partition
    int64_t end
    bint is_done

cdef struct Totals:  # of the rows of one batch
    Py_ssize_t rows
    size_t topic_bytes, key_bytes, value_bytes
    Py_ssize_t keys, values, timestamps  # that are not null


cdef int64_t _now_ms() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000


cdef object _validity(Py_ssize_t valid, Py_ssize_t rows):
    """Return a bitmap of zeros, or None if all rows are valid."""
    if valid == rows:
        return None
    bits = pa.allocate_buffer((rows + 7) // 8)
    memset(<void*><uintptr_t>bits.address, 0, bits.size)
    return bits


cdef inline uint8_t* _address(buffer):
    return NULL if buffer is None else <uint8_t*><uintptr_t>buffer.address


cdef class Librdkafka:
    """The functions of librdkafka that `Messages` calls, as ctypes functions."""

    cdef consume_batch_t consume_batch
    cdef destroy_t destroy
    cdef timestamp_t timestamp
    cdef topic_name_t topic_name
    cdef tuple _functions  # a callback lives only while it is referenced

    def __init__(self, consume_batch, destroy, timestamp, topic_name):
        self._functions = (consume_batch, destroy, timestamp, topic_name)
        self.consume_batch = <consume_batch_t>function_address(consume_batch)
        self.destroy = <destroy_t>function_address(destroy)
        self.timestamp = <timestamp_t>function_address(timestamp)
        self.topic_name = <topic_name_t>function_address(topic_name)


cdef class Messages:
    """The records of ranges: `places` has the topic, partition and end of each, sorted by topic and partition.

    A batch has at most `max_rows` rows, and ends before its keys and values would have more than `max_bytes`, unless
    it is a single record. `schema` is the schema of the batches.
    """

    cdef Librdkafka _library
    cdef void* _queue
    cdef object _schema
    cdef tuple _topics  # their bytes are in `_places`
    cdef Place* _places
    cdef Py_ssize_t _count_of_places
    cdef Message** _messages
    cdef int32_t* _rows  # the place of each message up to `_scanned`, NO_ROW or FAILED
    cdef Py_ssize_t _taken, _scanned, _max_rows
    cdef size_t _max_bytes
    cdef int32_t* _finished  # the places that the last call has finished
    cdef Py_ssize_t _count_of_finished, _count_of_failed
    cdef Totals _totals
    cdef const void* _last_topic
    cdef int32_t _last_partition
    cdef Py_ssize_t _last_place
    cdef bint _is_full, _is_refused
    cdef readonly Py_ssize_t left  # ranges whose end was not reached
    cdef readonly Py_ssize_t arrived  # records and ends of partitions in the last call

    def __init__(self, Librdkafka library not None, uintptr_t queue, places, schema, max_rows, max_bytes):
        if not 1 <= max_rows <= MOST_ROWS or not 1 <= max_bytes <= MOST_BYTES:
            raise ValueError("a limit of a batch is out of range")
        _import_pyarrow()
        places = list(places)
        if places != sorted(places):
            raise ValueError("the places are not sorted")
        self._library, self._queue, self._schema = library, <void*>queue, schema
        self._max_rows, self._max_bytes = max_rows, max_bytes
        self._count_of_places = self.left = len(places)
        self._topics = tuple([<bytes>place[0] for place in places])
        self._places = <Place*>calloc(len(places) + 1, sizeof(Place))
        self._finished = <int32_t*>calloc(len(places) + 1, sizeof(int32_t))
        self._messages = <Message**>calloc(self._max_rows, sizeof(Message*))
        self._rows = <int32_t*>calloc(self._max_rows, sizeof(int32_t))
        if self._places == NULL or self._finished == NULL or self._messages == NULL or self._rows == NULL:
            raise MemoryError
        for at, (_topic, partition, end) in enumerate(places):
            self._places[at] = Place(self._topics[at], len(self._topics[at]), partition, end, False)

    def __dealloc__(self):
        free(self._places)
        free(self._finished)
        free(self._messages)
        free(self._rows)

    def read(self, int timeout_ms, int gather_ms):
        """Wait up to `timeout_ms` for messages, then up to `gather_ms` for more.

        Returns a record batch, or None without rows; the indexes of the places whose ends were reached; and the
        errors among the messages: librdkafka's code, the topic or None, the partition.
        """
        cdef Py_ssize_t at
        self._totals = Totals(0, 0, 0, 0, 0, 0, 0)
        self._count_of_finished = self._count_of_failed = self.arrived = 0
        self._last_topic, self._last_place = NULL, -1
        with nogil:
            self._gather(timeout_ms, gather_ms)
        if self._is_refused:
            raise RuntimeError("librdkafka does not return the messages of its queue")
        failed = self._failures() if self._count_of_failed else []
        batch = self._batch() if self._totals.rows else None
        self._destroy(self._scanned)
        return batch, [self._finished[at] for at in range(self._count_of_finished)], failed

    def close(self):
        """Destroy the messages that are in no batch yet; the client's owner calls it before it destroys the queue."""
        self._destroy(self._taken)
        self._queue = NULL

    cdef void _destroy(self, Py_ssize_t count) noexcept:
        """Destroy the first messages that were taken."""
        cdef Py_ssize_t at
        with nogil:
            for at in range(count):
                self._library.destroy(self._messages[at])
            memmove(self._messages, self._messages + count, (self._taken - count) * sizeof(Message*))
        self._taken -= count
        self._scanned = 0

    cdef void _gather(self, int timeout_ms, int gather_ms) noexcept nogil:
        """Take messages until the batch is full, each end is reached, or none arrives in time."""
        cdef int64_t until_ms, wait_ms
        self._is_full = False
        self._scan()  # what the last batch had no room for
        if not self._taken and not self._take(timeout_ms):
            return
        until_ms = _now_ms() + gather_ms
        while self.left and not self._is_full:
            wait_ms = until_ms - _now_ms()
            if wait_ms <= 0 or not self._take(<int>wait_ms):
                return

    cdef bint _take(self, int wait_ms) noexcept nogil:
        """Take one message as soon as it arrives, and those that are there; return whether there was one."""
        cdef Py_ssize_t room = self._max_rows - self._taken
        cdef Py_ssize_t count = 0
        cdef Py_ssize_t more
        if room and self._queue != NULL:
            # librdkafka waits until there are as many messages as it is asked for
            count = self._library.consume_batch(self._queue, wait_ms, self._messages + self._taken, 1)
            if count == 1 and room > 1:
                more = self._library.consume_batch(self._queue, 0, self._messages + self._taken + 1, room - 1)
                count = more if more < 0 else more + 1
        if count < 0:
            self._is_refused = True
            return False
        self._taken += count
        self._scan()
        return count > 0

    cdef void _scan(self) noexcept nogil:
        """Count what the messages add to the batch, up to its limits."""
        cdef Message* message
        cdef Py_ssize_t place
        cdef bint is_row
        while self._scanned < self._taken:
            message = self._messages[self._scanned]
            if message.err != NO_ERROR and message.err != PARTITION_EOF:
                self._rows[self._scanned] = FAILED
                self._count_of_failed += 1
                self._scanned += 1
                continue
            place = self._place(message)
            if place >= 0 and self._places[place].is_done:
                place = NO_ROW
            is_row = message.err == NO_ERROR and place >= 0 and message.offset < self._places[place].end
            if is_row and self._has_no_room(message):
                self._is_full = True
                return
            self.arrived += 1
            self._rows[self._scanned] = <int32_t>place if is_row else NO_ROW
            self._scanned += 1
            if is_row:
                self._count(message, &self._places[place])
            if place >= 0:
                self._reach(place, message.offset + (1 if message.err == NO_ERROR else 0))
        if self._taken == self._max_rows:
            self._is_full = True

    cdef inline bint _has_no_room(self, const Message* message) noexcept nogil:
        cdef size_t size = self._totals.key_bytes + self._totals.value_bytes
        return self._totals.rows > 0 and size + message.key_bytes + message.value_bytes > self._max_bytes

    cdef inline void _count(self, const Message* message, const Place* place) noexcept nogil:
        cdef Totals* totals = &self._totals
        totals.rows += 1
        totals.topic_bytes += place.topic_bytes
        totals.key_bytes += message.key_bytes
        totals.value_bytes += message.value_bytes
        totals.keys += message.key != NULL
        totals.values += message.value != NULL
        totals.timestamps += self._timestamp(message) >= 0

    cdef inline int64_t _timestamp(self, const Message* message) noexcept nogil:
        """Return microseconds; -1 for a record without a timestamp, and for one beyond what Arrow can have."""
        cdef int kind
        cdef int64_t timestamp_ms = self._library.timestamp(message, &kind)
        return timestamp_ms * 1000 if 0 <= timestamp_ms <= INT64_MAX // 1000 else -1

    cdef inline void _reach(self, Py_ssize_t place, int64_t next_offset) noexcept nogil:
        if next_offset >= self._places[place].end:
            self._places[place].is_done = True
            self._finished[self._count_of_finished] = <int32_t>place
            self._count_of_finished += 1
            self.left -= 1

    cdef inline Py_ssize_t _place(self, const Message* message) noexcept nogil:
        """Return the index of the message's place, -1 if there is none. Neighbours are mostly of one partition."""
        if message.topic != self._last_topic or message.partition != self._last_partition:
            self._last_place = self._found(message)
            self._last_topic, self._last_partition = message.topic, message.partition
        return self._last_place

    cdef Py_ssize_t _found(self, const Message* message) noexcept nogil:
        cdef const char* topic
        cdef Py_ssize_t low = 0, high = self._count_of_places, middle
        cdef int order
        if message.topic == NULL:
            return -1
        topic = self._library.topic_name(message.topic)
        while low < high:
            middle = (low + high) // 2
            order = strcmp(topic, self._places[middle].topic)
            if order == 0 and message.partition == self._places[middle].partition:
                return middle
            if order > 0 or (order == 0 and message.partition > self._places[middle].partition):
                low = middle + 1
            else:
                high = middle
        return -1

    cdef list _failures(self):
        cdef Py_ssize_t at
        cdef Message* message
        found = []
        for at in range(self._scanned):
            if self._rows[at] == FAILED:
                message = self._messages[at]
                topic = None
                if message.topic != NULL:
                    topic = (<bytes>self._library.topic_name(message.topic)).decode(errors="replace")
                found.append((message.err, topic, message.partition))
        return found

    cdef object _batch(self):
        """Return the rows of the messages up to `_scanned`."""
        cdef Totals* totals = &self._totals
        cdef Py_ssize_t rows = totals.rows
        topic_ends, topics = pa.allocate_buffer(4 * (rows + 1)), pa.allocate_buffer(totals.topic_bytes)
        partitions, offsets = pa.allocate_buffer(4 * rows), pa.allocate_buffer(8 * rows)
        timestamps, has_timestamp = pa.allocate_buffer(8 * rows), _validity(totals.timestamps, rows)
        key_ends, keys = pa.allocate_buffer(4 * (rows + 1)), pa.allocate_buffer(totals.key_bytes)
        value_ends, values = pa.allocate_buffer(4 * (rows + 1)), pa.allocate_buffer(totals.value_bytes)
        has_key, has_value = _validity(totals.keys, rows), _validity(totals.values, rows)
        self._copy_numbers(
            <int32_t*>_address(partitions), <int64_t*>_address(offsets), <int64_t*>_address(timestamps),
            _address(has_timestamp),
        )
        self._copy_topics(<int32_t*>_address(topic_ends), _address(topics))
        self._copy_bytes(True, <int32_t*>_address(key_ends), _address(keys), _address(has_key))
        self._copy_bytes(False, <int32_t*>_address(value_ends), _address(values), _address(has_value))
        columns = (
            (None, topic_ends, topics), (None, partitions), (None, offsets), (has_timestamp, timestamps),
            (has_key, key_ends, keys), (has_value, value_ends, values),
        )
        arrays = [
            pa.Array.from_buffers(field.type, rows, list(column))
            for field, column in zip(self._schema, columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    cdef void _copy_numbers(
        self, int32_t* partitions, int64_t* offsets, int64_t* timestamps, uint8_t* has_timestamp
    ) noexcept:
        cdef Py_ssize_t at, row = 0
        cdef Message* message
        with nogil:
            for at in range(self._scanned):
                if self._rows[at] < 0:
                    continue
                message = self._messages[at]
                partitions[row] = message.partition
                offsets[row] = message.offset
                timestamps[row] = self._timestamp(message)
                if has_timestamp != NULL and timestamps[row] >= 0:
                    _set_bit(has_timestamp, row, True)
                row += 1

    cdef void _copy_topics(self, int32_t* ends, uint8_t* data) noexcept:
        cdef Py_ssize_t at, row = 0
        cdef size_t size = 0
        cdef Place* place
        with nogil:
            ends[0] = 0
            for at in range(self._scanned):
                if self._rows[at] < 0:
                    continue
                place = &self._places[self._rows[at]]
                memcpy(data + size, place.topic, place.topic_bytes)
                size += place.topic_bytes
                row += 1
                ends[row] = <int32_t>size

    cdef void _copy_bytes(self, bint is_key, int32_t* ends, uint8_t* data, uint8_t* validity) noexcept:
        """Copy the keys or the values; an empty one is not null."""
        cdef Py_ssize_t at, row = 0
        cdef size_t size = 0, length
        cdef const void* found
        with nogil:
            ends[0] = 0
            for at in range(self._scanned):
                if self._rows[at] < 0:
                    continue
                found = self._messages[at].key if is_key else self._messages[at].value
                length = self._messages[at].key_bytes if is_key else self._messages[at].value_bytes
                if found != NULL:
                    memcpy(data + size, found, length)
                    size += length
                    if validity != NULL:
                        _set_bit(validity, row, True)
                row += 1
                ends[row] = <int32_t>size
