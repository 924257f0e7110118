"""Batches of raw row messages -> Kafka records.

In: a `RowBatch`, plans by relid, the transaction's context.  Out: records in the order of the changes.
Invariant: changes are numbered from 1 in the order of the wire; a key-changing update takes two numbers, a tombstone
none. After an error no partial result can be produced.
Wire source: protocol messages Insert, Update, Delete; inside a stream segment an int32 xid follows the type byte.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

from cdcd.avro.columns import NO_EXTRAS, Extras, encode_key, encode_row, mark_unlogged
from cdcd.avro.identity import check_names_its_row
from cdcd.avro.murmur2 import partition_for
from cdcd.avro.plan import RelationPlan
from cdcd.avro.transaction import NULL, SOME, TransactionContext
from cdcd.avro.tuple_data import UNCHANGED, Row, cut_tuple
from cdcd.errors import (
    CdcdError,
    MessageTrailing,
    MessageTruncated,
    MessageUnknown,
    ProtocolError,
    RelationUnknown,
)
from cdcd.extensions import extension
from cdcd.frame_layout import FRAME_BYTES, RELID_BYTES, XID_AT, relid_at
from cdcd.frame_layout import HEADER as FRAME_HEADER
from cdcd.model import Record, RowBatch, TransactionBatch
from cdcd.schema.varint import encode_long, encode_string

_EXTENSION = extension("cdcd.avro.rows")

_frame_at = FRAME_HEADER.unpack_from
_uint32_at = struct.Struct(">I").unpack_from
_INSERT, _UPDATE, _DELETE, _NEW, _KEY, _OLD = b"IUDNKO"

OPS = {op: encode_string(op.encode()) for op in "cudrtg"}


class _Old(NamedTuple):
    """The tuple before the change. A null in it is NULL or was not in the WAL: K and O do not show which (F78).

    `is_whole`: the tuple came as O, so the table's own identity is FULL.
    """

    is_whole: bool
    row: Row
    is_plain: bool


def encode_batch(batch: RowBatch, plans: Mapping[int, RelationPlan], tx: TransactionContext) -> list[Record]:
    """Return the records of a batch's rows and increase `tx.tx_seq` by the number of changes.

    Raises RelationUnknown (F43), ProtocolError and its subclasses, ValueUnencodable; each with the row's LSN, its
    number in the batch, from 0, and the table where it is known.
    """
    if _EXTENSION is None:
        return encode_batch_in_python(batch, plans, tx)
    records: list[Record] = _EXTENSION.encode_batch(
        batch, plans, tx, encode_batch_in_python, encode_row_in_python
    )
    return records


ENCODES_TRANSACTION_BATCHES = _EXTENSION is not None
"""Whether `encode_transaction_batch` can encode anything: it needs the C extension."""


def take_fallback_counts() -> tuple[int, int]:
    """Return how many columns called a Python encoder, and how many rows used the fallback, since the last call.

    Both are 0 without the C extension.
    """
    return (0, 0) if _EXTENSION is None else _EXTENSION.take_fallback_counts()


class EncodedTransactions(NamedTuple):
    """The result of encoding whole transactions.

    `operations` by (relid, type byte). `first_us` and `last_us` are the commit times (Unix epoch) of the first and
    the last encoded transaction, `commit_lsn` and `end_lsn` those of the last. `dropped` counts the transactions that
    were left out because they are already written (F4).
    """

    records: list[Record]
    operations: dict[tuple[int, int], int]
    first_us: int
    last_us: int
    commit_lsn: int
    end_lsn: int
    with_rows: int
    empty: int
    dropped: int


def encode_transaction_batch(
    transactions: TransactionBatch,
    plans: Mapping[int, RelationPlan],
    new_context: Callable[[int, int, int], TransactionContext],
    first: TransactionContext,
    written_commit_lsn: int,
) -> EncodedTransactions | int | None:
    """Return the records of whole transactions, or the relid of a row without a plan, or None.

    None: the caller has to encode them one by one. `new_context` makes the context of a transaction from its xid,
    commit LSN and commit time; `first` is the context of one of them, and all have its timeline. Only the C extension
    has this path. Its result is that of encoding one transaction after the other (`expand`).
    """
    if _EXTENSION is None:
        return None
    found = _EXTENSION.encode_transaction_batch(
        transactions, plans, new_context, first, written_commit_lsn, encode_row_in_python
    )
    return EncodedTransactions(*found) if isinstance(found, tuple) else found


def encode_batch_in_python(
    batch: RowBatch, plans: Mapping[int, RelationPlan], tx: TransactionContext
) -> list[Record]:
    """Do the same as `encode_batch`: the C extension's specification."""
    data = batch.frames
    end = len(data)
    relid_position = relid_at(batch.xid)
    tuples_position = relid_position + RELID_BYTES
    writers: dict[int, _Writer] = {}
    records: list[Record] = []
    position = count = lsn = 0
    try:
        while position < end:
            length, lsn = _frame_at(data, position)
            start = position + FRAME_BYTES
            position = start + length
            if position > end or length < tuples_position + 1:
                raise MessageTruncated("a row message is shorter than its fields")
            if batch.xid is not None and _uint32_at(data, start + XID_AT)[0] != batch.xid:
                raise ProtocolError("a row belongs to another transaction than its batch")
            (relid,) = _uint32_at(data, start + relid_position)
            writer = writers.get(relid)
            if writer is None:
                if relid not in plans:
                    raise RelationUnknown("the server has not described the relation of a row", relid=relid)
                writer = writers[relid] = _Writer(plans[relid], tx, records)
            writer.lsn = lsn
            try:
                _encode_message(writer, data, data[start], start + tuples_position, position)
            except CdcdError as error:
                error.context.setdefault("table", writer.plan.table)
                raise
            count += 1
    except struct.error:
        raise MessageTruncated("a row batch ends inside a frame's header", row=count) from None
    except CdcdError as error:
        error.context.setdefault("lsn", lsn)
        error.context["row"] = count
        raise
    if count != batch.count:
        raise ProtocolError(
            "a row batch's count differs from its number of frames", said=batch.count, found=count
        )
    return records


