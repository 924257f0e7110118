"""One row's raw values -> the bytes of its Value record, and of its Key record.

In: a plan, the values that `cut_tuple` returned.  Out: Avro bytes; `Extras` collects the values that the record
cannot hold.
Invariant: a row of text and nulls takes the fast path, one encoder call a column. Only a row with other values
(binary, unchanged TOAST, special, unreadable) takes the slow path, column by column.
Must not: name a value in an error, not even in the error's cause.
"""

from __future__ import annotations

from cdcd.avro.plan import RelationPlan
from cdcd.avro.transaction import NULL, SOME
from cdcd.avro.tuple_data import UNCHANGED, BinaryValue, Raw, Row
from cdcd.errors import BinaryUnreadable, ProtocolError, TextUnreadable, ValueUnencodable
from cdcd.schema.codec import UNREADABLE, Oversized, Special
from cdcd.schema.relation_schema import ColumnCodec
from cdcd.schema.varint import encode_long, encode_string

_SHORT_WAY_FAILED = (*UNREADABLE, TypeError, Special, Oversized)  # TypeError: null in a required column
_SPECIAL_HINT = (
    "set format.special: separate to put the text into source.special, or string to make the column a string; then "
    "restart cdcd"
)
_OVERSIZED_HINT = "raise format.max_value_bytes, or set format.oversized: omit, and restart cdcd"
_SPECIAL_KEY_HINT = (
    "set format.special: string to make the column a string, and registry.incompatible to accept its new schema; "
    "then restart cdcd"
)
_OVERSIZED_KEY_HINT = "raise format.max_value_bytes and restart cdcd: a record needs all columns of its key"
_NULL_KEY_HINT = (
    "set a value in each row of the table, and VALIDATE the column's NOT NULL constraint if it is NOT VALID; then "
    "run `cdcd resnapshot`, which copies the tables again without this change"
)


class Extras:
    """The content of `source.special` and `source.unchanged` of one record. Field names are Avro's."""

    __slots__ = ("special", "unchanged")

    def __init__(self) -> None:
        self.special: dict[str, bytes] = {}
        self.unchanged: list[str] = []

    def encode(self) -> bytes:
        """Return the two fields' bytes."""
        return _special(self.special) + _array(self.unchanged)


NO_EXTRAS = b"\x00\x00"
"""`special` null, `unchanged` empty."""


def encode_row(plan: RelationPlan, row: Row, is_plain: bool, side: str, lsn: int, extras: Extras) -> bytes:
    """Return the Value record of a row. `side` is "before" or "after". Raises ValueUnencodable."""
    if is_plain:
        try:
            return b"".join(
                [
                    null if raw is None else prefix + encode(raw)  # type: ignore[misc]
                    for raw, (prefix, null, encode) in zip(row, plan.steps, strict=True)
                ]
            )
        except _SHORT_WAY_FAILED:
            pass  # the slow path below names the column and the reason
    return b"".join([_encode_column(plan, i, raw, side, lsn, extras) for i, raw in enumerate(row)])


def mark_unlogged(plan: RelationPlan, row: Row, extras: Extras) -> None:
    """Mark each null of an old row that may be a value which its partition's identity omitted (F78).

    A row with other columns than such an identity came from a FULL partition: its nulls are NULL.
    """
    assert plan.old_tuples is not None
    logged = frozenset(c.name for c, raw in zip(plan.columns, row, strict=True) if raw is not None)
    if plan.old_tuples.is_sure and logged not in plan.old_tuples.partial:
        return
    for column, raw in zip(plan.columns, row, strict=True):
        if raw is None:
            extras.special[f"{_special_name(plan, column, 'before')}.not_logged"] = b"true"


def encode_key(plan: RelationPlan, row: Row, is_plain: bool, lsn: int) -> bytes:
    """Return the framed Key record of a row. Raises ValueUnencodable."""
    if is_plain:
        try:
            return plan.key_header + b"".join(
                [
                    null if (raw := row[i]) is None else prefix + encode(raw)  # type: ignore[misc]
                    for i, prefix, null, encode in plan.key_steps
                ]
            )
        except _SHORT_WAY_FAILED:
            pass
    return plan.key_header + b"".join(
        [_encode_column(plan, i, row[i], "key", lsn, None) for i in plan.key_indexes]
    )


