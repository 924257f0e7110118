"""Map PostgreSQL's errors to cdcd's.

In: SQLSTATE, primary message and server function of an error.  Out: an error of cdcd's tree.
Invariant: the SQLSTATE decides if there is one; if it is ambiguous, the name of the server's C function, which unlike
the text is never translated. Text alone decides only for connection failures, which libpq reports without a SQLSTATE.
An unknown SQLSTATE is a SourceError, which waits for an operator.
Must not: pass on DETAIL or CONTEXT of an error, or the text of a data exception: they can contain row values.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdcd.errors import (
    PublicationMissing,
    SendFunctionMissing,
    ServerInternal,
    SlotActive,
    SlotLost,
    SlotMissing,
    SlotUnusable,
    SourceAuthentication,
    SourceError,
    SourceSetup,
    SourceUnavailable,
)

MAX_REPORT_CHARACTERS = 1_000
"""The part of a server's message that is used: a message may quote a whole statement, or be forged."""


@dataclass(frozen=True, slots=True)
class ServerReport:
    """The fields of an ErrorResponse or NoticeResponse that cdcd uses. `function` is the server's C function."""

    sqlstate: str | None
    message: str
    severity: str = "ERROR"
    function: str | None = None


_BY_SQLSTATE: dict[str, type[SourceError]] = {
    "42501": SourceSetup,  # the role lacks a privilege
    "3D000": SourceSetup,  # no such database
    "53400": SourceSetup,  # all replication slots are in use
    "0A000": SourceSetup,  # logical decoding on a standby that does not support it
    "55006": SlotActive,
    "58030": ServerInternal,  # the server cannot read or write a file
    "57014": SourceUnavailable,  # cancelled, by a time-out or a user
    "55P03": SourceUnavailable,  # lock not available
    "25006": SourceUnavailable,  # read-only: the server has become a standby
    "42883": SendFunctionMissing,  # a type inside another has no send function (F53)
    "XX000": ServerInternal,
    "XX001": ServerInternal,  # damaged data
    "XX002": ServerInternal,  # a damaged index
}

_HINTS = {
    "42501": "grant the role the privilege that the message names (`cdcd check` prints the statement), then "
    "`cdcd resume`",
    "53100": "free space on the server's disk; cdcd tries again",
    "53300": "end unused sessions, or raise max_connections or max_wal_senders and restart the server; cdcd tries "
    "again",
    "53400": "raise max_replication_slots and restart the server, or ask the owner of an unused slot to drop it; "
    "then `cdcd resume`",
    "0A000": "run `cdcd check --config FILE`; it reports what the server lacks",
}
"""The hint for a SQLSTATE, if it is more specific than that of the error class."""

_ROW_SECURITY_HINT = (
    "row-level security would hide rows from cdcd's role: ALTER ROLE ... BYPASSRLS for it, then `cdcd resume`"
)

_WAL_LEVEL_HINT = (
    "ALTER SYSTEM SET wal_level = 'logical' (on a cloud provider: its parameter for logical replication), restart "
    "the server, then `cdcd resume`"
)
_NO_PLUGIN_HINT = (
    "install the server's pgoutput plugin: the installation of PostgreSQL is incomplete; then `cdcd resume`"
)

_NO_FILE_HINT = (
    "a file is missing on the server, which the state of the slot does not show: restore the file and run `cdcd "
    "resume`; or, if it is a file of the WAL or of the slot, run `cdcd resnapshot`, which creates the slot again and "
    "copies the tables: see docs/slot-gone.md"
)

_BY_CLASS: dict[str, type[SourceError]] = {
    "08": SourceUnavailable,  # connection exception
    "28": SourceAuthentication,  # invalid authorization specification
    "40": SourceUnavailable,  # transaction rollback: serialization, deadlock
    "53": SourceUnavailable,  # insufficient resources
    "57": SourceUnavailable,  # operator intervention: shutdown, crash, starting up, terminated
}

