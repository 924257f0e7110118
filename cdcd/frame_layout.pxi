"""`cdcd.frame_layout` for a C extension, which reads the values from the Python module when it is loaded."""

from cdcd import frame_layout

cdef enum:
    LSN_BYTES = 8  # a constant of C, so that a copy of this size needs no call
if LSN_BYTES != frame_layout.LSN_BYTES:
    raise ImportError("the C extension was compiled for another width of an LSN")

cdef Py_ssize_t FRAME_BYTES = frame_layout.FRAME_BYTES
cdef Py_ssize_t FRAME_LSN_AT = frame_layout.FRAME_LSN_AT

cdef Py_ssize_t XID_AT = frame_layout.XID_AT
cdef Py_ssize_t RELID_AT = frame_layout.RELID_AT
cdef Py_ssize_t STREAMED_RELID_AT = frame_layout.STREAMED_RELID_AT
cdef Py_ssize_t RELID_BYTES = frame_layout.RELID_BYTES

cdef Py_ssize_t BEGIN_BYTES = frame_layout.BEGIN_BYTES
cdef Py_ssize_t BEGIN_COMMIT_LSN_AT = frame_layout.BEGIN_COMMIT_LSN_AT
cdef Py_ssize_t BEGIN_TIME_AT = frame_layout.BEGIN_TIME_AT
cdef Py_ssize_t BEGIN_XID_AT = frame_layout.BEGIN_XID_AT

cdef Py_ssize_t COMMIT_BYTES = frame_layout.COMMIT_BYTES
cdef Py_ssize_t COMMIT_FLAGS_AT = frame_layout.COMMIT_FLAGS_AT
cdef Py_ssize_t COMMIT_LSN_AT = frame_layout.COMMIT_LSN_AT
cdef Py_ssize_t COMMIT_END_LSN_AT = frame_layout.COMMIT_END_LSN_AT
