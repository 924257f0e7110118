"""Every error cdcd raises on purpose: one tree, each class with a code, a retry class and a hint.

In: what went wrong, with the place (file, key, table, LSN) as keyword context.  Out: one clear line.
Invariant: no row value ever enters a message; `context` holds names, numbers and LSNs only.
`retry` says who can mend it: AUTO is tried again with back-off, OPERATOR halts and stays up until told to go
on, NEVER ends the process. An error that is not in this tree is treated as OPERATOR.
"""

from __future__ import annotations

import enum
from typing import ClassVar

from cdcd.lsn import Lsn, format_lsn


class Retry(enum.Enum):
    """Who can mend an error."""

    AUTO = "auto"
    OPERATOR = "operator"
    NEVER = "never"


EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_FORCED = 130
EXIT_FENCED = 75
EXIT_CONFIG = 78


class CdcdError(Exception):
    """Base of the tree. `str(error)` is the whole story in one line."""

    code: ClassVar[str] = "CDCD-ERROR"
    retry: ClassVar[Retry] = Retry.OPERATOR
    hint: ClassVar[str] = ""
    exit_status: ClassVar[int] = EXIT_FAILURE

    def __init__(self, message: str, *, hint: str | None = None, **context: object) -> None:
        super().__init__(message)
        self.message = message
        self.advice = self.hint if hint is None else hint
        self.context = context

    def __str__(self) -> str:
        where = " ".join(f"{key}={_shown(key, value)}" for key, value in self.context.items())
        parts = [f"{self.code}: {self.message}"]
        if where:
            parts.append(f"[{where}]")
        if self.advice:
            parts.append(f"-> {self.advice}")
        return " ".join(parts)


def _shown(key: str, value: object) -> str:
    if isinstance(value, int) and (key == "lsn" or key.endswith("_lsn")):
        return format_lsn(Lsn(value))
    return str(value)


# --- configuration ---


class ConfigError(CdcdError):
    """The configuration cannot be used; `problems` holds one line each, with the key's path."""

    code = "CDCD-CONFIG"
    retry = Retry.NEVER
    exit_status = EXIT_CONFIG

    def __init__(
        self, message: str, problems: tuple[str, ...] = (), *, hint: str | None = None, **context: object
    ) -> None:
        super().__init__(message, hint=hint, **context)
        self.problems = problems


class SecretUnreadable(CdcdError):
    """A secret's file cannot be read at the moment of use."""

    code = "CDCD-SECRET"
    retry = Retry.AUTO  # a file that is being rotated is there again at the next attempt


# --- the protocol ---


class ProtocolError(CdcdError):
    """Bytes from the server that the protocol documents do not allow."""

    code = "CDCD-PROTOCOL"
    hint = "nothing was confirmed; report the message with the server's version"


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
    hint = (
        "something else confirmed its PREPARE, or an origin left out of the stream prepared it; nothing was "
        "confirmed; a new snapshot is needed: see README, 'When the slot is gone'"
    )


class StreamUnsure(ProtocolError):
    """What was sent of a transaction while it was open may not be what it has committed (F26)."""

    code = "CDCD-PROTOCOL-UNSURE"
    hint = (
        "nothing of it was confirmed; source.protocol.streaming: off lets the server send it after its commit"
    )


class FeatureUnsupported(CdcdError):
    """The server sent what this version of cdcd cannot take yet."""

    code = "CDCD-UNSUPPORTED"


# --- the source ---


class SourceError(CdcdError):
    """A failure on PostgreSQL's side."""

    code = "CDCD-SOURCE"


class SourceUnavailable(SourceError):
    """The server cannot be reached, went away, or is starting or stopping."""

    code = "CDCD-SOURCE-UNAVAILABLE"
    retry = Retry.AUTO


class ServerInternal(SourceError):
    """The server reports an internal error: a defect of its own, or damaged data."""

    code = "CDCD-SOURCE-INTERNAL"


class SendMissing(SourceError):
    """The server has no function that writes a value of this type (42883): in binary form, most likely."""

    code = "CDCD-SOURCE-SEND"


