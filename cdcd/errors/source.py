"""Errors on PostgreSQL's side: the server, the slot, the publications, the role.

In: names, LSNs, a SQLSTATE.  Out: classes of the tree.
Invariant: a failure that time or a rotated secret resolves is AUTO; a failure that may have lost changes is OPERATOR.
Must not: carry the server's DETAIL, which can hold values.
"""

from __future__ import annotations

from typing import Any

from cdcd.errors.tree import CdcdError, Retry

GAP_OR_SNAPSHOT = (
    "find the cause first. Run `cdcd resnapshot` to copy the tables again, or `cdcd resume --accept-gap` to "
    "continue without the missing changes"
)


_DECIDE = (
    "more changes go missing with each commit until you decide ([when the slot is gone](slot-gone.md)): `cdcd "
    "resnapshot`, or `cdcd resume --accept-gap`"
)


class SourceError(CdcdError):
    """A failure on PostgreSQL's side."""

    code = "CDCD-SOURCE"
    hint = "correct the cause that the server's log names, then `cdcd resume`"
    resolution = (
        "correct the cause that the message or the server's log names, then `cdcd resume`. If a text cannot be "
        "converted to UTF-8 (SQL_ASCII): correct the row, then `cdcd resnapshot`"
    )


class SourceUnavailable(SourceError):
    """The server cannot be reached, closed the connection, or is starting or stopping."""

    code = "CDCD-SOURCE-UNAVAILABLE"
    retry = Retry.AUTO
    hint = (
        "no action is needed when the server is back: cdcd connects again by itself, and no change is lost while "
        "the slot retains its WAL (max_slot_wal_keep_size)"
    )
    resolution = (
        "no action is needed when the server is back: no change is lost while the slot retains its WAL. "
        "Otherwise correct what the message names: host and port, the name service, `max_connections`, a "
        "`CONNECTION LIMIT`, a login event trigger"
    )


class ServerInternal(SourceError):
    """The server reports an internal error: a defect of PostgreSQL, or damaged data."""

    code = "CDCD-SOURCE-INTERNAL"
    hint = (
        "the server's log names the cause: repair a damaged row or index (REINDEX; delete or restore the row), "
        "then `cdcd resume`; a later minor version of PostgreSQL may fix a defect"
    )
    resolution = (
        "the server's log names the cause: repair a damaged row or index (REINDEX; delete or restore the row), "
        "then `cdcd resume`"
    )


class ServerCrashed(SourceError):
    """The server crashes each time it decodes from one position, also without streaming and binary (F85)."""

    code = "CDCD-SOURCE-CRASH"
    hint = (
        "each attempt ends the sessions of all users, so cdcd does not retry. The server's log names the signal: "
        "signal 11 or an abort is a defect of PostgreSQL or of an extension (update it); signal 9 is most likely "
        "a lack of memory (lower logical_decoding_work_mem). Then run `cdcd resume`; if the server still "
        "crashes, `cdcd resnapshot` copies the tables again and continues after that position"
    )
    resolution = (
        "the server's log names the signal: update PostgreSQL or the extension (signal 11, an abort), or lower "
        "`logical_decoding_work_mem` (signal 9, most likely a lack of memory); then `cdcd resume`. If the "
        "server still crashes, run `cdcd resnapshot`"
    )


class SendFunctionMissing(SourceError):
    """The server has no output function for a value of this type (42883), most likely none for the binary format."""

    code = "CDCD-SOURCE-SEND-FUNCTION"
    hint = (
        "a function of PostgreSQL 14 or later is missing on the server, or the role's search_path hides it. The "
        "message and the server's log name the function: make it available, then `cdcd resume`"
    )
    resolution = (
        "a function of PostgreSQL 14 or later is missing on the server, or the role's search_path hides it: "
        "make it available, then `cdcd resume`. With values in binary, a daemon reports the error as "
        "`CDCD-SOURCE-BINARY`, and its next session reads text"
    )


class OptionFailed(SourceError):
    """An option of the stream may have caused the error; the next session runs without the options in `without`.

    `without` includes the options that earlier sessions had to leave out: otherwise two options that fail in turn
    would never both be off.
    """

    code = "CDCD-SOURCE-OPTION"
    retry = Retry.AUTO
    hint = "no action is needed: the next session runs without the option"

    def __init__(
        self, message: str, without: tuple[str, ...] = (), *, hint: str | None = None, **context: object
    ) -> None:
        super().__init__(message, hint=hint, **context)
        self.without = without


class StreamingFailed(OptionFailed):
    """The server's streaming of open transactions may have caused the error."""

    code = "CDCD-SOURCE-STREAMING"
    hint = (
        "no change is lost: the next session reads the same changes without streaming; to make that permanent, set "
        "source.protocol.streaming: off, and restart cdcd"
    )


class BinaryFailed(OptionFailed):
    """cdcd cannot decode a value exactly from its binary format, or the server cannot send it in binary (F53)."""

    code = "CDCD-SOURCE-BINARY"
    hint = (
        "no change is lost: the next session reads the same changes as text; to make that permanent, set "
        "source.protocol.binary: false, and restart cdcd"
    )


