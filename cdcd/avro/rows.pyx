# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=False
"""The row codec as a C extension: raw row messages -> Kafka records, without a Python object per column.

In: a `RowBatch` or `TransactionBatch`, plans by relid, the transaction's constants.  Out: records.
Invariant: bytes and errors are those of its Python fallback (`cdcd.avro.encode`), which is its specification. A value
that an operation does not support goes to the column's own encoder, or its row to the fallback. After an error the
fallback encodes the whole batch again, so that it raises its own error. No byte is read beyond a frame, and no byte
is written beyond a buffer's capacity.
Must not: guess. The fallback decides every uncertain case.

Input, `frames` (numbers are big-endian):

    frame        | length int32 | LSN int64 | payload: one message, `length` bytes |  the next frame ...

    Insert       | 'I' | xid | relid |                       'N' TupleData |      xid int32: only in rows that were
    Update       | 'U' | xid | relid | 'K' or 'O' TupleData, 'N' TupleData |      streamed before their commit
    Delete       | 'D' | xid | relid | 'K' or 'O' TupleData |                     'K', 'O' of an Update: optional
    Begin        | 'B' | commit LSN int64 | commit time int64 | xid int32 |       Begin and Commit: only in
    Commit       | 'C' | flags int8 | commit LSN | end LSN | commit time |        `TransactionBatch`

    TupleData    | columns int16 | for each column 'n', 'u', 't' length int32 text or 'b' length int32 send format |

Output, a record's key and value (numbers are Avro's longs, | are not written):

    key          | 0 | schema id int32 | key columns |
    value        | 0 | schema id int32 | branch before | branch after | source | transaction | op | ts_ms, _us, _ns |
    source       | version, connector, name | ts_ms | snapshot, db | sequence | ts_us, ts_ns | schema, table | txId |
                 | lsn | xmin, origin, origin_lsn, timeline, commit_lsn | tx_seq | special | unchanged |
    flat value   | 0 | schema id int32 | columns | op | deleted | timeline, commit_lsn | tx_seq | ts_ms | special |
                 | unchanged |
    column       | branch, if it may be null | value |
"""

# One extension, so that the C compiler can inline across the files. A file uses names of the files before it.
include "../big_endian.pxi"
include "../frame_layout.pxi"
include "_rows/bytes.pxi"
include "_rows/buffer.pxi"
include "_rows/operations.pxi"
include "_rows/types/array.pxi"
include "_rows/types/boolean.pxi"
include "_rows/types/bytea.pxi"
include "_rows/types/text.pxi"
include "_rows/types/json.pxi"
include "_rows/types/integer.pxi"
include "_rows/types/floating.pxi"
include "_rows/types/numeric.pxi"
include "_rows/types/date.pxi"
include "_rows/types/time.pxi"
include "_rows/types/timestamp.pxi"
include "_rows/types/uuid.pxi"
include "_rows/dispatch.pxi"
include "_rows/tuple.pxi"
include "_rows/plan.pxi"
include "_rows/columns.pxi"
include "_rows/envelope.pxi"
include "_rows/record.pxi"
include "_rows/change.pxi"
include "_rows/batch.pxi"
include "_rows/transactions.pxi"
