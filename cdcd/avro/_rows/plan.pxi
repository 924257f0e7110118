"""A `RelationPlan` as a flat table: for each column an operation, or the encoder to call."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memset

cdef struct Column:
    Operation text
    Operation binary
    bint is_required
    PyObject* text_encoder
    PyObject* binary_encoder
    Slice unchanged
    Slice field


cdef int _fill_operation(Operation* into, object operation) except -1:
    into.op = operation.op
    into.low = operation.low
    into.high = operation.high
    into.max_bytes = operation.max_bytes
    into.element_op = CALL
    if operation.element is not None:
        if operation.element.op == Op.ARRAY_TEXT or operation.element.max_bytes:
            into.op = CALL
        else:
            into.element_op = operation.element.op
            into.element_low = operation.element.low
            into.element_high = operation.element.high
    return 0


cdef class CompiledPlan:
    """A `RelationPlan` as a flat table of column operations; made once for each plan."""

    cdef readonly object plan
    cdef int width
    cdef Column* columns
    cdef Value* new
    cdef Value* old
    cdef int keys
    cdef int* key_indexes
    cdef bint is_key_required
    cdef bint is_flat
    cdef bint tombstones
    cdef bint declines_changes
    cdef bint declines_whole_rows
    cdef int partitions
    cdef object topic
    cdef object null_key_partition
    cdef list partition_numbers
    cdef Slice key_header
    cdef Slice value_header
    cdef Slice schema_and_table
    cdef object references
    cdef int64_t inserts
    cdef int64_t updates
    cdef int64_t deletes
    cdef int64_t order

    def __cinit__(self, plan):
        self.width = len(plan.columns)
        self.columns = <Column*>PyMem_Malloc(sizeof(Column) * (self.width + 1))
        self.new = <Value*>PyMem_Malloc(sizeof(Value) * (self.width + 1))
        self.old = <Value*>PyMem_Malloc(sizeof(Value) * (self.width + 1))
        self.key_indexes = <int*>PyMem_Malloc(sizeof(int) * (len(plan.key_indexes) + 1))
        if self.columns == NULL or self.new == NULL or self.old == NULL or self.key_indexes == NULL:
            raise MemoryError
        memset(self.columns, 0, sizeof(Column) * (self.width + 1))

    def __init__(self, plan):
        cdef int at
        cdef Column* column
        cdef list references = [plan.key_header, plan.value_header, plan.schema_and_table]
        self.plan = plan
        self.references = references
        self.keys = len(plan.key_indexes)
        for at in range(self.keys):
            self.key_indexes[at] = plan.key_indexes[at]
        self.is_key_required = plan.is_key_required
        self.is_flat = plan.is_flat
        self.tombstones = plan.tombstones
        # Only the fallback handles old tuples from which a partition's identity may have omitted values (F78).
        self.declines_changes = plan.old_tuples is not None and bool(plan.old_tuples.short)
        self.declines_whole_rows = plan.old_tuples is not None
        self.partitions = plan.partitions
        self.partition_numbers = list(range(plan.partitions))
        self.topic = plan.topic
        self.null_key_partition = plan.null_key_partition
        self.key_header = _slice(plan.key_header)
        self.value_header = _slice(plan.value_header)
        self.schema_and_table = _slice(plan.schema_and_table)
        for at in range(self.width):
            column = &self.columns[at]
            described = plan.columns[at]
            codec = described.codec
            _fill_operation(&column.text, codec.text_op)
            _fill_operation(&column.binary, codec.binary_op)
            column.is_required = described.is_required
            field = _avro_string(described.field.encode())
            references += [codec.text, codec.binary, described.unchanged, field]
            column.text_encoder = <PyObject*>codec.text
            column.binary_encoder = <PyObject*>codec.binary
            column.unchanged = _slice(described.unchanged)
            column.field = _slice(field)

    def __dealloc__(self):
        PyMem_Free(self.columns)
        PyMem_Free(self.new)
        PyMem_Free(self.old)
        PyMem_Free(self.key_indexes)


cdef bytes _avro_string(bytes text):
    cdef Buffer out
    memset(&out, 0, sizeof(out))
    try:
        _put_sized(&out, <const uint8_t*>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
        return _bytes_of(&out)
    finally:
        PyMem_Free(out.data)
