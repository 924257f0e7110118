"""Runs of raw row messages -> Kafka records.

In: a `Run`, plans by relid, the transaction's context.  Out: records in the order of the changes.
Invariant: changes are numbered from 1 in the order of the wire, a key-changing update takes two numbers, a
tombstone none; an error leaves nothing half done that could be produced.
Wire source: protocol messages Insert, Update, Delete; inside a stream segment an int32 xid follows the type
byte.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from cdcd.avro.columns import NO_EXTRAS, Extras, encode_key, encode_key_only, encode_row
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
from cdcd.model import Record, Run
from cdcd.schema.varint import encode_long, encode_string

_frame_at = struct.Struct(">IQ").unpack_from
_FRAME_BYTES = 12
_relid_at = struct.Struct(">I").unpack_from
_INSERT, _UPDATE, _DELETE, _NEW, _KEY, _OLD = b"IUDNKO"

# What follows `source`: transaction null, then the op as a string of one character.
_OPS = {op: NULL + encode_string(op.encode()) for op in "cudrt"}


def encode_run(run: Run, plans: Mapping[int, RelationPlan], tx: TransactionContext) -> list[Record]:
    """Return the records of a run's rows and raise `tx.tx_seq` by the number of changes.

    Raises RelationUnknown (F43), ProtocolError and its kinds, ValueUnencodable; each with the row's LSN.
    """
    data = run.frames
    end = len(data)
    header = 1 if run.xid is None else 5
    records: list[Record] = []
    position = count = 0
    lsn = 0
    try:
        while position < end:
            length, lsn = _frame_at(data, position)
            start = position + _FRAME_BYTES
            position = start + length
            if position > end or length < header + 5:
                raise MessageTruncated("a row message is shorter than its fields")
            if run.xid is not None and _relid_at(data, start + 1)[0] != run.xid:
                raise ProtocolError("a row of another transaction than its run's")
            (relid,) = _relid_at(data, start + header)
            plan = plans.get(relid)
            if plan is None:
                raise RelationUnknown("a row of a relation that was not described", relid=relid)
            _encode_message(data, data[start], start + header + 4, position, lsn, plan, tx, records)
            count += 1
    except struct.error:
        raise MessageTruncated("a run ends inside a frame's header", row=count) from None
    except CdcdError as error:
        error.context.setdefault("lsn", lsn)
        error.context["row"] = count
        raise
    if count != run.count:
        raise ProtocolError("a run's count is not its number of frames", said=run.count, found=count)
    return records


def _encode_message(
    data: bytes,
    kind: int,
    position: int,
    end: int,
    lsn: int,
    plan: RelationPlan,
    tx: TransactionContext,
    records: list[Record],
) -> None:
    width = len(plan.columns)
    part = data[position]
    old: Row | None = None
    is_old_plain = True
    old_kind = 0
    if kind != _INSERT and part in (_KEY, _OLD):
        old_kind = part
        old, position, is_old_plain = cut_tuple(data, position + 1, end, width)
        part = data[position] if position < end else 0
    if kind == _DELETE:
        if old is None:
            raise MessageUnknown("a delete without an old tuple", part=part)
        if position != end:
            raise MessageTrailing("bytes after a row message", type=chr(kind))
        _delete(plan, tx, records, lsn, old, is_old_plain, _before(plan, old, is_old_plain, old_kind, lsn))
        return
    if part != _NEW or position >= end or (kind != _INSERT and kind != _UPDATE):
        raise MessageUnknown("a row message's type or part", type=kind, part=part)
    new, position, is_plain = cut_tuple(data, position + 1, end, width)
    if position != end:
        raise MessageTrailing("bytes after a row message", type=chr(kind))
    if kind == _INSERT:
        extras = Extras()
        after = SOME + encode_row(plan, new, is_plain, "after", lsn, extras)
        op = "r" if tx.info.snapshot else "c"
        key = encode_key(plan, new, is_plain, lsn) if plan.key_indexes else None
        _append(plan, tx, records, lsn, key, op, NULL + after, extras)
        return
    _update(plan, tx, records, lsn, old, old_kind, is_old_plain, new, is_plain)


def _update(
    plan: RelationPlan,
    tx: TransactionContext,
    records: list[Record],
    lsn: int,
    old: Row | None,
    old_kind: int,
    is_old_plain: bool,
    new: Row,
    is_plain: bool,
) -> None:
    if old is not None and not is_plain:
        _fill_unchanged(plan, old, old_kind, new)
    extras = Extras()
    after = SOME + encode_row(plan, new, is_plain, "after", lsn, extras)
    key = encode_key(plan, new, is_plain, lsn) if plan.key_indexes else None
    if old is None:
        _append(plan, tx, records, lsn, key, "u", NULL + after, extras)
        return
    before = _before(plan, old, is_old_plain, old_kind, lsn)
    if key is None or all(old[i] == new[i] for i in plan.key_indexes):
        extras.special = {**before[1].special, **extras.special}
        _append(plan, tx, records, lsn, key, "u", before[0] + after, extras)
        return
    # F47: the old key's end and the new key's beginning, in this order, each with its number.
    _delete(plan, tx, records, lsn, old, is_old_plain, before)
    _append(plan, tx, records, lsn, key, "c", NULL + after, extras)


def _fill_unchanged(plan: RelationPlan, old: Row, old_kind: int, new: Row) -> None:
    # F46. An `O` tuple holds every value; in a `K` tuple only the key columns mean anything (F45).
    for i in range(len(new)) if old_kind == _OLD else plan.key_indexes:
        if new[i] is UNCHANGED:
            new[i] = old[i]


def _before(plan: RelationPlan, old: Row, is_plain: bool, old_kind: int, lsn: int) -> tuple[bytes, Extras]:
    extras = Extras()
    if old_kind == _KEY:
        return SOME + encode_key_only(plan, old, lsn), extras
    return SOME + encode_row(plan, old, is_plain, "before", lsn, extras), extras


def _delete(
    plan: RelationPlan,
    tx: TransactionContext,
    records: list[Record],
    lsn: int,
    old: Row,
    is_old_plain: bool,
    before: tuple[bytes, Extras],
) -> None:
    key = encode_key(plan, old, is_old_plain, lsn) if plan.key_indexes else None
    _append(plan, tx, records, lsn, key, "d", before[0] + NULL, before[1])
    if key is not None and plan.tombstones:
        records.append(Record(plan.topic, partition_for(key, plan.partitions), key, None))


def _append(
    plan: RelationPlan,
    tx: TransactionContext,
    records: list[Record],
    lsn: int,
    key: bytes | None,
    op: str,
    rows: bytes,
    extras: Extras,
) -> None:
    partition = plan.null_key_partition if key is None else partition_for(key, plan.partitions)
    records.append(Record(plan.topic, partition, key, _envelope(plan, tx, lsn, op, rows, extras)))


def _envelope(
    plan: RelationPlan, tx: TransactionContext, lsn: int, op: str, rows: bytes, extras: Extras
) -> bytes:
    tx.tx_seq += 1
    return b"".join(
        (
            plan.value_header,
            rows,
            tx.source_until_tx_seq(plan.schema_and_table, lsn),
            encode_long(tx.tx_seq),
            extras.encode() if extras.special or extras.unchanged else NO_EXTRAS,
            _OPS[op],
            tx.tail,
        )
    )


def encode_truncate(
    plan: RelationPlan, *, lsn: int, cascade: bool, restart_identity: bool, tx: TransactionContext
) -> list[Record]:
    """Return one `t` record per partition of the relation's topic, a barrier, all under one number (F51).

    `source.special` carries the option bits that are set: `truncate.cascade`, `truncate.restart_identity`.
    """
    bits = {"truncate.cascade": cascade, "truncate.restart_identity": restart_identity}
    extras = Extras()
    extras.special.update((name, b"true") for name, is_set in bits.items() if is_set)
    value = _envelope(plan, tx, lsn, "t", NULL + NULL, extras)
    return [Record(plan.topic, partition, None, value) for partition in range(plan.partitions)]
