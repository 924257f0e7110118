# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=False
"""The C extension of `cdcd.sink.produce_batch`, whose Python functions are its specification.

In: a list of records.  Out: as in `cdcd.sink.produce_batch`.
Invariant: a record that librdkafka refuses is given to the producer's `produce`, which raises the reason. The handle
of a topic holds the producer, whose client would otherwise end first.
Must not: interpret keys or values.

This file is also a plugin of librdkafka: `conf_init` is called where `plugin.library.paths` names it. It registers a
function that librdkafka calls with the address of the new client, in the thread that creates it.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t

include "../function_address.pxi"

cdef extern from "Python.h":
    PyObject* PyTuple_GET_ITEM(object, Py_ssize_t)

cdef extern from *:
    """
    /* Types of librdkafka's interface, with void in place of its structures. */
    typedef int (*cdcd_on_new_t)(void *, const void *, void *, char *, size_t);
    typedef int (*cdcd_add_on_new_t)(void *, const char *, cdcd_on_new_t, void *);

    static cdcd_add_on_new_t cdcd_add_on_new = NULL;
    static _Thread_local void *cdcd_created = NULL;

    static int cdcd_on_new(void *client, const void *conf, void *opaque, char *text, size_t size) {
        (void) conf; (void) opaque; (void) text; (void) size;
        cdcd_created = client;
        return 0;
    }
    __attribute__((visibility("default")))
    int conf_init(void *conf, void **opaque, char *text, size_t size) {
        (void) opaque; (void) text; (void) size;
        return cdcd_add_on_new == NULL ? 0 : cdcd_add_on_new(conf, "cdcd", cdcd_on_new, NULL);
    }
    """
    ctypedef void* add_on_new_t "cdcd_add_on_new_t"
    add_on_new_t cdcd_add_on_new
    void* cdcd_created  # the client that this thread has created last

ctypedef void* (*opaque_t)(void*) noexcept nogil
ctypedef void* (*topic_new_t)(void*, const char*, void*) noexcept nogil
ctypedef void (*topic_destroy_t)(void*) noexcept nogil
ctypedef int (*produce_t)(void*, int32_t, int, void*, size_t, const void*, size_t, void*) noexcept nogil

cdef opaque_t rd_kafka_opaque = NULL
cdef topic_new_t rd_kafka_topic_new = NULL
cdef topic_destroy_t rd_kafka_topic_destroy = NULL
cdef produce_t rd_kafka_produce = NULL

cdef enum:
    COPY = 2  # RD_KAFKA_MSG_F_COPY


def use(add_on_new, opaque, topic_new, topic_destroy, produce):
    """Set librdkafka's functions: those of `cdcd.sink.direct_producer.FUNCTIONS`, from ctypes."""
    global cdcd_add_on_new, rd_kafka_opaque, rd_kafka_topic_new, rd_kafka_topic_destroy, rd_kafka_produce
    rd_kafka_opaque = <opaque_t>function_address(opaque)
    rd_kafka_topic_new = <topic_new_t>function_address(topic_new)
    rd_kafka_topic_destroy = <topic_destroy_t>function_address(topic_destroy)
    rd_kafka_produce = <produce_t>function_address(produce)
    cdcd_add_on_new = <add_on_new_t>function_address(add_on_new)


def forget_created():
    """Forget the client that this thread has created last: its creation may have failed."""
    global cdcd_created
    cdcd_created = NULL


@cython.no_gc_clear  # the producer has to be there in __dealloc__
cdef class _Topic:
    """A handle of a topic, which ends before the producer."""

    cdef void* handle  # NULL: librdkafka has made none
    cdef object _producer

    def __dealloc__(self):
        if self.handle != NULL:
            rd_kafka_topic_destroy(self.handle)


cdef class DirectProducer:
    """The librdkafka client of a producer that this thread has just created. Raises LookupError if it is unknown."""

    cdef void* _client
    cdef object _producer
    cdef dict _topics  # by name
    cdef PyObject* _last_topic  # valid during `produce_reported`, which holds the records
    cdef void* _last_handle

    def __init__(self, producer not None):
        cdef void* client = cdcd_created
        forget_created()
        self._topics = {}
        if rd_kafka_produce == NULL or client == NULL or rd_kafka_opaque(client) != <void*>producer:
            raise LookupError("the address of the producer's client is unknown")
        self._producer, self._client = producer, client

    def close(self):
        """Let go of the producer. It may be called again."""
        self._client = NULL
        self._topics = {}
        self._producer = None

    cdef void* _handle(self, topic) except? NULL:
        """Return the handle of a topic, NULL if librdkafka makes none."""
        cdef _Topic found = self._topics.get(topic)
        if found is None:
            name = topic.encode()
            found = _Topic.__new__(_Topic)
            found._producer = self._producer
            found.handle = rd_kafka_topic_new(self._client, PyBytes_AS_STRING(name), NULL)
            self._topics[topic] = found
        return found.handle

    cdef bint _takes(self, tuple record) except -1:
        """Produce a record, without a delivery report; return whether librdkafka has accepted it."""
        cdef PyObject* topic = PyTuple_GET_ITEM(record, 0)
        cdef const char* key = NULL
        cdef char* value = NULL
        cdef size_t key_bytes = 0, value_bytes = 0
        cdef int32_t partition
        if self._client == NULL:
            return False
        if topic != self._last_topic:
            self._last_handle = self._handle(<object>topic)
            self._last_topic = topic
        if self._last_handle == NULL:
            return False
        partition = record[1]
        if record[2] is not None:
            key, key_bytes = PyBytes_AS_STRING(<bytes?>record[2]), PyBytes_GET_SIZE(record[2])
        if record[3] is not None:
            value, value_bytes = PyBytes_AS_STRING(<bytes?>record[3]), PyBytes_GET_SIZE(record[3])
        return 0 == rd_kafka_produce(
            self._last_handle, partition, COPY, value, value_bytes, key, key_bytes, NULL
        )


