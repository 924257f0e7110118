"""The fuzz targets: functions that accept any bytes and raise only documented errors.

In: bytes of a fuzzer.  Out: nothing. A crash is an undocumented exception, a message that is decoded but not encoded
to the same bytes, or a C extension that differs from its Python fallback.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from random import Random
from types import ModuleType

import pyarrow as pa

from cdcd.avro.encode import (
    EncodedTransactions,
    encode_batch,
    encode_batch_in_python,
    encode_transaction_batch,
)
from cdcd.avro.plan import RelationPlan
from cdcd.avro.transaction import TransactionContext
from cdcd.columnar import decoder as decoder_of_columns
from cdcd.columnar.decoder import RecordDecoder
from cdcd.columnar.fallback import ColumnsInPython
from cdcd.errors import FeatureUnsupported, MessageTrailing, ProtocolError
from cdcd.model import RowBatch, TransactionBatch, TransactionInfo
from cdcd.pgoutput.decode import decode
from cdcd.pgoutput.messages import MESSAGES
from cdcd.source.copyboth import cut_items, read_frame, write_frame
from cdcd.txn.assembler import Assembler
from cdcd.txn.events import Rows
from cdcd.txn.frames import count_operations
from tests.fuzz.messages import messages
from tests.support.arrow_values import shown
from tests.support.implementations import READING, is_wanted, loaded
from tests.support.pgoutput_encode import encode
from tests.support.played import Played
from tests.support.some_avro import SomeAvro
from tests.support.some_rows import LSN, Table, context, outcome
from tests.support.transaction_batch import gathered_back, one_by_one, without_needless

MAX_INPUT_BYTES = 4096
TABLES = 32
"""The number of seeds of the tables in the targets `rows` and `transactions`, and of the schemas in `columns`."""


def session_byte(
    *,
    in_stream: bool = False,
    protocol_version: int = 4,
    streaming_parallel: bool = False,
    two_phase: bool = False,
) -> int:
    """Return the first byte of an input: the session's options. Its sixth bit: unsafe streaming is refused."""
    return (protocol_version - 1) | in_stream << 2 | streaming_parallel << 3 | two_phase << 4


def decoder(data: bytes) -> None:
    """A session byte, then one pgoutput message."""
    if not data:
        return
    version, in_stream, is_parallel = (data[0] & 3) + 1, bool(data[0] & 4), bool(data[0] & 8)
    in_stream = in_stream and version >= 2
    payload = data[1:]
    try:
        message = decode(
            payload, in_stream=in_stream, protocol_version=version, streaming_parallel=is_parallel
        )
    except ProtocolError as error:
        row = MESSAGES.get(payload[0]) if payload else None
        is_known = row is not None and row.since_version <= version
        if is_known and not {"message_name", "field"} <= set(error.context):
            raise AssertionError("an error without message and field") from error
        return
    written = encode(message, in_stream=in_stream, protocol_version=version, streaming_parallel=is_parallel)
    if written != payload:
        raise AssertionError("read, and written back to other bytes")


def frames(data: bytes) -> None:
    """One CopyData payload."""
    try:
        frame = read_frame(data)
    except ProtocolError:
        return
    if write_frame(frame) != data:
        raise AssertionError("read, and written back to other bytes")


def assembler(data: bytes) -> None:
    """A session byte, then CopyData payloads, each with a length of two bytes before it."""
    if not data:
        return
    version, is_parallel = (data[0] & 3) + 1, bool(data[0] & 8)
    core = Assembler(
        version,
        streaming_parallel=is_parallel,
        two_phase=bool(data[0] & 16),
        refuse_unsafe_streaming=bool(data[0] & 32),
    )
    try:
        items, _ = cut_items(list(_split(data[1:])), False)
        for item in items:
            assert not isinstance(item, TransactionBatch), "the assembler yields no transaction batches"
            core.subtransactions_ended_by(item)
            for event in core.feed(item):
                if isinstance(event, Rows):
                    _read(event.batch, version)
    except (ProtocolError, FeatureUnsupported):
        return


def _read(batch: RowBatch, version: int) -> None:
    """Check that a batch consists of complete frames, each with a row; the decoder's target covers their contents."""
    rows, at = 0, 0
    while at < len(batch.frames):
        end = at + 12 + int.from_bytes(batch.frames[at : at + 4], "big")
        rows += 1
        try:
            decode(batch.frames[at + 12 : end], in_stream=batch.xid is not None, protocol_version=version)
        except MessageTrailing:
            pass
        at = end
    if (rows, at) != (batch.count, len(batch.frames)):
        raise AssertionError("a batch that differs from its frames")
    if sum(count_operations(batch).values()) != rows:
        raise AssertionError("a wrong number of rows")


