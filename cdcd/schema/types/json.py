"""json, jsonb -> Avro string with the Kafka Connect name that Debezium uses; by policy a plain string.

In: the server's text, or the send format (json: the text; jsonb: the text after a version byte 1).
Out: an Avro string, byte for byte: json retains its spacing and duplicate keys, jsonb is as jsonb_out prints it.
"""

from __future__ import annotations

from cdcd.schema.codec import AvroType, Builder, Codec, Op, Operation
from cdcd.schema.policy import Policy
from cdcd.schema.varint import encode_string

JSON, JSONB = 114, 3802

_STRING = Operation(Op.STRING)

JSON_TYPE: AvroType = {"type": "string", "connect.version": 1, "connect.name": "io.debezium.data.Json"}


def encode_binary_jsonb(raw: bytes) -> bytes:
    """Encode jsonb_send's bytes: version 1, then the text. Raises ValueError on another version."""
    if raw[:1] != b"\x01":
        raise ValueError("not jsonb version 1")
    return encode_string(raw[1:])


def _avro(policy: Policy) -> AvroType:
    return JSON_TYPE if policy.json_as == "json" else "string"


BUILDERS: dict[int, Builder] = {
    JSON: lambda typmod, policy: Codec(
        _avro(policy), encode_string, encode_string, text_op=_STRING, binary_op=_STRING
    ),
    JSONB: lambda typmod, policy: Codec(
        _avro(policy),
        encode_string,
        encode_binary_jsonb,
        text_op=_STRING,
        binary_op=Operation(Op.JSONB_BINARY),
    ),
}