cdef int _mark(list records, Py_ssize_t start, uint8_t* is_reported) except -1:
    """Mark the first and the last record of each partition from `start` on; an additional mark does no harm.

    Topics and partitions are compared by identity: the records of one plan have the same objects.
    """
    cdef Py_ssize_t count = len(records) - start, slots = 16, at, slot
    cdef PyObject* topic
    cdef PyObject* partition
    cdef PyObject** seen
    cdef Py_ssize_t* first
    while slots < 2 * count:
        slots *= 2
    seen = <PyObject**>PyMem_Calloc(2 * slots, sizeof(PyObject*))
    first = <Py_ssize_t*>PyMem_Malloc(slots * sizeof(Py_ssize_t))
    if seen == NULL or first == NULL:
        PyMem_Free(seen)
        PyMem_Free(first)
        raise MemoryError
    at = count
    while at > 0:
        at -= 1
        record = <tuple>records[start + at]
        topic, partition = PyTuple_GET_ITEM(record, 0), PyTuple_GET_ITEM(record, 1)
        slot = <Py_ssize_t>((<size_t>topic >> 4) * 31 + (<size_t>partition >> 4)) & (slots - 1)
        while seen[2 * slot] != NULL and (seen[2 * slot] != topic or seen[2 * slot + 1] != partition):
            slot = (slot + 1) & (slots - 1)
        is_reported[at] = seen[2 * slot] == NULL
        seen[2 * slot], seen[2 * slot + 1], first[slot] = topic, partition, at
    for slot in range(slots):
        if seen[2 * slot] != NULL:
            is_reported[first[slot]] = 1
    PyMem_Free(seen)
    PyMem_Free(first)
    return 0


def produce_reported(produce, reported, list records, Py_ssize_t start, DirectProducer direct=None):
    """Do the same as `cdcd.sink.produce_batch.produce_batch_in_python`.

    `direct` produces the records that ask for no delivery report.
    """
    cdef Py_ssize_t at = start, count = len(records)
    cdef uint8_t* is_reported = <uint8_t*>PyMem_Malloc(max(count - start, 1))
    if is_reported == NULL:
        raise MemoryError
    if direct is not None:
        direct._last_topic = NULL
    try:
        _mark(records, start, is_reported)
        while at < count:
            if is_reported[at - start]:
                topic, partition, key, value = <tuple>records[at]
                produce(topic, value, key, partition, reported)
            elif direct is None or not direct._takes(<tuple>records[at]):
                topic, partition, key, value = <tuple>records[at]
                produce(topic, value, key, partition)
            at += 1
    except Exception as failure:
        return at, failure
    finally:
        PyMem_Free(is_reported)
    return at, None


cdef enum:
    MOST_PARTITIONS = 64  # the value in `cdcd.sink.produce_batch`


def by_partition(list records):
    """Do the same as `cdcd.sink.produce_batch.by_partition_in_python`."""
    cdef Py_ssize_t count = len(records), at
    cdef Py_ssize_t ends[MOST_PARTITIONS]
    cdef PyObject* topics[MOST_PARTITIONS]
    cdef int64_t numbers[MOST_PARTITIONS]
    cdef PyObject* topic
    cdef int64_t number
    cdef int found = 0, group = 0
    cdef list ordered
    cdef uint8_t* group_of = <uint8_t*>PyMem_Malloc(max(count, 1))
    if group_of == NULL:
        raise MemoryError
    try:
        for at in range(count):
            record = <tuple>records[at]
            topic, number = PyTuple_GET_ITEM(record, 0), <object>PyTuple_GET_ITEM(record, 1)
            group = _group_of(topic, number, topics, numbers, found, group)
            if group == found:
                if found == MOST_PARTITIONS:
                    return records
                topics[found], numbers[found], ends[found] = topic, number, 0
                found += 1
            ends[group] += 1
            group_of[at] = <uint8_t>group
        if found <= 1:
            return records
        for group in range(1, found):
            ends[group] += ends[group - 1]
        ordered = [None] * count
        for at in range(count - 1, -1, -1):
            group = group_of[at]
            ends[group] -= 1
            ordered[ends[group]] = records[at]
        return ordered
    finally:
        PyMem_Free(group_of)


cdef int _group_of(
    PyObject* topic, int64_t number, PyObject** topics, int64_t* numbers, int found, int last
) except -1:
    """Return the index of the group found for this partition, else `found`; one topic may be several objects."""
    cdef int group
    if found and topics[last] == topic and numbers[last] == number:
        return last
    for group in range(found):
        if topics[group] == topic and numbers[group] == number:
            return group
    for group in range(found):
        if numbers[group] == number and <object>topics[group] == <object>topic:
            topics[group] = topic  # the next record is likely to have this object too
            return group
    return found