def reading(data: bytes) -> None:
    """A byte (1: inside a stream, 2: batches of transactions, 4: a small limit), then CopyData payloads."""
    if not data:
        return
    messages = [message for message in _split(data[1:]) if message]
    in_stream, gathers = bool(data[0] & 1), bool(data[0] & 2)
    max_bytes = 200 if data[0] & 4 else 1 << 20
    fallback, extension = READING
    expected = _drained(loaded(fallback), messages, in_stream, gathers, max_bytes)
    plain = _drained(loaded(fallback), messages, in_stream, False, max_bytes)
    if gathers and not all(_is_the_same(*each) for each in zip(expected, plain, strict=True)):
        raise AssertionError("a transaction batch that differs from its messages")
    if is_wanted(extension):
        found = _drained(loaded(extension), messages, in_stream, gathers, max_bytes)
        if repr(found) != repr(expected):
            raise AssertionError("the compiled drain differs from its Python fallback")


def _drained(
    module: ModuleType, messages: list[bytes], in_stream: bool, gathers: bool, max_bytes: int
) -> list[tuple[object, ...]]:
    """Return the contents of each batch up to an error."""
    found: list[tuple[object, ...]] = []
    played = Played(*messages)
    libpq = module.Libpq(*played.functions)
    while not found or found[-1][0]:
        batch = module.Batch(in_stream, gathers)
        ended = batch.read(libpq, 1, max_bytes)
        try:
            items, in_stream = batch.finish()
            found.append((batch.messages, batch.size_bytes, ended, in_stream, items))
        except ProtocolError as error:
            found.append((0, type(error), str(error), error.context))
    if played.given:
        raise AssertionError("some messages were not freed")
    return found


def _is_the_same(gathered: tuple[object, ...], plain: tuple[object, ...]) -> bool:
    """Whether two results are equal, one of them in transaction batches."""
    *facts, items = gathered
    *others, all_items = plain
    if not isinstance(items, list) or not isinstance(all_items, list):
        return gathered == plain
    single = gathered_back(items)
    return facts == others and single == without_needless(gathered_back(all_items), single)


def rows(data: bytes) -> None:
    """A byte that selects the tables, a byte with the number of rows (plus 128 in a stream), a batch's frames."""
    if len(data) < 2:
        return
    plans, tx = _tables(data[0] % TABLES)
    batch = RowBatch(data[2:], data[1] & 127, 777 if data[1] & 128 else None)
    one, other = copy.deepcopy(tx), copy.deepcopy(tx)
    wanted = outcome(encode_batch_in_python, batch, plans, one)
    found = outcome(encode_batch, batch, plans, other)
    if found != wanted or (
        isinstance(wanted, list) and (one.tx_seq, one.counts) != (other.tx_seq, other.counts)
    ):
        raise AssertionError("the compiled row codec differs from its Python fallback")


def transactions(data: bytes) -> None:
    """A byte that selects the tables, two bytes for the last written position, a byte with the count, the frames."""
    if len(data) < 4:
        return
    plans, tx = _tables(data[0] % TABLES)

    def context_of(xid: int, commit_lsn: int, commit_pg_us: int) -> TransactionContext:
        info = TransactionInfo(xid, commit_lsn, commit_pg_us)
        return TransactionContext(
            info, timeline=tx.timeline, name="shop", database="orders", now_us=1, version="9.9.9"
        )

    written_lsn = LSN + int.from_bytes(data[1:3], "big")
    whole = TransactionBatch(data[4:], data[3])
    found = encode_transaction_batch(whole, plans, context_of, context_of(1, 1, 1), written_lsn)
    if isinstance(found, EncodedTransactions) and found != one_by_one(whole, plans, context_of, written_lsn):
        raise AssertionError("a transaction batch is encoded differently from its single transactions")


def columns(data: bytes) -> None:
    """A byte that selects the schema, then records, each with a length of two bytes before it."""
    if not data:
        return
    some = SomeAvro(Random(data[0] % TABLES))
    records = pa.array(list(_split(data[1:])), pa.binary())
    expected, found = (
        RecordDecoder(some.wanted, lambda number: some.schema, implementation).decode(records)
        for implementation in (ColumnsInPython, decoder_of_columns.Columns)
    )
    found.rows.validate(full=True)
    if found.bad != expected.bad or shown(found.rows) != shown(expected.rows):
        raise AssertionError("the compiled decoder of columns differs from its Python fallback")


@functools.cache
def _tables(seed: int) -> tuple[dict[int, RelationPlan], TransactionContext]:
    chance = Random(seed)
    return {relid: Table(chance, relid).plan for relid in (7, 8)}, context(chance)


def _split(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + 2 <= len(data):
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        yield data[at + 2 : end]
        at = end


def joined(first: int, payloads: list[bytes]) -> bytes:
    """Return the assembler's input for these payloads."""
    return bytes((first,)) + b"".join(len(one).to_bytes(2, "big") + one for one in payloads)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "decoder": decoder,
    "frames": frames,
    "messages": messages,
    "assembler": assembler,
    "reading": reading,
    "rows": rows,
    "transactions": transactions,
    "columns": columns,
}
