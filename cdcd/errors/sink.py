"""Errors on Kafka's side, and of who reads the topics.

In: names of topics, a broker's error code.  Out: classes of the tree.
Invariant: a failure that may have left a write half done is AUTO only where the next session finds out what is
durable (F76).
Must not: carry a record's key or value.
"""

from __future__ import annotations

from cdcd.errors.tree import EXIT_FENCED, CdcdError, Retry


class SinkError(CdcdError):
    """A failure on Kafka's side that an operator has to correct."""

    code = "CDCD-SINK"
    hint = "correct what the message names, then `cdcd resume`; after a change of the configuration, restart cdcd"


class SinkUnavailable(SinkError):
    """Kafka cannot be reached or cannot make the writes durable now."""

    code = "CDCD-SINK-UNAVAILABLE"
    retry = Retry.AUTO
    hint = "start Kafka, or correct sink.bootstrap_servers and the network; cdcd tries again"


class SinkFenced(SinkError):
    """Another producer with the same transactional id took over (F69)."""

    code = "CDCD-SINK-FENCED"
    retry = Retry.NEVER
    hint = (
        "another cdcd with this slot, or with its sink.transactional_id, is running, and only one may: stop that one "
        "before this one is started again"
    )
    exit_status = EXIT_FENCED


class TransactionExpired(SinkUnavailable):
    """The broker gave up a Kafka transaction that was open for longer than its timeout; nothing of it is visible."""

    code = "CDCD-SINK-TRANSACTION-EXPIRED"
    hint = (
        "no action is needed: the next session writes it again. If the error repeats, raise "
        "sink.transaction_timeout_ms (the broker allows up to its transaction.max.timeout.ms)"
    )


class SinkAuthorization(SinkError):
    """The broker refused an operation or the credentials (F68)."""

    code = "CDCD-SINK-AUTH"
    retry = Retry.AUTO  # the next session reads the credentials again, and an ACL may be given back
    hint = "grant the principal what `cdcd check` says, or correct its credentials; cdcd tries again"


class TopicMissing(SinkError):
    """A topic does not exist and topics are not created here."""

    code = "CDCD-TOPIC-MISSING"
    hint = "`cdcd resume` retries and names the commands"


class TopicMismatch(SinkError):
    """A topic has another number of partitions than keys were hashed for (F66)."""

    code = "CDCD-TOPIC-MISMATCH"
    hint = "`cdcd resume` retries and names the commands"


class TopicReplaced(SinkError):
    """A topic has the name of one that held records, and is another (F67)."""

    code = "CDCD-TOPIC-REPLACED"
    hint = "`cdcd resume` retries and names the commands"


class OwnedByAnother(SinkError):
    """A topic, the transactional id or the slot itself is another daemon's (F80)."""

    code = "CDCD-OWNED-BY-ANOTHER"
    hint = "choose another name, which gives topics of its own"


class RecordTooLarge(SinkError):
    """A record is larger than the broker or the topic takes (F65)."""

    code = "CDCD-RECORD-TOO-LARGE"
    hint = (
        "raise message.max.bytes (broker), max.message.bytes (topic) and sink.properties.message.max.bytes; or set "
        "sink.too_large: dead_letter, then a marker stands in the row's place"
    )
    at: int | None = None
    """Which of the records that were handed over together it is, None where it was refused later."""


class BatchTooLarge(RecordTooLarge):
    """A broker refuses a batch of records; whether one of them alone is too large is found out by trying (F65)."""

    code = "CDCD-SINK-BATCH-TOO-LARGE"
    retry = Retry.AUTO
    hint = (
        "no action is needed: the next session sends smaller batches to this topic, and a record that is too large "
        "in a batch of its own"
    )


class TransactionTooLarge(SinkError):
    """A PostgreSQL transaction is larger than one Kafka transaction may be."""

    code = "CDCD-TRANSACTION-TOO-LARGE"
    hint = (
        "nothing of it is visible or confirmed. Raise sink.transaction_timeout_ms (the broker allows up to its "
        "transaction.max.timeout.ms) or the limit; or set sink.large_transactions.policy: parts, then readers may "
        "see a part of it before the rest"
    )


class ProgressUnreadable(SinkError):
    """The progress topic holds what this version cannot read."""

    code = "CDCD-PROGRESS-UNREADABLE"
    hint = "run the version of cdcd that wrote it, or a newer one"


class SchemasUnreadable(SinkError):
    """The schema topic holds what this version cannot read."""

    code = "CDCD-SCHEMA-TOPIC"
    hint = "run the version of cdcd that wrote it, or a newer one"


class SparkReadError(CdcdError):
    """The topics and the target of a reader do not fit together."""

    code = "CDCD-SPARK-READ"
    hint = "give the reader the target that belongs to these topics"


class HistoryMissing(SparkReadError):
    """Kafka no longer has records that were not read yet."""

    code = "CDCD-HISTORY-MISSING"
    hint = (
        "removed records do not return: have cdcd copy the tables to topics of their own (another name), raise "
        "their retention (sink.topics.properties), and read those, a mirror into an empty target"
    )


class GapInTopic(SparkReadError):
    """The topic has a marker: changes are missing there, and somebody has accepted it."""

    code = "CDCD-GAP"
    hint = (
        "the missing changes never arrive: have cdcd copy the tables again (`cdcd resnapshot`); or start the mirror "
        "with --accept-gaps, and it keeps what it has, rows that were deleted in the gap included"
    )


class MirrorInconsistent(SparkReadError):
    """A change that the mirror's state or its type rules do not allow."""

    code = "CDCD-MIRROR-INCONSISTENT"
    hint = "start the mirror with an empty target; if the error returns, report it"