class OptionFailed(SourceError):
    """An error that an option of the stream may be the reason of; the next session is without those named.

    `without` also has what earlier sessions had to leave out already: otherwise two options that fail in turn would
    never both be off.
    """

    code = "CDCD-SOURCE-OPTION"
    retry = Retry.AUTO

    def __init__(
        self, message: str, without: tuple[str, ...] = (), *, hint: str | None = None, **context: object
    ) -> None:
        super().__init__(message, hint=hint, **context)
        self.without = without


class StreamingFailed(OptionFailed):
    """An error that the server's streaming of open transactions may be the reason of."""

    code = "CDCD-SOURCE-STREAMING"
    hint = "the next session reads without streaming; to have that always, set source.protocol.streaming: off"


class BinaryFailed(OptionFailed):
    """A value that has no exact reading in the form that it was sent in, or that the server cannot send so (F53)."""

    code = "CDCD-SOURCE-BINARY"
    hint = "the next session reads text; to have that always, set source.protocol.binary: false"


class SourceAuthentication(SourceError):
    """The server refused the role or its password."""

    code = "CDCD-SOURCE-AUTH"
    retry = Retry.AUTO  # secrets are re-read at the next connection, so a mended one is picked up
    hint = "check source.dsn, source.password_file and pg_hba.conf"


class SlotActive(SourceError):
    """Another walsender holds the slot (F18, F74)."""

    code = "CDCD-SLOT-ACTIVE"
    retry = Retry.AUTO


class SlotMissing(SourceError):
    """The slot of the stored position is gone (F10)."""

    code = "CDCD-SLOT-MISSING"


class SlotLost(SourceError):
    """The slot was invalidated (F23)."""

    code = "CDCD-SLOT-LOST"


class SlotAhead(SourceError):
    """The slot was confirmed beyond what cdcd wrote: something else consumed it (F3)."""

    code = "CDCD-SLOT-AHEAD"


class SlotUnusable(SourceError):
    """The slot exists but is not one that cdcd can read from."""

    code = "CDCD-SLOT-UNUSABLE"


class SnapshotStale(SourceError):
    """A table was rewritten or replaced after the snapshot was taken, which cannot see its rows any more."""

    code = "CDCD-SNAPSHOT-STALE"
    retry = Retry.AUTO
    hint = "the snapshot is begun anew by itself"


class SourceMismatch(SourceError):
    """The server is not the one the stored position belongs to (F58, F62)."""

    code = "CDCD-SOURCE-IDENTITY"


class PublicationMissing(SourceError):
    """A publication is not there, so its changes would be lost (F39, F72)."""

    code = "CDCD-PUBLICATION-MISSING"


class SourceSetup(SourceError):
    """The server, database or role is not set up for logical replication."""

    code = "CDCD-SOURCE-SETUP"
    hint = "run `cdcd check --config FILE`"


# --- rows and schemas ---


class SchemaError(CdcdError):
    """A relation that has no Avro schema (name collision, unknown type shape)."""

    code = "CDCD-SCHEMA"


class KeyChanged(SchemaError):
    """A table's key is no longer that of its topic: rows written before and after would not share a key (F45)."""

    code = "CDCD-KEY-CHANGED"
    hint = (
        "give the table its former key again; or let the new key count from here on, and rebuild what reads the "
        "topic by key: delete the subject <topic>-key from the registry, or set registry.incompatible: new_topic"
    )


class ValueUnencodable(CdcdError):
    """A value its column's Avro type cannot hold; names table, column, type, LSN, never the value."""

    code = "CDCD-VALUE"


class SentUnreadable(ValueUnencodable):
    """A value in its type's binary form, of which no exact reading is known."""

    code = "CDCD-VALUE-BINARY"
    hint = "set source.protocol.binary: false"


class RegistryUnavailable(CdcdError):
    """The schema registry cannot be reached or answers with a server error (F55)."""

    code = "CDCD-REGISTRY-UNAVAILABLE"
    retry = Retry.AUTO


class RegistryRefused(CdcdError):
    """The registry refused a schema or the credentials (F55)."""

    code = "CDCD-REGISTRY-REFUSED"


