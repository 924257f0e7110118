"""PostgreSQL's error reports, and cdcd's error classes for them."""

from __future__ import annotations

import pytest

from cdcd.errors import (
    PublicationMissing,
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
from cdcd.source.connect_errors import connect_failure
from cdcd.source.error_map import ServerReport, failure_for, is_publication_notice

CASES = [
    ("57P01", "terminating connection due to administrator command", None, SourceUnavailable),
    ("57P02", "crash of another server process", None, SourceUnavailable),
    ("57P03", "the database system is starting up", None, SourceUnavailable),
    ("08006", "connection failure", None, SourceUnavailable),
    ("53300", "sorry, too many clients already", None, SourceUnavailable),
    ("53400", "all replication slots are in use", None, SourceSetup),
    ("28P01", "password authentication failed", None, SourceAuthentication),
    ("42501", "permission denied to start WAL sender", None, SourceSetup),
    ("55006", 'replication slot "s" is active for PID 7', "ReplicationSlotAcquire", SlotActive),
    ("42704", 'replication slot "s" does not exist', "ReplicationSlotAcquire", SlotMissing),
    ("42704", "le slot n'existe pas", "ReplicationSlotAcquire", SlotMissing),
    ("42704", 'publication "p" does not exist', "get_publication_oid", PublicationMissing),
    ("42704", "la publication n'existe pas", "get_publication_oid", PublicationMissing),
    ("55000", 'can no longer get changes from replication slot "s"', None, SlotLost),
    ("55000", 'can no longer access replication slot "s"', None, SlotLost),
    ("55000", "logical decoding requires wal_level >= logical", None, SourceSetup),
    ("55000", 'replication slot "s" was not created in this database', None, SlotUnusable),
    ("58P01", "requested WAL segment 0001 has already been removed", None, SlotLost),
    ("40P01", "deadlock detected", None, SourceUnavailable),
    ("XX000", "could not map filenumber to relation OID", None, ServerInternal),
    ("XX001", "missing chunk number 0 for toast value 1 in pg_toast_2", None, ServerInternal),
    ("58P01", 'could not access file "$libdir/pgoutput": No such file or directory', None, SourceSetup),
    ("P0001", "something nobody thought of", None, SourceError),
    (None, "server closed the connection unexpectedly", None, SourceUnavailable),
]


@pytest.mark.parametrize(("sqlstate", "message", "function", "expected"), CASES)
def test_each_report_has_one_class(
    sqlstate: str | None, message: str, function: str | None, expected: type[SourceError]
) -> None:
    assert type(failure_for(ServerReport(sqlstate, message, function=function))) is expected


def test_a_publication_that_is_there_may_be_missing_all_the_same() -> None:
    """F39, F42: the publication did not exist yet at the LSN of the changes; the halt names the resolution."""
    missing = failure_for(ServerReport("42704", 'publication "p" does not exist'))
    assert "resnapshot" in missing.advice


def test_a_missing_file_of_a_valid_slot_names_only_the_command_that_is_allowed() -> None:
    """F23: the slot's state does not show it, so a start finds no gap to accept."""
    lost = failure_for(ServerReport("58P01", "requested WAL segment 0001 has already been removed"))
    assert "cdcd resnapshot" in lost.advice
    assert "--accept-gap" not in lost.advice
    invalidated = failure_for(ServerReport("55000", 'can no longer get changes from replication slot "s"'))
    assert "--accept-gap" in invalidated.advice


def test_a_data_exception_does_not_repeat_the_value() -> None:
    error = failure_for(ServerReport("22P02", 'invalid input syntax for type json: "jane@example.org"'))
    assert "jane" not in str(error)


def test_only_the_first_line_of_a_message_is_shown() -> None:
    error = failure_for(ServerReport("XX000", "broken\nDETAIL: Key (mail)=(jane@example.org)"))
    assert "jane" not in str(error)


def test_the_notice_of_a_skipped_publication_is_known_in_any_language() -> None:
    """F72."""
    assert is_publication_notice(ServerReport("55000", 'skipped loading publication "p"', "WARNING"))
    assert is_publication_notice(ServerReport("55000", "autre", "WARNING", "LoadPublications"))
    assert not is_publication_notice(ServerReport("01000", "something else", "WARNING", "elsewhere"))


@pytest.mark.parametrize("sqlstate", ["22021", "22P05"])
def test_text_that_has_no_form_in_utf8_says_what_to_do_and_not_what_it_is(sqlstate: str) -> None:
    error = failure_for(ServerReport(sqlstate, 'invalid byte sequence for encoding "UTF8": 0xf6'))
    assert type(error) is SourceError
    assert "SQL_ASCII" in error.advice
    assert "0xf6" not in str(error)


@pytest.mark.parametrize("text", ["out of memory", "cannot allocate memory for input buffer"])
def test_libpqs_want_of_memory_is_no_server_that_may_come_back(text: str) -> None:
    """Fault 17: another session would not get more memory; the process must end and restart."""
    with pytest.raises(MemoryError):
        failure_for(ServerReport(None, text))
    with pytest.raises(MemoryError):
        connect_failure([text])


def test_a_server_that_is_out_of_memory_is_asked_again() -> None:
    assert type(failure_for(ServerReport("53200", "out of memory"))) is SourceUnavailable


def test_row_security_names_the_attribute_of_the_role() -> None:
    """Its SQLSTATE is that of a missing privilege, and its message may be translated."""
    refused = failure_for(ServerReport("42501", "…", function="check_enable_rls"))
    assert "BYPASSRLS" in refused.advice
    assert "BYPASSRLS" not in failure_for(ServerReport("42501", "permission denied for table t")).advice
