"""One table from what PostgreSQL says to what cdcd does about it.

In: SQLSTATE, primary message and server function of an error.  Out: an error of cdcd's tree.
Invariant: the SQLSTATE decides where there is one, the name of the server's C function where one means
several things (it is not translated, the text is); text alone only for failures to connect, which libpq
reports without a SQLSTATE. An unknown SQLSTATE is a SourceError, which waits for an operator.
Must not: pass on DETAIL or CONTEXT of an error, or the text of a data exception: they can hold row values.
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
"""Of a server's message that are looked at: it may quote a whole statement, or be made up."""


@dataclass(frozen=True, slots=True)
class ServerReport:
    """An ErrorResponse or NoticeResponse, as far as cdcd looks. `function` is the server's C function."""

    sqlstate: str | None
    message: str
    severity: str = "ERROR"
    function: str | None = None


_BY_SQLSTATE: dict[str, type[SourceError]] = {
    "42501": SourceSetup,  # the role lacks a right
    "3D000": SourceSetup,  # no such database
    "53400": SourceSetup,  # all replication slots are in use
    "0A000": SourceSetup,  # logical decoding on a standby that cannot
    "55006": SlotActive,
    "58030": ServerInternal,  # the server cannot read or write a file
    "57014": SourceUnavailable,  # cancelled, by a timeout or somebody
    "55P03": SourceUnavailable,  # lock not available
    "25006": SourceUnavailable,  # read-only: this is a standby by now
    "42883": SendFunctionMissing,  # a type without the function that writes it, inside another (F53)
    "XX000": ServerInternal,
    "XX001": ServerInternal,  # damaged data
    "XX002": ServerInternal,  # a damaged index
}

_HINTS = {
    "42501": "grant the role what the message names (`cdcd check` prints the statement), then `cdcd resume`",
    "53100": "make room on the server's disk; cdcd tries again",
    "53300": "end sessions that nobody needs, or raise max_connections or max_wal_senders and restart the server; "
    "cdcd tries again",
    "53400": "raise max_replication_slots and restart the server, or have the owner of an unused slot drop it; then "
    "`cdcd resume`",
    "0A000": "run `cdcd check --config FILE`; it says what the server lacks",
}
"""What can be done about a SQLSTATE, where that is more than the class says."""

_WAL_LEVEL_HINT = (
    "ALTER SYSTEM SET wal_level = 'logical' (on a cloud provider: its parameter for logical replication), restart "
    "the server, then `cdcd resume`"
)
_NO_PLUGIN_HINT = (
    "install the server's own pgoutput: a package of the server is not whole; then `cdcd resume`"
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
    "a text has no form in UTF-8: a database in SQL_ASCII takes any bytes, and some encodings have characters of "
    "their own. The stream cannot get past this row: correct it in the table, then `cdcd resnapshot`"
)

_PUBLICATION_FUNCTIONS = frozenset({"get_publication_oid", "GetPublicationByName", "LoadPublications"})
_DECODING_FUNCTIONS = frozenset({"CheckLogicalDecodingRequirements", "CheckSlotRequirements"})

_NO_MEMORY = ("out of memory", "cannot allocate memory")


def failure_for(report: ServerReport) -> SourceError:
    """Return the error that this report stands for: the server's, or libpq's own, without a SQLSTATE.

    Raises MemoryError.
    """
    if not report.sqlstate:
        refuse_want_of_memory(report.message)
    cls = _class_for(report)
    return cls(_shown(report), hint=_hint_for(report, cls), sqlstate=report.sqlstate)


def _hint_for(report: ServerReport, cls: type[SourceError]) -> str | None:
    """Return what can be done about this report, None where its class says it."""
    sqlstate = report.sqlstate or ""
    if sqlstate in _UNTRANSLATABLE:
        return _UNTRANSLATABLE_HINT
    if cls is SourceSetup and sqlstate == "55000":
        return _WAL_LEVEL_HINT
    if cls is SourceSetup and sqlstate == "58P01":
        return _NO_PLUGIN_HINT
    return _HINTS.get(sqlstate)


def refuse_want_of_memory(text: str) -> None:
    """Raise MemoryError where libpq says that it got none: another session would get no more of it."""
    if text.lower().startswith(_NO_MEMORY):
        raise MemoryError


def is_publication_notice(report: ServerReport) -> bool:
    """Say whether a notice is PostgreSQL 18's "skipped loading publication", which loses changes (F72)."""
    return report.function == "LoadPublications" or "skipped loading publication" in report.message


def first_line(text: str) -> str:
    """Return the text's first line: what libpq and psycopg2 append below it is detail or context."""
    return text.strip().partition("\n")[0].strip()


def _class_for(report: ServerReport) -> type[SourceError]:
    sqlstate = report.sqlstate
    if not sqlstate:
        return SourceUnavailable  # libpq's own words: the connection broke
    if sqlstate == "42704":
        return _undefined_object(report)
    if sqlstate == "55000":
        return _wrong_state(report)
    if (
        sqlstate == "58P01"
    ):  # a file is not there: of the WAL, which is removed by then, or of the output plugin
        return SourceSetup if "could not access file" in report.message else SlotLost
    return _BY_SQLSTATE.get(sqlstate) or _BY_CLASS.get(sqlstate[:2]) or SourceError


def _undefined_object(report: ServerReport) -> type[SourceError]:
    """42704 is the slot (at START) or the publication (while decoding, F39)."""
    if report.function in _PUBLICATION_FUNCTIONS or "publication" in report.message:
        return PublicationMissing
    if (report.function or "").startswith("ReplicationSlot") or "replication slot" in report.message:
        return SlotMissing
    return SourceError


def _wrong_state(report: ServerReport) -> type[SourceError]:
    """55000 is an invalidated slot (F23), the wrong wal_level, or a slot of another kind or database."""
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
    return f"the server says: {first_line(report.message)}"
