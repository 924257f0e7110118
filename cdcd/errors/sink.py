"""Errors on Kafka's side, and of the readers of the topics.

In: names of topics, a broker's error code.  Out: classes of the tree.
Invariant: a failure that leaves the result of a write unknown is AUTO only where the next session finds out which
records are durable (F76).
Must not: carry a record's key or value.
"""

from __future__ import annotations

from cdcd.errors.tree import EXIT_FENCED, CdcdError, Retry


class SinkError(CdcdError):
    """A failure on Kafka's side that an operator has to correct."""

    code = "CDCD-SINK"
    hint = (
        "only what is durable in Kafka was confirmed. Correct what the message names, then `cdcd resume`; after a "
        "change of the configuration, restart cdcd"
    )
    resolution = (
        "only what is durable in Kafka was confirmed. Correct what the message names: a topic's "
        "`message.timestamp.before.max.ms`, the broker's `transaction.max.timeout.ms`, `sink.topics`, a compacted "
        "topic; then run `cdcd resume`; after a change of the configuration, restart cdcd"
    )


class SinkUnavailable(SinkError):
    """Kafka cannot be reached or cannot make the writes durable now."""

    code = "CDCD-SINK-UNAVAILABLE"
    retry = Retry.AUTO
    hint = (
        "start Kafka, or correct sink.bootstrap_servers and the network; cdcd tries again, and no change is lost "
        "while the slot retains its WAL"
    )
    resolution = (
        "no action is needed if Kafka comes back; otherwise correct `sink.bootstrap_servers`, "
        "`security.protocol` or the network"
    )


class SinkFenced(SinkError):
    """Another producer with the same transactional id took over (F69)."""

    code = "CDCD-SINK-FENCED"
    retry = Retry.NEVER
    hint = (
        "another cdcd runs with this slot, or with its sink.transactional_id, and only one may. Since that one "
        "took over, this process has written nothing: stop the other process before you start this one again"
    )
    exit_status = EXIT_FENCED


class TransactionExpired(SinkUnavailable):
    """The broker aborted a Kafka transaction that was open longer than its timeout; no record of it is visible."""

    code = "CDCD-SINK-TRANSACTION-EXPIRED"
    hint = (
        "no action is needed: the next session writes the records again. If the error repeats, raise "
        "sink.transaction_timeout_ms (the broker allows up to its transaction.max.timeout.ms)"
    )


class SinkAuthorization(SinkError):
    """The broker refused an operation or the credentials (F68)."""

    code = "CDCD-SINK-AUTH"
    retry = Retry.AUTO  # the next session reads the credentials again, and an ACL may be granted again
    hint = (
        "grant the principal the ACLs that `cdcd check` names, or correct its credentials; cdcd tries again"
    )


class TopicMissing(SinkError):
    """A topic does not exist and cdcd must not create it, or a topic that held records was deleted."""

    code = "CDCD-TOPIC-MISSING"
    hint = (
        "only what was durable in Kafka was confirmed. If sink.topics.create is false, create the topic, then "
        "run `cdcd resume`. If the topic held records, they are lost: `cdcd resume --accept-topic NAME` continues "
        "in a new, empty topic; `cdcd resnapshot` copies all tables again"
    )
    resolution = (
        "create the topic, then `cdcd resume`; or set `sink.topics.create: true`, and restart cdcd. If the topic "
        "held records, they are lost: `cdcd resume --accept-topic NAME` continues in a new, empty topic; `cdcd "
        "resnapshot` copies all tables again"
    )


class TopicMismatch(SinkError):
    """The number of partitions of a topic changed, on which the partition of each key depends (F66)."""

    code = "CDCD-TOPIC-MISMATCH"
    hint = (
        "later records of a key may be in another partition than the earlier ones, so that their order by "
        "partition is lost. Run `cdcd resume --accept-topic NAME` to continue, or `cdcd resnapshot` to copy all "
        "tables again: readers then begin at a truncate event"
    )
    resolution = (
        "`cdcd resume --accept-topic NAME` continues: later records of a key may be in another partition than the "
        "earlier ones. `cdcd resnapshot` copies all tables again, after a truncate event. See "
        "[kafka.md](kafka.md#topics)"
    )