def encode_row_in_python(
    plan: RelationPlan,
    tx: TransactionContext,
    records: list[Record],
    lsn: int,
    data: bytes,
    kind: int,
    position: int,
    end: int,
) -> None:
    """Append the records of one row message, which is `data` from the end of its relid up to `end`."""
    _encode_message(_Writer(plan, tx, records, lsn), data, kind, position, end)


def _encode_message(writer: _Writer, data: bytes, kind: int, position: int, end: int) -> None:
    width = len(writer.plan.columns)
    part = data[position]
    old: _Old | None = None
    if kind != _INSERT and part in (_KEY, _OLD):
        row, position, is_plain = cut_tuple(data, position + 1, end, width)
        old = _Old(part == _OLD, row, is_plain)
        part = data[position] if position < end else 0
    if kind == _DELETE and old is not None:
        _refuse_trailing(position, end)
        writer.delete(old)
        return
    if part != _NEW or position >= end or (kind != _INSERT and kind != _UPDATE):
        raise MessageUnknown("a row message has an unknown type or part", type=kind, part=part)
    row, position, is_plain = cut_tuple(data, position + 1, end, width)
    _refuse_trailing(position, end)
    if kind == _INSERT:
        writer.insert(row, is_plain)
    else:
        writer.update(old, row, is_plain)


def _refuse_trailing(position: int, end: int) -> None:
    if position != end:
        raise MessageTrailing("a row message has bytes after its end")


