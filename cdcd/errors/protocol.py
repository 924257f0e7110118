"""Errors of what the server sends: bytes, messages and orders of messages that the protocol does not have.

In: message and field names, LSNs.  Out: classes of the tree.
Invariant: nothing was confirmed of what one of these is raised for (F19).
Must not: carry bytes of a message.
"""

from __future__ import annotations

from cdcd.errors.tree import CdcdError, Retry


class ProtocolError(CdcdError):
    """Bytes from the server that the protocol documents do not allow.

    Tried again a few times: a link without TLS may have damaged them. The same ones again are the server's, or a
    defect of cdcd.
    """

    code = "CDCD-PROTOCOL"
    retry = Retry.AGAIN
    hint = (
        "nothing was confirmed: `cdcd resume` has it sent again; if that does not help, report this message with "
        "the server's version"
    )


class MessageTruncated(ProtocolError):
    """A message ends inside a field."""

    code = "CDCD-PROTOCOL-TRUNCATED"


class MessageTrailing(ProtocolError):
    """A message has bytes after its last field."""

    code = "CDCD-PROTOCOL-TRAILING"


class MessageUnknown(ProtocolError):
    """A message type, tuple kind or flag that no supported version knows."""

    code = "CDCD-PROTOCOL-UNKNOWN"


class MessageOutOfOrder(ProtocolError):
    """A message that may not follow in this state (F31)."""

    code = "CDCD-PROTOCOL-ORDER"


class RelationUnknown(ProtocolError):
    """A row of a relation that this session has not described (F43)."""

    code = "CDCD-PROTOCOL-RELATION"


class PreparedMissing(ProtocolError):
    """COMMIT PREPARED of a transaction whose rows did not come: they are lost to this slot (F33, F34)."""

    code = "CDCD-PREPARED-MISSING"
    retry = Retry.OPERATOR
    hint = (
        "something else confirmed its PREPARE, or an origin left out of the stream prepared it; nothing was "
        "confirmed. Run `cdcd resnapshot` to copy the tables again: see docs/slot-gone.md"
    )


class PartialTransactionMissing(ProtocolError):
    """The rest of a transaction that was written in parts does not come: readers have only its beginning."""

    code = "CDCD-PARTIAL-TRANSACTION-MISSING"
    hint = (
        "an option that numbers changes otherwise was changed meanwhile (format.key_columns, format.keyless, "
        "source.publication.names, source.protocol.messages or .origin): change it back and restart cdcd; or the "
        "slot or the server is another one: run `cdcd resnapshot` to copy the tables again, see docs/slot-gone.md"
    )


class UnsafeStreaming(ProtocolError):
    """What was sent of a transaction while it was open may not be what it has committed (F26)."""

    code = "CDCD-UNSAFE-STREAMING"
    retry = Retry.OPERATOR
    hint = (
        "nothing of it was confirmed; source.protocol.streaming: off lets the server send it after its commit"
    )


class FeatureUnsupported(CdcdError):
    """The server sent what this version of cdcd cannot take yet."""

    code = "CDCD-UNSUPPORTED"
    hint = "take the option back that the message names, and restart cdcd"
