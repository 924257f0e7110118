"""Apply the policies that do not depend on the type to a column's codec.

In: the codec of the column's type (which already follows the type's own policies), the policy.
Out: the column's codec; the placeholder of a TOASTed value that was not sent.
Invariant: an unused policy costs nothing per row. Limits count the bytes of the server's text, so that they are the
same for both tuple formats.
"""

from __future__ import annotations

from cdcd.schema.codec import CALL, AvroType, Codec, Encoder, Op, Oversized
from cdcd.schema.policy import Policy
from cdcd.schema.types.text import TEXT_ONLY
from cdcd.schema.varint import encode_bytes, encode_string

_NULL, _SOME = b"\x00", b"\x02"


def column_codec(codec: Codec, policy: Policy) -> Codec:
    """Return the codec with `special: string` and `max_value_bytes` applied.

    Its `binary` is None where only the text can be used.
    """
    if policy.special == "string" and codec.may_be_special:
        codec = TEXT_ONLY
    if policy.max_value_bytes:
        limited = CALL
        if codec.text_op.op is not Op.CALL:
            limited = codec.text_op._replace(max_bytes=policy.max_value_bytes)
        codec = Codec(
            codec.avro,
            _limited(codec.text, policy.max_value_bytes),
            special=codec.special,
            text_op=limited,
        )
    return codec


def _limited(encode: Encoder, limit_bytes: int) -> Encoder:
    def encode_limited(raw: bytes) -> bytes:
        if len(raw) > limit_bytes:
            raise Oversized(len(raw))
        return encode(raw)

    return encode_limited


def unchanged_bytes(avro: AvroType, policy: Policy) -> bytes:
    """Return the field's bytes, with the union's branch, for a TOASTed value that was not sent (F46)."""
    if not policy.placeholder:
        return _NULL
    if avro == "bytes":
        return _SOME + encode_bytes(policy.placeholder.encode())
    is_string = avro == "string" or (
        isinstance(avro, dict) and avro["type"] == "string" and "logicalType" not in avro
    )
    return _SOME + encode_string(policy.placeholder.encode()) if is_string else _NULL