_UNTRANSLATABLE = frozenset({"22021", "22P05"})
_UNTRANSLATABLE_HINT = (
    "the server cannot convert a text to UTF-8: a database in SQL_ASCII accepts any bytes, and some encodings "
    "have characters without an equivalent in UTF-8. The stream cannot continue past this row: correct the row "
    "in the table, then `cdcd resnapshot`"
)

_PUBLICATION_FUNCTIONS = frozenset({"get_publication_oid", "GetPublicationByName", "LoadPublications"})
_DECODING_FUNCTIONS = frozenset({"CheckLogicalDecodingRequirements", "CheckSlotRequirements"})

_NO_MEMORY = ("out of memory", "cannot allocate memory")


def failure_for(report: ServerReport) -> SourceError:
    """Return the error for a report of the server, or of libpq itself, which has no SQLSTATE.

    Raises MemoryError.
    """
    if not report.sqlstate:
        refuse_want_of_memory(report.message)
    cls = _class_for(report)
    return cls(_shown(report), hint=_hint_for(report, cls), sqlstate=report.sqlstate)


def _hint_for(report: ServerReport, cls: type[SourceError]) -> str | None:
    """Return the hint for this report, None if that of the error class applies."""
    sqlstate = report.sqlstate or ""
    if sqlstate in _UNTRANSLATABLE:
        return _UNTRANSLATABLE_HINT
    if sqlstate == "42501" and report.function == "check_enable_rls":
        return _ROW_SECURITY_HINT
    if cls is SourceSetup and sqlstate == "55000":
        return _WAL_LEVEL_HINT
    if cls is SourceSetup and sqlstate == "58P01":
        return _NO_PLUGIN_HINT
    if cls is SlotLost and sqlstate == "58P01":
        # A gap cannot be accepted, which needs a slot that a start finds to be lost.
        return _NO_FILE_HINT
    return _HINTS.get(sqlstate)


def refuse_want_of_memory(text: str) -> None:
    """Raise MemoryError if libpq reports a lack of memory: another session would also lack memory."""
    if text.lower().startswith(_NO_MEMORY):
        raise MemoryError


def is_publication_notice(report: ServerReport) -> bool:
    """Return whether a notice is PostgreSQL 18's "skipped loading publication", which loses changes (F72)."""
    return report.function == "LoadPublications" or "skipped loading publication" in report.message


def first_line(text: str) -> str:
    """Return the text's first line, without the details or context that libpq and psycopg2 append below it."""
    return text.strip().partition("\n")[0].strip()


def _class_for(report: ServerReport) -> type[SourceError]:
    sqlstate = report.sqlstate
    if not sqlstate:
        return SourceUnavailable  # libpq's own message: the connection broke
    if sqlstate == "42704":
        return _undefined_object(report)
    if sqlstate == "55000":
        return _wrong_state(report)
    if sqlstate == "58P01":  # a missing file: a removed WAL segment, or the output plugin
        return SourceSetup if "could not access file" in report.message else SlotLost
    return _BY_SQLSTATE.get(sqlstate) or _BY_CLASS.get(sqlstate[:2]) or SourceError


def _undefined_object(report: ServerReport) -> type[SourceError]:
    """Return the error for 42704: a missing slot (at START) or publication (while decoding, F39)."""
    if report.function in _PUBLICATION_FUNCTIONS or "publication" in report.message:
        return PublicationMissing
    if (report.function or "").startswith("ReplicationSlot") or "replication slot" in report.message:
        return SlotMissing
    return SourceError


def _wrong_state(report: ServerReport) -> type[SourceError]:
    """Return the error for 55000: an invalidated slot (F23), a wrong wal_level, or a slot of another kind."""
    if report.function in _DECODING_FUNCTIONS or "wal_level" in report.message:
        return SourceSetup
    if "can no longer" in report.message or "invalidated" in report.message:
        return SlotLost
    if "slot" in report.message or report.function == "CreateDecodingContext":
        return SlotUnusable
    return SourceError


def _shown(report: ServerReport) -> str:
    if (report.sqlstate or "").startswith("22"):
        return f"the server reports a data exception in {report.function or 'a function'}"
    return f"the server reports: {first_line(report.message)}"