def decoded_at_commit_prepared(slot: str) -> str:
    """Return the SQL that replaces a slot that decodes at PREPARE with one that decodes at COMMIT PREPARED.

    The new slot has the position of the old one. A copied slot has no two_phase, in each version that has the option.
    A statement that fails drops nothing, and the next one then fails as well.
    """

    def moved(name: str, to: str) -> str:
        copy = f"pg_copy_logical_replication_slot('{name}', '{to}')"
        return f"SELECT pg_drop_replication_slot('{name}') FROM {copy}"  # noqa: S608 - shown, not run

    spare = f"{slot}_copy"
    return f"`{moved(slot, spare)}; {moved(spare, slot)}`"


class TwoPhaseFailed(SourceError):
    """The server fails to decode a prepared transaction, which it would skip after its ROLLBACK PREPARED (F84)."""

    code = "CDCD-SOURCE-TWO-PHASE"
    hint = (
        "switch the slot to decode at COMMIT PREPARED, which loses no change: run {statements} in the source "
        "database, set source.protocol.two_phase: false, and restart cdcd"
    )
    resolution = (
        "replace the slot with one at the same position that decodes at COMMIT PREPARED (the message has "
        "the statements); set source.protocol.two_phase: false; restart cdcd. No change is lost "
        "([why](transactions.md#switch-it-on-and-off))"
    )

    def __init__(self, message: str, slot: str, **context: object) -> None:
        hint = self.hint.format(statements=decoded_at_commit_prepared(slot))
        super().__init__(message, hint=hint, **context)


class SourceAuthentication(SourceError):
    """The server refused the role or its password."""

    code = "CDCD-SOURCE-AUTH"
    retry = Retry.AUTO  # cdcd reads the secrets again at the next connection, so it uses a corrected one
    hint = (
        "check source.dsn, source.password_file and pg_hba.conf; cdcd tries again, and no change is lost while "
        "the slot retains its WAL"
    )
    resolution = (
        "correct what the message names: the password, the role and its LOGIN, the line of pg_hba.conf, the "
        "certificate; cdcd reads the files again at each attempt"
    )


class SlotActive(SourceError):
    """Another walsender uses the slot (F18, F74)."""

    code = "CDCD-SLOT-ACTIVE"
    retry = Retry.AUTO
    hint = (
        "cdcd waits until the slot is free. Stop the other reader if it should not run; the walsender of a "
        "frozen or disconnected reader releases the slot after wal_sender_timeout"
    )
    resolution = (
        "no action is needed: cdcd waits until the slot is free. Stop the other reader if it should not run, "
        "or wait for `wal_sender_timeout`"
    )


class SlotMissing(SourceError):
    """The slot that the stored position belongs to does not exist (F10)."""

    code = "CDCD-SLOT-MISSING"
    hint = GAP_OR_SNAPSHOT
    resolution = _DECIDE


class SlotLost(SourceError):
    """The server invalidated the slot (F23)."""

    code = "CDCD-SLOT-LOST"
    hint = GAP_OR_SNAPSHOT
    resolution = _DECIDE


class SlotAhead(SourceError):
    """The slot is confirmed beyond the changes that cdcd wrote: another consumer advanced it (F3)."""

    code = "CDCD-SLOT-AHEAD"
    hint = GAP_OR_SNAPSHOT
    resolution = (
        "the slot retains WAL until you decide. Find the slot's other consumer; then `cdcd resnapshot`, or `cdcd "
        "resume --accept-gap` ([when the slot is gone](slot-gone.md))"
    )


class SlotDroppedByWalGuard(SourceError):
    """The WAL guard dropped the slot to protect the primary's disk (F21)."""

    code = "CDCD-SLOT-DROPPED-BY-WAL-GUARD"
    hint = GAP_OR_SNAPSHOT
    resolution = f"{_DECIDE}. See [the WAL guard](source.md#the-wal-guard)"


class SlotUnusable(SourceError):
    """The slot exists, but cdcd cannot read from it."""

    code = "CDCD-SLOT-UNUSABLE"
    hint = "choose another source.slot.name, and restart cdcd"
    resolution = "follow the message; if the slot is another program's, choose another `source.slot.name`"


class SlotUnsynchronised(SlotUnusable):
    """The server was promoted before it had fully synchronized its copy of the slot (F57)."""

    code = "CDCD-SLOT-UNSYNCHRONISED"
    hint = GAP_OR_SNAPSHOT
    resolution = _DECIDE


class SnapshotStale(SourceError):
    """A table was rewritten after the snapshot was taken, so the snapshot may not see all of its rows (F81)."""

    code = "CDCD-SNAPSHOT-STALE"
    retry = Retry.LIMITED
    hint = (
        "the snapshot restarts by itself and copies this table first. If cdcd halts: run no command that "
        "rewrites the table (TRUNCATE, ALTER TABLE, VACUUM FULL, CLUSTER, pg_repack, REPACK) until the table is "
        "copied, then `cdcd resume`"
    )
    resolution = (
        "the snapshot restarts by itself and copies this table first; cdcd halts after the eighth time for one "
        "table: run no command that rewrites the table (TRUNCATE, ALTER TABLE, VACUUM FULL, CLUSTER, "
        "pg_repack, REPACK) until the table is copied, then `cdcd resume`"
    )


