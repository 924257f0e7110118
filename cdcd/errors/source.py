"""Errors on PostgreSQL's side: the server, the slot, the publications, the role.

In: names, LSNs, a SQLSTATE.  Out: classes of the tree.
Invariant: what time or a rotated secret mends is AUTO; what may have lost changes is OPERATOR.
Must not: carry the server's DETAIL, which can hold values.
"""

from __future__ import annotations

from typing import Any

from cdcd.errors.tree import CdcdError, Retry

GAP_OR_SNAPSHOT = (
    "find the cause first. Run `cdcd resnapshot` to copy the tables again, or `cdcd resume --accept-gap` to continue "
    "without the missing changes"
)


class SourceError(CdcdError):
    """A failure on PostgreSQL's side."""

    code = "CDCD-SOURCE"
    hint = "see the server's log; correct it there, then `cdcd resume`"


class SourceUnavailable(SourceError):
    """The server cannot be reached, went away, or is starting or stopping."""

    code = "CDCD-SOURCE-UNAVAILABLE"
    retry = Retry.AUTO
    hint = "cdcd connects again by itself, and nothing is lost meanwhile"


class ServerInternal(SourceError):
    """The server reports an internal error: a defect of its own, or damaged data."""

    code = "CDCD-SOURCE-INTERNAL"
    hint = (
        "see the server's log: a damaged row or index is repaired there (REINDEX; delete or restore the row), then "
        "`cdcd resume`; a defect of PostgreSQL may be gone in its next minor version"
    )


class ServerCrashed(SourceError):
    """The server crashes each time it decodes from one position, without streaming and binary as well (F85)."""

    code = "CDCD-SOURCE-CRASH"
    hint = (
        "each try ends the sessions of all users, so cdcd stays away. The server's log says what ended its process: "
        "by signal 11 or an abort it is a defect of PostgreSQL or of an extension (update it), by signal 9 most "
        "likely want of memory (lower logical_decoding_work_mem). Then `cdcd resume`; if it crashes there still, "
        "`cdcd resnapshot` copies the tables again and goes on behind that place"
    )


class SendFunctionMissing(SourceError):
    """The server has no function that writes a value of this type (42883): in binary form, most likely."""

    code = "CDCD-SOURCE-SEND-FUNCTION"
    hint = (
        "a function of PostgreSQL 14 or later is missing on the server, or the role's search_path hides it: the "
        "message and the server's log name it; correct that, then `cdcd resume`"
    )


class OptionFailed(SourceError):
    """An error that an option of the stream may be the reason of; the next session is without those named.

    `without` also has what earlier sessions had to leave out already: otherwise two options that fail in turn would
    never both be off.
    """

    code = "CDCD-SOURCE-OPTION"
    retry = Retry.AUTO
    hint = "the next session leaves the option out"

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


def decoded_at_commit_prepared(slot: str) -> str:
    """Return how a slot that sends transactions at PREPARE is exchanged for one that does not, at its position.

    A slot that was copied has no two_phase, in each version that knows it. Where a statement fails it drops nothing,
    and the next one fails as well.
    """

    def moved(name: str, to: str) -> str:
        copy = f"pg_copy_logical_replication_slot('{name}', '{to}')"
        return f"SELECT pg_drop_replication_slot('{name}') FROM {copy}"  # noqa: S608 - shown, not run

    spare = f"{slot}_copy"
    return f"`{moved(slot, spare)}; {moved(spare, slot)}`"


class TwoPhaseFailed(SourceError):
    """The server fails at a prepared transaction that it need not decode after its ROLLBACK PREPARED (F84)."""

    code = "CDCD-SOURCE-TWO-PHASE"
    hint = (
        "switch the slot to decode at COMMIT PREPARED, set source.protocol.two_phase: false, and restart cdcd"
    )

    def __init__(self, message: str, slot: str = "", **context: object) -> None:
        hint = (
            "have the slot decode at COMMIT PREPARED; nothing is lost by it: run "
            f"{decoded_at_commit_prepared(slot)} in the source database, set source.protocol.two_phase: false, and "
            "restart cdcd"
        )
        super().__init__(message, hint=hint if slot else None, **context)


class SourceAuthentication(SourceError):
    """The server refused the role or its password."""

    code = "CDCD-SOURCE-AUTH"
    retry = Retry.AUTO  # secrets are re-read at the next connection, so a mended one is picked up
    hint = "check source.dsn, source.password_file and pg_hba.conf"


