"""The class `Columns`: see `ColumnsInPython`, which has the same methods."""

cdef object pa = None  # imported with the first columns: the daemon loads this extension, and does not need pyarrow


cdef int _import_pyarrow() except -1:
    global pa
    if pa is None:
        import pyarrow
        pa = pyarrow
    return 0

cdef struct Records:
    const uint8_t* data
    const void* offsets
    const uint8_t* validity  # NULL: no record is null
    bint is_large  # offsets of 64 bits
    int64_t first  # the place of the first record in the buffers
    int64_t rows


cdef inline int64_t _offset(const Records* records, int64_t row) noexcept nogil:
    cdef int32_t small
    cdef int64_t offset
    if records.is_large:
        memcpy(&offset, <const uint8_t*>records.offsets + row * 8, 8)
        return offset
    memcpy(&small, <const uint8_t*>records.offsets + row * 4, 4)
    return small


cdef class Columns:
    """The columns of records."""

    cdef object _columns
    cdef Store* _stores
    cdef int* _children
    cdef int _count_of_columns
    cdef Code* _codes
    cdef int _count_of_codes, _last_code
    cdef Store _ids
    cdef int64_t _unknown_id

    def __cinit__(self, columns):
        cdef int place = 0
        _import_pyarrow()
        self._columns = tuple(columns)
        self._count_of_columns = len(self._columns)
        total = sum(len(one.children) for one in self._columns)
        self._stores = <Store*>realloc(NULL, (self._count_of_columns + 1) * sizeof(Store))
        if self._stores == NULL:
            raise MemoryError
        memset(self._stores, 0, (self._count_of_columns + 1) * sizeof(Store))
        self._children = <int*>realloc(NULL, (total + 1) * sizeof(int))
        if self._children == NULL:
            raise MemoryError
        for number, column in enumerate(self._columns):
            self._stores[number].kind = column.kind
            self._stores[number].precision = column.precision
            self._stores[number].first_child = place
            self._stores[number].children = len(column.children)
            for child in column.children:
                self._children[place] = child
                place += 1
        self._ids.kind = INT64

    def __dealloc__(self):
        cdef int number
        if self._stores != NULL:
            for number in range(self._count_of_columns):
                _free_store(&self._stores[number])
        for number in range(self._count_of_codes):
            _unload(&self._codes[number])
        _free_store(&self._ids)
        free(self._codes)
        free(self._children)
        free(self._stores)

    def add_program(self, int64_t schema_id, program):
        """Decode records of this schema id by this program."""
        cdef int number
        cdef Code* codes
        cdef Code code
        _load(&code, schema_id, program, self._stores)
        for number in range(self._count_of_codes):
            if self._codes[number].schema_id == schema_id:
                _unload(&self._codes[number])
                self._codes[number] = code
                return
        codes = <Code*>realloc(self._codes, (self._count_of_codes + 1) * sizeof(Code))
        if codes == NULL:
            _unload(&code)
            raise MemoryError
        self._codes = codes
        self._codes[self._count_of_codes] = code
        self._count_of_codes += 1

    def decode(self, records, int64_t start):
        """Append the records from `start` on. Return (row, fault, schema id) of the first that is not appended."""
        cdef Records found
        cdef int64_t row = start
        cdef int fault = OK
        validity, offsets, data = records.buffers()
        found.rows = len(records)
        found.first = records.offset
        found.is_large = pa.types.is_large_binary(records.type)
        found.validity = <const uint8_t*><uintptr_t>(validity.address if validity is not None else 0)
        found.offsets = <const void*><uintptr_t>(offsets.address if offsets is not None else 0)
        found.data = <const uint8_t*><uintptr_t>(data.address if data is not None else 0)
        self._unknown_id = -1
        with nogil:
            while row < found.rows and fault == OK:
                fault = self._append(&found, row)
                row += 1
        if fault == OK:
            return found.rows, 0, -1
        if fault == NO_MEMORY:
            raise MemoryError
        return row - 1, 0 if fault == UNKNOWN_SCHEMA else fault, self._unknown_id

    def append_null(self):
        """Append a null row, for a record that cannot be decoded."""
        if self._append_absent():
            raise MemoryError

    def take(self):
        """Return the rows, and their schema ids; begin with no rows again."""
        rows = self._array(0)
        ids = self._plain(&self._ids, pa.int64())
        _clear(&self._ids)
        return rows, ids

    cdef int _append_absent(self) noexcept nogil:
        cdef int fault = _append_null(self._stores, self._children, 0)
        return fault if fault else _append_null(&self._ids, NULL, 0)

    cdef int _append(self, const Records* records, int64_t row) noexcept nogil:
        """Append one record, or nothing."""
        cdef int64_t place = records.first + row, begin
        cdef const Code* code
        cdef Input data
        cdef Target out
        cdef int fault
        if records.validity != NULL and not (records.validity[place >> 3] >> (place & 7)) & 1:
            return self._append_absent()
        begin = _offset(records, place)
        data.at = records.data + begin
        data.end = records.data + _offset(records, place + 1)
        if data.end - data.at < HEADER_BYTES or data.at[0] != 0:
            self._unknown_id = -1
            return HEADER
        self._unknown_id = cdcd_u32(data.at + 1)
        code = self._code_of(self._unknown_id)
        if code == NULL:
            return UNKNOWN_SCHEMA
        data.at += HEADER_BYTES
        out.stores = self._stores
        out.children = self._children
        fault = _put(code.root, &data, &out)
        if fault == OK and data.at != data.end:
            fault = TRAILING
        if fault == OK:
            fault = _append_fixed(&self._ids, &code.schema_id, 8)
        if fault:
            _truncate(self._stores, self._children, 0, self._ids.rows)
        return fault

    cdef const Code* _code_of(self, int64_t schema_id) noexcept nogil:
        cdef int number
        if self._last_code < self._count_of_codes and self._codes[self._last_code].schema_id == schema_id:
            return &self._codes[self._last_code]
        for number in range(self._count_of_codes):
            if self._codes[number].schema_id == schema_id:
                self._last_code = number
                return &self._codes[number]
        return NULL

    cdef object _validity(self, Store* store):
        return _taken(&store.validity, (store.rows + 7) >> 3) if store.nulls else None

    cdef object _plain(self, Store* store, type_):
        size = (store.rows + 7) >> 3 if store.kind == BIT else store.rows * _width_of(store.kind)
        buffers = [self._validity(store), _taken(&store.data, size)]
        return pa.Array.from_buffers(type_, store.rows, buffers, store.nulls)

    cdef object _array(self, int number):
        cdef Store* store = &self._stores[number]
        column = self._columns[number]
        children = [self._array(child) for child in column.children]
        if store.kind not in (BYTES, LIST, MAP, STRUCT):
            array = self._plain(store, column.type)
        else:
            buffers = [self._validity(store)]
            if store.kind != STRUCT:
                if store.rows == 0:
                    buffers.append(pa.py_buffer(bytes(4)))
                else:
                    buffers.append(_taken(&store.offsets, (store.rows + 1) * 4))
            if store.kind == BYTES:
                buffers.append(_taken(&store.data, store.size))
            elif store.kind == MAP:
                fields = [column.type.key_field, column.type.item_field]
                children = [pa.StructArray.from_arrays(children, fields=fields)]
            array = pa.Array.from_buffers(column.type, store.rows, buffers, store.nulls, children=children)
        _clear(store)
        return array