class SourceMismatch(SourceError):
    """The stored position belongs to another server (F58, F62)."""

    code = "CDCD-SOURCE-IDENTITY"
    hint = "point source.dsn at the server that cdcd read before, or choose another `name`, and restart cdcd"
    resolution = (
        "point `source.dsn` at the server that cdcd read before, use another name, or run `cdcd resnapshot`"
    )


class SourceTimeline(SourceMismatch):
    """cdcd wrote transactions that are not in the server's history: the server was promoted without them (F58)."""

    code = "CDCD-SOURCE-TIMELINE"
    hint = GAP_OR_SNAPSHOT
    resolution = (
        "readers have changes that the server does not have ([when the slot is gone](slot-gone.md)): `cdcd "
        "resnapshot`, or `cdcd resume --accept-gap`"
    )


class SourceBehind(SourceMismatch):
    """The server's WAL ends before the stored position: the server was restored, or is another copy (F62)."""

    code = "CDCD-SOURCE-BEHIND"
    hint = "point source.dsn at the server that cdcd read before, or choose another `name`, and restart cdcd"
    resolution = (
        "point `source.dsn` at the server that cdcd read before; a restored server needs another name"
    )


class SourceStandby(SourceError):
    """The server is in recovery: a standby that may be promoted, or a primary that was demoted (F57, F59)."""

    code = "CDCD-SOURCE-STANDBY"
    retry = Retry.AUTO  # a promotion, or a host name that is moved to the primary, resolves it
    hint = "cdcd tries again until the server is a primary; list all servers in source.dsn, with target_session_attrs"


class StandbyUnavailable(SourceUnavailable):
    """The standby of `snapshot.from` cannot be reached, is behind, or has cancelled a query of the copy."""

    code = "CDCD-STANDBY-UNAVAILABLE"
    hint = (
        "no action is needed when the standby is back: cdcd tries again and copies only the tables that are not "
        "complete; to copy from the primary, remove snapshot.from and restart cdcd"
    )
    resolution = (
        "no action is needed when the standby is back: cdcd tries again and copies only the tables that are "
        "not complete. If the standby cancels the copy repeatedly, set `hot_standby_feedback = on`, or a "
        "longer `max_standby_streaming_delay` ([copy from a standby](snapshots.md#copy-from-a-standby))"
    )


class StandbyUnusable(SourceError):
    """The initial snapshot cannot be read from the server of `snapshot.from`: it is not a standby of the source."""

    code = "CDCD-STANDBY-UNUSABLE"
    hint = (
        "name a standby of the source in snapshot.from, or remove the option to copy from the primary, and restart "
        "cdcd"
    )
    resolution = (
        "name a standby of the source (PostgreSQL 16 or later) in `snapshot.from`, or remove the option to "
        "copy from the primary, and restart cdcd"
    )


class PublicationMissing(SourceError):
    """A publication does not exist, so its changes would be lost (F39, F72)."""

    code = "CDCD-PUBLICATION-MISSING"
    hint = (
        "create the publication again. If it exists, cdcd still has to read changes from before its creation, for "
        "which PostgreSQL uses the publications of that time: name those in source.publication.names, or run "
        "`cdcd resnapshot`"
    )
    resolution = (
        "create the publication again. If it exists, cdcd still has to read changes from before its creation: "
        "name the publications of that time in `source.publication.names`, or run `cdcd resnapshot`"
    )


class PublicationChanged(SourceError):
    """A publication was recreated, or a table removed or added (`snapshot.new_tables: halt`): changes may be missing.

    F39, F42.
    """

    code = "CDCD-PUBLICATION-CHANGED"
    hint = (
        "if nobody wrote to the publication's tables meanwhile, no change is missing: SIGHUP (or `cdcd resume`) "
        "continues with the publication as it is now. Otherwise run `cdcd resnapshot` to copy the tables again"
    )
    resolution = (
        "if nobody wrote to the publication's tables meanwhile, no change is missing: SIGHUP (or `cdcd resume`) "
        "continues with the publication as it is now. Otherwise run `cdcd resnapshot`. Copy an added table with "
        "`cdcd snapshot start --table SCHEMA.TABLE`"
    )

    def __init__(self, message: str, *, steps: frozenset[Any] = frozenset(), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.steps = steps
        """The changes of the publication, by oids: an operator who resumes accepts these, and no later change."""


class SourceSetup(SourceError):
    """The server, database or role is not set up for logical replication."""

    code = "CDCD-SOURCE-SETUP"
    hint = "run `cdcd check --config FILE`: it prints the statements that are missing"
    resolution = (
        "correct what the message names. A connection pooler (PgBouncer, RDS Proxy, Supavisor) does not carry "
        "logical replication: name PostgreSQL itself in `source.dsn`. `cdcd check` prints the missing "
        "statements"
    )
