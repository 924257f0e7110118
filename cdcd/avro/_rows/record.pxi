"""Key and value -> a `Record` in the partition that Kafka's own clients choose for the key."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyTypeObject
from libc.stdint cimport uint8_t, uint32_t

from cdcd.model import Record

cdef extern from "Python.h":
    int PyList_Append(object, object) except -1

cdef extern from *:
    """
    static inline uint32_t cdcd_le32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }

    /* org.apache.kafka.common.utils.Utils.murmur2 */
    static inline uint32_t cdcd_murmur2(const uint8_t *p, uint32_t size) {
        const uint32_t m = 0x5bd1e995;
        uint32_t h = 0x9747b28cU ^ size;
        uint32_t left = size;
        while (left >= 4) {
            uint32_t k = cdcd_le32(p);
            k *= m; k ^= k >> 24; k *= m;
            h *= m; h ^= k;
            p += 4; left -= 4;
        }
        switch (left) {
            case 3: h ^= (uint32_t)p[2] << 16; /* fall through */
            case 2: h ^= (uint32_t)p[1] << 8;  /* fall through */
            case 1: h ^= p[0]; h *= m;
        }
        h ^= h >> 13; h *= m; h ^= h >> 15;
        return h;
    }

    /* Creates an instance of a subclass of tuple as its __new__ does; borrows the references of the arguments. */
    static inline PyObject *cdcd_record(
        PyTypeObject *type, PyObject *topic, PyObject *partition, PyObject *key, PyObject *value
    ) {
        PyObject *record = type->tp_alloc(type, 4);
        if (record == NULL) return NULL;
        Py_INCREF(topic); PyTuple_SET_ITEM(record, 0, topic);
        Py_INCREF(partition); PyTuple_SET_ITEM(record, 1, partition);
        Py_INCREF(key); PyTuple_SET_ITEM(record, 2, key);
        Py_INCREF(value); PyTuple_SET_ITEM(record, 3, value);
        return record;
    }
    """
    uint32_t cdcd_murmur2(const uint8_t*, uint32_t) noexcept
    object cdcd_record(PyTypeObject*, object, object, object, object)

cdef PyTypeObject* _record_type = <PyTypeObject*>Record


cdef object _partition(CompiledPlan plan, bytes key):
    if plan.partitions == 1:
        return plan.partition_numbers[0]
    cdef uint32_t found = cdcd_murmur2(<const uint8_t*>PyBytes_AS_STRING(key), <uint32_t>PyBytes_GET_SIZE(key))
    return plan.partition_numbers[(found & 0x7FFFFFFF) % <uint32_t>plan.partitions]


cdef int _append(list records, CompiledPlan plan, bytes key, object value) except -1:
    partition = plan.null_key_partition if key is None else _partition(plan, key)
    PyList_Append(records, cdcd_record(_record_type, plan.topic, partition, key, value))
    return 0
