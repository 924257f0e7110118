"""The programs of `cdcd.columnar.program` as C structures."""

from libc.stdlib cimport calloc

cdef enum:
    OP_NULL = 0
    OP_BOOLEAN = 1
    OP_INT = 2
    OP_LONG = 3
    OP_FLOAT = 4
    OP_DOUBLE = 5
    OP_BYTES = 6
    OP_STRING = 7
    OP_DECIMAL = 8
    OP_ARRAY = 9
    OP_MAP = 10
    OP_RECORD = 11
    OP_UNION = 12
    OP_RUN = 13  # only here: adjacent fields of a record that are skipped and have no parts

cdef enum:
    SKIP = -1
    NO_UNION = -1

# How a field without parts is skipped; a union with null adds where its null is.
cdef enum:  # as in input.pxi
    SKIP_BYTES = 0
    SKIP_NUMBER = 1
    SKIP_1 = 2
    SKIP_4 = 3
    SKIP_8 = 4
    NO_STEP = 5
    NULL_FIRST = 8
    NULL_LAST = 16

# How a value without parts is put into its column; a record's fields are decoded by it.
cdef enum:
    PUT_INT32 = 0
    PUT_INT64 = 1
    PUT_STRING = 2
    PUT_4 = 3
    PUT_8 = 4
    PUT_OTHERS = 5  # by its op

cdef enum:
    LAYOUT_STEPS = 4  # a shorter run is skipped faster than compared

cdef struct Node:
    int way
    Store* store  # of its column; NULL: it is skipped
    int op
    int column
    int null_branch
    int children
    Node** child  # in Code.pointers
    int missing
    const int* missing_columns  # in Code.numbers
    uint8_t* steps  # of OP_RUN: its fields, `children` of them, in Code.steps
    Layout* layout  # of OP_RUN with enough fields, in Code.layouts

cdef struct Code:
    int64_t schema_id
    Node* nodes
    Node** pointers
    int* numbers
    uint8_t* steps
    Layout* layouts
    Node* root


cdef inline uint8_t _step_of(const Node* node) noexcept nogil:
    """Return how a node is skipped, NO_STEP if it has parts or a column."""
    cdef uint8_t nullable = 0
    if node.column != SKIP:
        return NO_STEP
    if node.null_branch != NO_UNION:
        nullable = NULL_LAST if node.null_branch else NULL_FIRST
    if node.op == OP_STRING or node.op == OP_BYTES or node.op == OP_DECIMAL:
        return SKIP_BYTES | nullable
    elif node.op == OP_INT or node.op == OP_LONG:
        return SKIP_NUMBER | nullable
    elif node.op == OP_BOOLEAN:
        return SKIP_1 | nullable
    elif node.op == OP_FLOAT:
        return SKIP_4 | nullable
    elif node.op == OP_DOUBLE:
        return SKIP_8 | nullable
    return NO_STEP


cdef inline int _way_of(const Node* node) noexcept nogil:
    if node.store == NULL or node.null_branch == 1:
        return PUT_OTHERS
    elif node.op == OP_INT and node.store.kind == INT32:
        return PUT_INT32
    elif node.op == OP_LONG and node.store.kind == INT64:
        return PUT_INT64
    elif node.op == OP_STRING:
        return PUT_STRING
    elif node.op == OP_FLOAT and node.store.kind == FLOAT:
        return PUT_4
    elif node.op == OP_DOUBLE:
        return PUT_8
    return PUT_OTHERS


cdef int _load(Code* code, int64_t schema_id, program, Store* stores) except -1:
    """Copy a program whose columns have these stores. Raises MemoryError."""
    cdef int nodes = len(program.nodes), parts, columns
    parts = sum(len(one.children) for one in program.nodes)
    columns = sum(len(one.missing) for one in program.nodes)
    memset(code, 0, sizeof(Code))
    code.schema_id = schema_id
    # A run replaces at least one field, so there are at most twice as many nodes.
    code.nodes = <Node*>realloc(NULL, (nodes + parts) * sizeof(Node))
    code.pointers = <Node**>realloc(NULL, (parts + 1) * sizeof(Node*))
    code.numbers = <int*>realloc(NULL, (columns + 1) * sizeof(int))
    code.steps = <uint8_t*>realloc(NULL, parts + 1)
    code.layouts = <Layout*>calloc(parts // LAYOUT_STEPS + 1, sizeof(Layout))
    if not (code.nodes and code.pointers and code.numbers and code.steps and code.layouts):
        _unload(code)
        raise MemoryError
    code.root = &code.nodes[nodes - 1]
    memset(code.nodes, 0, (nodes + parts) * sizeof(Node))
    _fill(code, program, stores)
    return 0


cdef int _fill(Code* code, program, Store* stores) except -1:
    cdef Node** pointer = code.pointers
    cdef int* number = code.numbers
    cdef Node* run = code.root + 1
    cdef uint8_t* step = code.steps
    cdef Layout* layout = code.layouts
    cdef uint8_t found
    cdef Node* node
    cdef Node* child
    for place, one in enumerate(program.nodes):
        node = &code.nodes[<int>place]
        node.op, node.column, node.null_branch = one.op, one.column, one.null_branch
        node.store = NULL if node.column == SKIP else &stores[node.column]
        node.way = _way_of(node)
        node.child, node.missing, node.missing_columns = pointer, len(one.missing), number
        for column in one.missing:
            number[0] = column
            number += 1
        is_running = False
        for part in one.children:
            child = &code.nodes[<int>part]
            found = _step_of(child) if node.op == OP_RECORD else NO_STEP
            if found != NO_STEP:
                if not is_running:
                    run.op, run.column, run.null_branch, run.steps = OP_RUN, SKIP, NO_UNION, step
                    run.way = PUT_OTHERS
                    pointer[0] = run
                    pointer += 1
                    node.children += 1
                    run += 1
                step[0] = found
                step += 1
                (run - 1).children += 1
                if (run - 1).children == LAYOUT_STEPS:
                    (run - 1).layout = layout
                    layout += 1
            else:
                pointer[0] = child
                pointer += 1
                node.children += 1
            is_running = found != NO_STEP
    return 0


cdef void _unload(Code* code) noexcept nogil:
    free(code.nodes)
    free(code.pointers)
    free(code.numbers)
    free(code.steps)
    free(code.layouts)
    memset(code, 0, sizeof(Code))