class TopicReplaced(SinkError):
    """A topic that held records was deleted and recreated under the same name (F67)."""

    code = "CDCD-TOPIC-REPLACED"
    hint = (
        "the records of the former topic are lost. Run `cdcd resume --accept-topic NAME` to continue without them, "
        "or `cdcd resnapshot` to copy all tables again"
    )
    resolution = (
        "the records of the former topic are lost: `cdcd resume --accept-topic NAME` continues without them, `cdcd "
        "resnapshot` copies all tables again. See [kafka.md](kafka.md#topics)"
    )


class OwnedByAnother(SinkError):
    """Another daemon owns a topic, the transactional id or the slot (F80)."""

    code = "CDCD-OWNED-BY-ANOTHER"
    hint = "choose another name: cdcd then has a slot and topics of its own, and copies all tables into them"
    resolution = (
        "choose another `name`: cdcd then has a slot and topics of its own, and copies all tables into them. To "
        "write the rows of both slots to one topic, or if the other slot is retired, set "
        "`sink.topics.shared_with: [SLOT]`; in place of a retired slot, stop cdcd when it streams, and run `cdcd "
        "resnapshot`, which removes the rows that were deleted in between "
        "([kafka.md](kafka.md#the-owner-of-a-topic)). If the transactional id is the conflict, set another "
        "`sink.transactional_id`"
    )


class RecordTooLarge(SinkError):
    """A record is larger than the broker or the topic allows (F65)."""

    code = "CDCD-RECORD-TOO-LARGE"
    hint = (
        "no change of the record's transaction was confirmed. Raise message.max.bytes (broker), "
        "max.message.bytes (topic) and sink.properties.message.max.bytes; or set sink.too_large: dead_letter, so "
        "that a marker replaces the row"
    )
    at: int | None = None
    """The index of the record in the batch that was produced; None where the broker refused it later."""


class BatchTooLarge(RecordTooLarge):
    """A broker refuses a batch of records; the next session tests whether a single record is too large (F65)."""

    code = "CDCD-SINK-BATCH-TOO-LARGE"
    retry = Retry.AUTO
    hint = (
        "no action is needed: the next session sends smaller batches to this topic, and a record that is too large "
        "in its own batch"
    )


class TransactionTooLarge(SinkError):
    """A PostgreSQL transaction is larger than one Kafka transaction may be."""

    code = "CDCD-TRANSACTION-TOO-LARGE"
    hint = (
        "no change of the transaction is visible or confirmed. Raise sink.transaction_timeout_ms (the broker "
        "allows up to its transaction.max.timeout.ms) or the limit; or set sink.large_transactions.policy: "
        "parts, with which readers may see a part of the transaction before the rest"
    )


class ProgressUnreadable(SinkError):
    """The progress topic has a record that this version cannot read."""

    code = "CDCD-PROGRESS-UNREADABLE"
    hint = "run the version of cdcd that wrote the record, or a newer version"
    resolution = (
        "run the version that wrote the record. If another program wrote it: revoke the write ACLs of "
        "other principals, produce the last good record of the key again, then `cdcd resume`"
    )


class SchemasUnreadable(SinkError):
    """The schema topic has a record that this version cannot read."""

    code = "CDCD-SCHEMA-TOPIC"
    hint = "no change is lost or confirmed meanwhile. Run the version of cdcd that wrote the record, or a newer one"
    resolution = (
        "no change is lost or confirmed meanwhile. Run the version that wrote the record. If another program "
        "wrote it: revoke the write ACLs of other principals, produce a record without a value under the same key, "
        "have Kafka compact the topic ([registry.md](registry.md)), then `cdcd resume`"
    )


class SparkReadError(CdcdError):
    """The topics and the target of a reader do not belong together."""

    code = "CDCD-SPARK-READ"
    hint = "start the reader with the target that belongs to these topics"


class HistoryMissing(SparkReadError):
    """Kafka removed records before the reader read them."""

    code = "CDCD-HISTORY-MISSING"
    hint = (
        "Kafka cannot restore removed records. Set another `name`, so that cdcd copies the tables to new topics, "
        "and raise the retention of these topics (sink.topics.properties). Then read the new topics; start a "
        "mirror with an empty target"
    )


class SnapshotIncomplete(SparkReadError):
    """A batch would have only a part of a snapshot, or of a table that cdcd still copies."""

    code = "CDCD-SNAPSHOT-INCOMPLETE"
    hint = (
        "read again when the snapshot is complete (`state` of /status is `streaming`); or use a stream, "
        "whose first batch then has the snapshot"
    )


