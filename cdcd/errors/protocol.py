"""Errors of the replication stream: bytes, messages and sequences of messages that violate the protocol.

In: message and field names, LSNs.  Out: classes of the tree.
Invariant: the data that one of these errors is raised for is never confirmed (F19).
Must not: carry bytes of a message.
"""

from __future__ import annotations

from cdcd.errors.tree import CdcdError, Retry


class ProtocolError(CdcdError):
    """The server sent bytes that the protocol does not allow.

    cdcd retries a few times: a connection without TLS may have damaged the bytes. If the same bytes come again, the
    defect is in the server or in cdcd.
    """

    code = "CDCD-PROTOCOL"
    retry = Retry.LIMITED
    hint = (
        "nothing was confirmed. cdcd retries by itself, and halts at the third failure at one position. Once it "
        "has halted, run `cdcd resume`: the server sends the changes again. If the error repeats, report this "
        "message with the server's version"
    )


class MessageTruncated(ProtocolError):
    """A message ends inside a field."""

    code = "CDCD-PROTOCOL-TRUNCATED"


class MessageTrailing(ProtocolError):
    """A message has bytes after its last field."""

    code = "CDCD-PROTOCOL-TRAILING"


class MessageUnknown(ProtocolError):
    """A message has a type, tuple kind or flag that no supported protocol version has."""

    code = "CDCD-PROTOCOL-UNKNOWN"


class MessageOutOfOrder(ProtocolError):
    """A message is not allowed in this state of the stream (F31)."""

    code = "CDCD-PROTOCOL-ORDER"


class RelationUnknown(ProtocolError):
    """A row refers to a relation that the server has not described in this session (F43)."""

    code = "CDCD-PROTOCOL-RELATION"


class PreparedMissing(ProtocolError):
    """COMMIT PREPARED arrived for a transaction whose rows were not sent: this slot has lost them (F33, F34)."""

    code = "CDCD-PREPARED-MISSING"
    retry = Retry.OPERATOR
    hint = (
        "another consumer confirmed the transaction's PREPARE, or source.protocol.origin excludes the "
        "transaction's origin. The COMMIT PREPARED was not confirmed. Run `cdcd resnapshot` to copy the tables "
        "again: see docs/slot-gone.md"
    )
    resolution = (
        "another consumer confirmed the transaction's PREPARE, or source.protocol.origin excludes the "
        "transaction's origin. The COMMIT PREPARED was not confirmed. Run `cdcd resnapshot`, see "
        "[slot-gone.md](slot-gone.md)"
    )


class PartialTransactionMissing(ProtocolError):
    """The rest of a transaction that is written in parts does not arrive: readers have only its first part."""

    code = "CDCD-PARTIAL-TRANSACTION-MISSING"
    hint = (
        "an option that affects the numbering of changes was modified after the first part was written "
        "(format.key_columns, format.keyless, source.publication.names, source.protocol.messages or .origin): "
        "restore the option's value and restart cdcd. Or the slot or the server was replaced, or a table got its "
        "first primary key since: run `cdcd resnapshot` to copy the tables again, see docs/slot-gone.md"
    )
    resolution = (
        "an option that affects the numbering of changes was modified after the first part was written "
        "(format.key_columns, format.keyless, source.publication.names, source.protocol.messages or .origin): "
        "restore the option's value and restart cdcd. Or the slot or the server was replaced, or a table got its "
        "first primary key since: run `cdcd resnapshot`, see [slot-gone.md](slot-gone.md)"
    )


class UnsafeStreaming(ProtocolError):
    """The changes streamed while a transaction was open may differ from the changes that it committed (F26)."""

    code = "CDCD-UNSAFE-STREAMING"
    retry = Retry.OPERATOR
    hint = (
        "the transaction was not confirmed. Set source.protocol.streaming: off and restart cdcd: the server then "
        "sends a transaction after its commit"
    )
    resolution = (
        "the transaction was not confirmed. Set source.protocol.streaming: off and restart cdcd: the server "
        "then sends a transaction after its commit. A daemon that streams reports the error as "
        "`CDCD-SOURCE-STREAMING`, and its next session reads without streaming"
    )


class FeatureUnsupported(CdcdError):
    """The server sent a message that this version of cdcd does not support."""

    code = "CDCD-UNSUPPORTED"
    hint = "remove the option that the message names, and restart cdcd"
