# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=False
"""The C extension of `cdcd.sink.produce_batch`, whose Python functions are its specification.

In: a list of records.  Out: as in `cdcd.sink.produce_batch`.
Must not: read anything of a record but its topic and partition.
"""

from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t

cdef extern from "Python.h":
    PyObject* PyTuple_GET_ITEM(object, Py_ssize_t)


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


def produce_reported(produce, reported, list records, Py_ssize_t start):
    """Do the same as `cdcd.sink.produce_batch.produce_batch_in_python`."""
    cdef Py_ssize_t at = start, count = len(records)
    cdef uint8_t* is_reported = <uint8_t*>PyMem_Malloc(max(count - start, 1))
    if is_reported == NULL:
        raise MemoryError
    try:
        _mark(records, start, is_reported)
        while at < count:
            topic, partition, key, value = <tuple>records[at]
            if is_reported[at - start]:
                produce(topic, value, key, partition, reported)
            else:
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