class PositionUnavailable(SparkReadError):
    """The start or the end that a reader asks for is not in Kafka any more, or not yet."""

    code = "CDCD-POSITION-UNAVAILABLE"
    hint = "read from `earliest` or to `latest`, or choose a position between them"


class GapInTopic(SparkReadError):
    """The topic has a gap marker: changes are missing there, and an operator has accepted the gap."""

    code = "CDCD-GAP"
    hint = (
        "the missing changes never arrive: run `cdcd snapshot start --all --recopy` to copy the tables again "
        "while the stream continues, or `cdcd resnapshot`; a table with `include: false`: `cdcd snapshot start "
        "--table SCHEMA.TABLE --recopy`; or start the mirror with --accept-gaps: its table then retains its "
        "rows, including those that were deleted in the gap"
    )


class MirrorInconsistent(SparkReadError):
    """A change contradicts the mirror's state or its type rules."""

    code = "CDCD-MIRROR-INCONSISTENT"
    hint = (
        "copy the table again: `cdcd snapshot start --table SCHEMA.TABLE --recopy`; if the error repeats, report "
        "it with the table's definition"
    )


class ChangesInvalid(SparkReadError):
    """`apply_changes` cannot apply changes that lack a key or a sequence, have no order, or have another type."""

    code = "CDCD-CHANGES-INVALID"
    hint = (
        "correct the frame of changes, or the parameters of apply_changes; nothing of the batch was applied"
    )


class MirrorBehind(SparkReadError):
    """A mirror did not reach a position before the time-out."""

    code = "CDCD-MIRROR-BEHIND"
    hint = "check that cdcd and the mirror run, check the lag of both, then wait again"


class TablesParked(SparkReadError):
    """Tables of a mirror are not updated any more, or their rows are not as of the commit of a view of all tables."""

    code = "CDCD-MIRROR-PARKED"
    hint = (
        "correct the cause, then copy each table again: `cdcd snapshot start --table SCHEMA.TABLE --recopy`; the "
        "mirror updates it from the first record of the copy on"
    )


class CatalogRefused(SparkReadError):
    """A table of a mirror could not be registered in a catalog of Spark."""

    code = "CDCD-CATALOG"
    hint = (
        "the mirror itself is not affected, and a running mirror tries again. Create the database, rename the "
        "other table of this name, or choose another database with --catalog. Delta tables need Delta's package "
        "in Spark"
    )


class StorageError(SparkReadError):
    """The storage of a target refuses a request, or lacks a file."""

    code = "CDCD-STORAGE"
    hint = "check the URI of the target, the credentials, and the storage's own log"


class TableLogUnreadable(StorageError):
    """The log of a Delta or Iceberg table of a mirror is damaged."""

    code = "CDCD-TABLE-LOG"
    hint = (
        "restore the file from a backup of the target, or remove the folder of the table; then copy the table "
        "again: `cdcd snapshot start --table ... --recopy`"
    )


class TableFileMissing(StorageError):
    """A file of a table of a mirror does not exist, and the newest version of the mirror may name it."""

    code = "CDCD-TABLE-FILE"
    hint = (
        "in a reader, open the mirror again: a newer version may have replaced the file. If the newest version names "
        "it, copy the table again: `cdcd snapshot start --table SCHEMA.TABLE --recopy`; a mirror with --on-error "
        "fail needs the file from a backup of the target"
    )


class StorageUnavailable(StorageError):
    """The storage of a target does not answer, refuses the credentials, or has no space now."""

    code = "CDCD-STORAGE-UNAVAILABLE"
    retry = Retry.AUTO  # the next attempt reads the credentials again; an operator may free space
    hint = "free space on the disk, or correct the credentials or the network; the mirror tries again"
    resolution = (
        "no action is needed if the storage comes back; otherwise free space on the disk of the target, or "
        "correct its credentials or the network. The mirror tries again for `--retry-s` seconds, then it ends"
    )


class StorageConflict(StorageError):
    """Another writer created or replaced the file first."""

    code = "CDCD-STORAGE-CONFLICT"
    hint = (
        "this writer published nothing. Only one mirror may write to a target: stop the other one, or choose "
        "another target, and start this one again"
    )