def _encode_column(
    plan: RelationPlan, index: int, raw: Raw, side: str, lsn: int, extras: Extras | None
) -> bytes:
    """Return one column's bytes; without `extras`, those of the Key record."""
    column = plan.columns[index]
    is_required = column.is_required if extras is not None else plan.is_key_required
    if raw is None:
        if is_required:
            raise _unencodable(plan, column, lsn, "null in a key column", hint=_NULL_KEY_HINT)
        return NULL
    if raw is UNCHANGED:
        return _encode_unchanged(plan, column, side, lsn, extras)
    codec = column.codec
    encode = codec.text
    if type(raw) is BinaryValue:
        if codec.binary is None:
            raise _unencodable(
                plan, column, lsn, "cdcd cannot decode this type's binary format exactly", BinaryUnreadable
            )
        encode = codec.binary
    special: bytes | None = None
    size_bytes = 0
    try:
        encoded = encode(raw)
        return encoded if is_required else SOME + encoded
    except Special as found:
        special = found.text
    except Oversized as found:
        size_bytes = found.size_bytes
    except UNREADABLE:
        pass  # raised below, outside this block: the cause would have the value in its text
    if size_bytes:
        return _encode_oversized(plan, column, size_bytes, side, lsn, None if is_required else extras)
    if special is None:
        kind = BinaryUnreadable if type(raw) is BinaryValue else TextUnreadable
        raise _unencodable(plan, column, lsn, "the type's encoder cannot read a value", kind)
    if is_required or extras is None:
        message = "the Avro type of a key column cannot hold a value"
        raise _unencodable(plan, column, lsn, message, hint=_SPECIAL_KEY_HINT)
    if column.policy.special == "halt":
        message = "the column's Avro type cannot hold a value"
        raise _unencodable(plan, column, lsn, message, hint=_SPECIAL_HINT)
    if not _is_utf_8(special):
        raise _unencodable(plan, column, lsn, "the text of a special value is not UTF-8", TextUnreadable)
    extras.special[_special_name(plan, column, side)] = special
    return NULL


def _is_utf_8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _special_name(plan: RelationPlan, column: ColumnCodec, side: str) -> str:
    """Return the name of a column's entry in `special`: a flat value has only one side."""
    return column.field if plan.is_flat else f"{side}.{column.field}"


def _encode_oversized(
    plan: RelationPlan, column: ColumnCodec, size_bytes: int, side: str, lsn: int, extras: Extras | None
) -> bytes:
    if extras is None or column.policy.oversized == "halt":
        message = f"the text of a value has {size_bytes} bytes, more than format.max_value_bytes"
        hint = _OVERSIZED_KEY_HINT if extras is None else _OVERSIZED_HINT
        raise _unencodable(plan, column, lsn, message, hint=hint)
    # No field's name has a dot, so no reader can mistake this entry for a value's text.
    extras.special[f"{_special_name(plan, column, side)}.omitted_bytes"] = b"%d" % size_bytes
    return NULL


def _encode_unchanged(
    plan: RelationPlan, column: ColumnCodec, side: str, lsn: int, extras: Extras | None
) -> bytes:
    if side == "before":
        raise ProtocolError(
            "an old tuple lacks a TOASTed value", table=plan.table, column=column.name, lsn=lsn
        )
    if column.is_required or extras is None:
        raise _unencodable(plan, column, lsn, "the server did not send a key column's TOASTed value")
    extras.unchanged.append(column.field)
    return column.unchanged


def _unencodable(
    plan: RelationPlan,
    column: ColumnCodec,
    lsn: int,
    message: str,
    kind: type[ValueUnencodable] = ValueUnencodable,
    hint: str | None = None,
) -> ValueUnencodable:
    return kind(message, hint=hint, table=plan.table, column=column.name, type=column.type_name, lsn=lsn)


def _special(entries: dict[str, bytes]) -> bytes:
    if not entries:
        return NULL
    pairs = (encode_string(name.encode()) + encode_string(text) for name, text in entries.items())
    return SOME + encode_long(len(entries)) + b"".join(pairs) + b"\x00"


def _array(names: list[str]) -> bytes:
    if not names:
        return b"\x00"
    return encode_long(len(names)) + b"".join(encode_string(name.encode()) for name in names) + b"\x00"