class _Writer:
    """The records of one relation's rows in one batch; `lsn` is the current row's."""

    __slots__ = ("lsn", "plan", "records", "tx")

    def __init__(
        self, plan: RelationPlan, tx: TransactionContext, records: list[Record], lsn: int = 0
    ) -> None:
        self.plan = plan
        self.tx = tx
        self.records = records
        self.lsn = lsn

    def insert(self, new: Row, is_plain: bool) -> None:
        plan = self.plan
        extras = Extras()
        after = encode_row(plan, new, is_plain, "after", self.lsn, extras)
        key = encode_key(plan, new, is_plain, self.lsn) if plan.key_indexes else None
        self._append(key, "r" if self.tx.info.snapshot else "c", None, after, extras)

    def update(self, old: _Old | None, new: Row, is_plain: bool) -> None:
        plan = self.plan
        if plan.old_tuples is not None:
            check_names_its_row(plan, None if old is None else old.row)
        if old is not None and not is_plain:
            self._fill_unchanged(old, new)
        extras = Extras()
        after = encode_row(plan, new, is_plain, "after", self.lsn, extras)
        key = encode_key(plan, new, is_plain, self.lsn) if plan.key_indexes else None
        if old is not None and key is not None and any(old.row[i] != new[i] for i in plan.key_indexes):
            # F47: a delete of the old key, then a create of the new key, each with its own number.
            self.delete(old)
            self._append(key, "c", None, after, extras)
            return
        before = None
        if old is not None and not plan.is_flat:
            before = self._before(old, extras)
        self._append(key, "u", before, after, extras)

    def delete(self, old: _Old) -> None:
        plan = self.plan
        if plan.old_tuples is not None:
            check_names_its_row(plan, old.row)
        extras = Extras()
        before = self._before(old, extras)
        key = encode_key(plan, old.row, old.is_plain, self.lsn) if plan.key_indexes else None
        self._append(key, "d", before, None, extras)
        if key is not None and plan.tombstones:
            self.records.append(Record(plan.topic, partition_for(key, plan.partitions), key, None))

    def _before(self, old: _Old, extras: Extras) -> bytes:
        before = encode_row(self.plan, old.row, old.is_plain, "before", self.lsn, extras)
        # If the record has a key, readers know that a key tuple has no other columns.
        if self.plan.old_tuples is not None and (old.is_whole or not self.plan.key_indexes):
            mark_unlogged(self.plan, old.row, extras)
        return before

    def value(self, op: str, before: bytes | None, after: bytes | None, extras: Extras) -> bytes:
        """Return the framed value of the transaction's next change; the rows are Value records."""
        plan, tx = self.plan, self.tx
        block = tx.number(plan.table)
        extras_bytes = extras.encode() if extras.special or extras.unchanged else NO_EXTRAS
        if plan.is_flat:
            row = plan.null_row if after is None and before is None else after or before or b""
            return b"".join((plan.value_header, row, tx.flat_middle(OPS[op], op == "d"), extras_bytes))
        return b"".join(
            (
                plan.value_header,
                NULL if before is None else SOME + before,
                NULL if after is None else SOME + after,
                tx.source_until_tx_seq(plan.schema_and_table, self.lsn),
                encode_long(tx.tx_seq),
                extras_bytes,
                block,
                OPS[op],
                tx.tail,
            )
        )

    def _append(
        self, key: bytes | None, op: str, before: bytes | None, after: bytes | None, extras: Extras
    ) -> None:
        plan = self.plan
        partition = plan.null_key_partition if key is None else partition_for(key, plan.partitions)
        self.records.append(Record(plan.topic, partition, key, self.value(op, before, after, extras)))

    def _fill_unchanged(self, old: _Old, new: Row) -> None:
        # F46, F78: an unsent value is stored out of line, so it is not NULL; a null here was not in the WAL.
        for i, raw in enumerate(old.row):
            if new[i] is UNCHANGED and raw is not None:
                new[i] = raw


def encode_truncate(
    plan: RelationPlan, *, lsn: int, cascade: bool, restart_identity: bool, tx: TransactionContext
) -> list[Record]:
    """Return one `t` record per partition of the relation's topic, a barrier, all with one number (F51).

    `source.special` has the option bits that are set: `truncate.cascade`, `truncate.restart_identity`.
    """
    bits = {"truncate.cascade": cascade, "truncate.restart_identity": restart_identity}
    extras = Extras()
    extras.special.update((name, b"true") for name, is_set in bits.items() if is_set)
    value = _Writer(plan, tx, [], lsn).value("t", None, None, extras)
    return [Record(plan.topic, partition, None, value) for partition in range(plan.partitions)]


def encode_gap(
    plan: RelationPlan, *, lsn: int, details: Mapping[str, bytes], tx: TransactionContext
) -> list[Record]:
    """Return one `g` record per partition of the relation's topic, all with one number: changes may be missing here.

    `source.special` has the `details` of the gap, each under `gap.<name>`.
    """
    extras = Extras()
    extras.special.update((f"gap.{name}", text) for name, text in details.items())
    value = _Writer(plan, tx, [], lsn).value("g", None, None, extras)
    return [Record(plan.topic, partition, None, value) for partition in range(plan.partitions)]
