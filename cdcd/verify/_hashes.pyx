# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=False
"""The C extension of `cdcd.verify.hashes`, whose Python functions are its specification.

In: the bytes of texts.  Out: as in `cdcd.verify.hashes`.
Must not: read beyond a text.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

include "../hash_bytes.pxi"


def hash64(bytes data not None, uint64_t seed):
    """Return the hash of a text."""
    return hash_of(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), seed)


def row_hashes(uint64_t key_hash, constants, texts):
    """Return the hashes of a row's columns, 8 bytes each."""
    cdef Py_ssize_t count = len(texts), number, place
    cdef uint64_t found
    cdef uint8_t* into
    if len(constants) != count:
        raise ValueError("each column has a constant and a text")
    made = PyBytes_FromStringAndSize(NULL, 8 * count)
    into = <uint8_t*>PyBytes_AS_STRING(made)
    for number in range(count):
        text = texts[number]
        if isinstance(text, bytes):
            found = hash_of(
                <const uint8_t*>PyBytes_AS_STRING(text),
                PyBytes_GET_SIZE(text),
                key_hash ^ <uint64_t>constants[number],
            )
        else:
            found = 0 if text is None else <uint64_t>text
        for place in range(8):
            into[8 * number + place] = <uint8_t>(found >> (56 - 8 * place))
    return made