class SchemaIncompatible(RegistryRefused):
    """Readers of a table's topic could not read on under its new schema; the message says where and why (F55)."""

    code = "CDCD-SCHEMA-INCOMPATIBLE"
    hint = (
        "nothing was written or confirmed. Take the change back; or let it through with registry.incompatible: "
        "new_topic, or register_with_none"
    )


class SchemaIdTaken(CdcdError):
    """Two writers of one schema topic gave one id, or one version of a subject, to different schemas at once."""

    code = "CDCD-REGISTRY-ID-TAKEN"
    retry = Retry.AUTO
    hint = "nothing was written under it; the next session chooses another"


# --- the sink ---


class SinkError(CdcdError):
    """A failure on Kafka's side that an operator has to mend."""

    code = "CDCD-SINK"


class SinkUnavailable(SinkError):
    """Kafka cannot be reached or cannot make the writes durable now."""

    code = "CDCD-SINK-UNAVAILABLE"
    retry = Retry.AUTO


class SinkFenced(SinkError):
    """Another producer with the same transactional id took over (F69)."""

    code = "CDCD-SINK-FENCED"
    retry = Retry.NEVER
    hint = "another cdcd with this slot is running; only one may"
    exit_status = EXIT_FENCED


class SinkAuthorization(SinkError):
    """The broker refused an operation (F68)."""

    code = "CDCD-SINK-AUTH"


class TopicMissing(SinkError):
    """A topic does not exist and topics are not created here."""

    code = "CDCD-TOPIC-MISSING"


class TopicMismatch(SinkError):
    """A topic has another number of partitions than keys were hashed for (F66)."""

    code = "CDCD-TOPIC-MISMATCH"


class RecordTooLarge(SinkError):
    """A record is larger than the broker or the topic takes (F65)."""

    code = "CDCD-RECORD-TOO-LARGE"
    hint = "raise message.max.bytes (broker), max.message.bytes (topic) and sink.properties.message.max.bytes"


class ProgressUnreadable(SinkError):
    """The progress topic holds what this version cannot read."""

    code = "CDCD-PROGRESS"


class SchemasUnreadable(SinkError):
    """The schema topic holds what this version cannot read."""

    code = "CDCD-SCHEMA-TOPIC"


# --- the disk beside memory ---


class SpillError(CdcdError):
    """Changes of open transactions cannot be kept on disk, or not be read back; nothing of them is confirmed."""

    code = "CDCD-SPILL"
    hint = "look at buffer.spill_dir: it has to be a folder that the daemon alone can write to"


class SpillFull(SpillError):
    """There is no room for more of the open transactions, neither in memory nor on disk (F30).

    Not tried again by itself: the server sends the same transactions from their beginning (F27), so the same disk
    would be filled up again, and others may need it. The halt gives the room back at once.
    """

    code = "CDCD-SPILL-FULL"
    hint = (
        "make room or raise buffer.spill; or set source.protocol.streaming: off, then the server keeps large "
        "transactions on its own disk until they commit"
    )


class SpillLost(SpillError):
    """The files of open transactions were taken away under the daemon.

    Tried again by itself: the next session makes its folder anew, and the server sends what was in it (F27).
    """

    code = "CDCD-SPILL-LOST"
    retry = Retry.AUTO
    hint = "keep what clears up temporary files away from buffer.spill_dir; what was lost is sent again"


# --- the reading side ---


class ReadingError(CdcdError):
    """The topics and the target of a reader do not fit together."""

    code = "CDCD-READING"


class HistoryMissing(ReadingError):
    """Kafka no longer has records that were not read yet."""

    code = "CDCD-HISTORY-MISSING"
    hint = "raise the topics' retention; a mirror is made anew from a new snapshot, into an empty target"


class MirrorInconsistent(ReadingError):
    """A change that the mirror's state or its type rules do not allow."""

    code = "CDCD-MIRROR"


# --- looking at the wire ---


class CaptureError(CdcdError):
    """A capture file that cannot be made or read, or a line that is not hex."""

    code = "CDCD-CAPTURE"


# --- the demo's servers --------------------------------------------------------------------------------------


class StackError(CdcdError):
    """A server of the local stack, or its artefact, could not be had."""

    code = "CDCD-STACK"