class SlotActive(SourceError):
    """Another walsender holds the slot (F18, F74)."""

    code = "CDCD-SLOT-ACTIVE"
    retry = Retry.AUTO
    hint = (
        "cdcd waits until it is free. Stop the other reader if it is not wanted; one that is frozen or cut off lets "
        "go after wal_sender_timeout"
    )


class SlotMissing(SourceError):
    """The slot of the stored position is gone (F10)."""

    code = "CDCD-SLOT-MISSING"
    hint = GAP_OR_SNAPSHOT


class SlotLost(SourceError):
    """The slot was invalidated (F23)."""

    code = "CDCD-SLOT-LOST"
    hint = GAP_OR_SNAPSHOT


class SlotAhead(SourceError):
    """The slot was confirmed beyond what cdcd wrote: something else consumed it (F3)."""

    code = "CDCD-SLOT-AHEAD"
    hint = GAP_OR_SNAPSHOT


class SlotDroppedByWalGuard(SourceError):
    """The WAL guard has given the slot up, to save the primary's disk (F21)."""

    code = "CDCD-SLOT-DROPPED-BY-WAL-GUARD"
    hint = GAP_OR_SNAPSHOT


class SlotUnusable(SourceError):
    """The slot exists but is not one that cdcd can read from."""

    code = "CDCD-SLOT-UNUSABLE"
    hint = "choose another source.slot.name, and restart cdcd"


class SlotUnsynchronised(SlotUnusable):
    """The server was promoted, and its copy of the slot had not been made usable by then (F57)."""

    code = "CDCD-SLOT-UNSYNCHRONISED"
    hint = GAP_OR_SNAPSHOT


class SnapshotStale(SourceError):
    """A table got another file after the snapshot was taken, which may not see all of its rows any more (F81)."""

    code = "CDCD-SNAPSHOT-STALE"
    retry = Retry.AGAIN
    hint = (
        "the snapshot restarts by itself and copies this table first; where it halts: let nothing give the table "
        "another file (TRUNCATE, ALTER TABLE, VACUUM FULL, CLUSTER, pg_repack, REPACK) until it is copied, then "
        "`cdcd resume`"
    )


class SourceMismatch(SourceError):
    """The server is not the one the stored position belongs to (F58, F62)."""

    code = "CDCD-SOURCE-IDENTITY"
    hint = "point source.dsn at the server that was read before, or use another name, and restart cdcd"


class SourceTimeline(SourceMismatch):
    """cdcd wrote transactions that the server's history does not have: it was promoted before them (F58)."""

    code = "CDCD-SOURCE-TIMELINE"
    hint = GAP_OR_SNAPSHOT


class SourceBehind(SourceMismatch):
    """The server's WAL ends before the stored position: it was restored, or is another copy (F62)."""

    code = "CDCD-SOURCE-BEHIND"
    hint = "point source.dsn at the server that was read before, or use another name, and restart cdcd"


class SourceStandby(SourceError):
    """The server is in recovery: a standby that may be promoted, or a primary that was demoted (F57, F59)."""

    code = "CDCD-SOURCE-STANDBY"
    retry = Retry.AUTO  # a promotion, or a name that is moved, mends it
    hint = (
        "it is asked again until it is a primary; name all servers in source.dsn, with target_session_attrs"
    )


class PublicationMissing(SourceError):
    """A publication is not there, so its changes would be lost (F39, F72)."""

    code = "CDCD-PUBLICATION-MISSING"
    hint = (
        "create it again; if it is there, changes from before it was made are still to be read, and PostgreSQL goes "
        "by what there was then: name the publications of then in source.publication.names, or `cdcd resnapshot`"
    )


class PublicationChanged(SourceError):
    """A publication was made again, or a table taken out of it: changes in between may be missing (F39, F42)."""

    code = "CDCD-PUBLICATION-CHANGED"
    hint = (
        "if nothing was written to its tables meanwhile, nothing is missing: SIGHUP (or `cdcd resume`) goes on with "
        "the publication as it is now; else a new snapshot is needed: `cdcd resnapshot`"
    )

    def __init__(self, message: str, *, steps: frozenset[Any] = frozenset()) -> None:
        super().__init__(message)
        self.steps = steps
        """What it is for, by oids: who goes on after this error accepts these, and nothing that comes later."""


class SourceSetup(SourceError):
    """The server, database or role is not set up for logical replication."""

    code = "CDCD-SOURCE-SETUP"
    hint = "run `cdcd check --config FILE`"
