"""A program (`cdcd.verify.program`) in C, and the walk over a record that finds the values of its slots."""

cdef enum:  # kinds of nodes, as in `cdcd.verify.program`
    NULL_NODE = 0
    BOOLEAN_NODE = 1
    NUMBER_NODE = 2
    FLOAT_NODE = 3
    DOUBLE_NODE = 4
    BYTES_NODE = 5
    STRING_NODE = 6
    ARRAY_NODE = 7
    MAP_NODE = 8
    RECORD_NODE = 9
    UNION_NODE = 10

cdef struct Node:
    int kind, slot, first, children

cdef struct Slot:
    const uint8_t* begin  # NULL: the value is null
    const uint8_t* end


cdef class Program:
    """The nodes, slots and columns of one schema."""

    cdef Node* nodes
    cdef int* children
    cdef Slot* found
    cdef Form* forms
    cdef int slots, columns
    cdef tuple functions, names

    def __cinit__(self, given):
        cdef int number, place = 0
        nodes, self.slots, columns, self.names = given
        self.columns = len(columns)
        self.functions = tuple([one[7] for one in columns])
        self.nodes = <Node*>calloc(len(nodes) + 1, sizeof(Node))
        self.children = <int*>calloc(len(nodes) + 1, sizeof(int))  # a tree: each node but one is a child
        self.found = <Slot*>calloc(self.slots + 1, sizeof(Slot))
        self.forms = <Form*>calloc(self.columns + 1, sizeof(Form))
        if self.nodes == NULL or self.children == NULL or self.found == NULL or self.forms == NULL:
            raise MemoryError
        for number, (kind, slot, children) in enumerate(nodes):
            self.nodes[number] = Node(kind, slot, place, len(children))
            for child in children:
                self.children[place] = child
                place += 1
        for number, one in enumerate(columns):
            self.forms[number] = Form(one[0], one[1], one[2], one[3], one[4], one[5], one[6])

    def __dealloc__(self):
        free(self.nodes)
        free(self.children)
        free(self.found)
        free(self.forms)

    cdef int walk_all(self, const uint8_t* data, int64_t size) noexcept nogil:
        """Find the values of a record behind its header; return a fault."""
        cdef Input input
        cdef int fault
        memset(self.found, 0, self.slots * sizeof(Slot))
        input.at, input.end = data, data + size
        fault = self.walk(0, &input)
        return UNUSUAL if fault == OK and input.at != input.end else fault

    cdef int walk(self, int number, Input* data) noexcept nogil:
        cdef const Node* node = &self.nodes[number]
        cdef const uint8_t* begin = data.at
        cdef const uint8_t* value
        cdef int fault = OK, at, branch
        cdef int64_t size
        cdef uint64_t ignored
        if node.kind == UNION_NODE:
            fault = _branch(data, &branch)
            if fault == OK and branch >= node.children:
                fault = BRANCH
            return fault if fault else self.walk(self.children[node.first + branch], data)
        if node.kind == NUMBER_NODE:
            fault = _long(data, &size)
        elif node.kind == STRING_NODE or node.kind == BYTES_NODE:
            fault = _bytes(data, &value, &size)
            if fault == OK and node.kind == STRING_NODE and not _is_utf8(value, size):
                fault = TEXT
        elif node.kind == RECORD_NODE:
            for at in range(node.children):
                fault = self.walk(self.children[node.first + at], data)
                if fault:
                    break
        elif node.kind == ARRAY_NODE or node.kind == MAP_NODE:
            fault = self.walk_items(node, data)
        elif node.kind == BOOLEAN_NODE:
            fault = _skip_bytes(data, 1)
            if fault == OK and begin[0] > 1:
                fault = BOOLEAN
        elif node.kind == FLOAT_NODE or node.kind == DOUBLE_NODE:
            fault = _skip_bytes(data, 4 if node.kind == FLOAT_NODE else 8)
        if fault == OK and node.slot >= 0:
            self.found[node.slot] = Slot(begin, data.at)
        return fault

    cdef int walk_items(self, const Node* node, Input* data) noexcept nogil:
        cdef const uint8_t* value
        cdef int64_t items, size
        cdef int fault
        while True:
            fault = _block(data, &items)
            if fault or items == 0:
                return fault
            while items:
                items -= 1
                if node.kind == MAP_NODE:
                    fault = _bytes(data, &value, &size)
                    if fault == OK and not _is_utf8(value, size):
                        fault = TEXT
                if fault == OK:
                    fault = self.walk(self.children[node.first], data)
                if fault:
                    return fault

    cdef int put_column(self, int column, Text* text) except -1:
        """Append the text of a column that is not null; return a fault."""
        cdef const Form* form = &self.forms[column]
        cdef Input data
        data.at, data.end = self.found[form.slot].begin, self.found[form.slot].end
        if form.form == ARRAY_FORM:
            return put_array(text, form, &data)
        if form.form != FUNCTION:
            return put_value(text, form.form, form.number, &data)
        value = PyBytes_FromStringAndSize(<const char*>data.at, data.end - data.at)
        try:
            made = self.functions[column](value)
        except Exception:  # the specification raises it, with the record's place
            return UNUSUAL
        return put(text, <const uint8_t*>PyBytes_AS_STRING(made), PyBytes_GET_SIZE(made))

    cdef inline bint is_null(self, int column) noexcept nogil:
        return self.found[self.forms[column].slot].begin == NULL

    cdef int64_t number_at(self, int slot) noexcept nogil:
        """Return the number of a slot that the walk has found."""
        cdef Input data
        cdef int64_t number = 0
        data.at, data.end = self.found[slot].begin, self.found[slot].end
        _long(&data, &number)
        return number

    cdef bint is_text(self, int slot, const char* wanted, int64_t size) noexcept nogil:
        """Return whether a slot that the walk has found has this text."""
        cdef Input data
        cdef const uint8_t* value
        cdef int64_t found
        data.at, data.end = self.found[slot].begin, self.found[slot].end
        return not _bytes(&data, &value, &found) and found == size and memcmp(value, wanted, size) == 0
