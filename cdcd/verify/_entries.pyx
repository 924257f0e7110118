# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=False
"""The C extension of `cdcd verify`'s hot path: records to entries, entries to sums.

Its specification is in Python: `cdcd.verify.records.Records.entry` for `Reader`, `cdcd.verify.fold` for `sums`,
`cdcd.verify.spill` for `sorted_entries` and `distribute`.

In: records of topics, programs of their schemas (`cdcd.verify.program`); entries.  Out: as in these modules.
Invariant: no byte is read beyond a record or an entry. Whatever is unusual in a record is left to the specification,
before anything of the record is noted.
Must not: have an error of its own for a record.
"""

from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

include "../columnar/_arrow/input.pxi"
include "../hash_bytes.pxi"
include "_entries/layout.pxi"
include "_entries/text.pxi"
include "_entries/numbers.pxi"
include "_entries/program.pxi"
include "_entries/records.pxi"
include "_entries/files.pxi"
include "_entries/sums.pxi"
