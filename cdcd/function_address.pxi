"""The address of a ctypes function: that of the C function, or the entry point of a callback."""

import ctypes

from libc.stdint cimport uintptr_t


cdef void* function_address(function) except NULL:
    """Return the address. Raises ValueError for a function that a library does not have."""
    value = ctypes.cast(function, ctypes.c_void_p).value
    if not value:
        raise ValueError("a function of a C library without an address")
    return <void*><uintptr_t>value
