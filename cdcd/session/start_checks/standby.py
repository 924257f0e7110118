"""The check of a start that asks the standby of `snapshot.from`.

In: `StartContext`, after the position and the tables are known.  Out: findings.
Invariant: a start is refused, or waits, only if it would copy tables; otherwise `cdcd check` warns.
Must not: change anything, or wait until the standby has replayed more WAL.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from cdcd.errors import CdcdError
from cdcd.findings import Finding, failure
from cdcd.lsn import format_lsn
from cdcd.recovery.start_decision import Snapshot
from cdcd.session.start_checks.context import StartContext
from cdcd.snapshot.standby import StandbyState, connect_standby, on_standby, open_standby
from cdcd.source.connection import fetch
from cdcd.source.identity import ServerIdentity
from cdcd.source.preflight import readable_findings
from cdcd.source.settings import SourceSettings

SUBJECT = "snapshot.from"
_SLOTS = "SELECT count(*)::int, current_setting('max_replication_slots')::int FROM pg_replication_slots"


def check_standby(known: StartContext) -> list[Finding]:
    """Check that the tables can be copied from the standby, if one is configured."""
    standby = known.config.standby_settings()
    if standby is None or not known.config.snapshot.copies_tables:
        return []
    copies = would_copy(known)
    if not copies and not known.may_run:
        return []
    assert known.server is not None
    try:
        found = list(_findings(standby, known.server, known))
    except CdcdError as error:
        found = [failure(SUBJECT, error)]
    return found if copies else [_warning(one) for one in found]


def would_copy(known: StartContext) -> bool:
    """Return whether a start copies tables before it streams; True also while that is not known."""
    verdict = known.verdict
    return verdict is None or (isinstance(verdict, Snapshot) and (verdict.left is None or bool(known.left)))


def _warning(finding: Finding) -> Finding:
    return replace(finding, level="warn", error=None) if finding.level == "fail" else finding


def _findings(standby: SourceSettings, primary: ServerIdentity, known: StartContext) -> Iterator[Finding]:
    walsender, state = open_standby(standby, primary)
    walsender.close()
    with contextlib.closing(connect_standby(standby)) as connection, on_standby():
        ((slots, max_slots),) = fetch(connection, _SLOTS)
        columns = {table.relid: table.selected for table in known.copied}
        unreadable = list(readable_findings(connection, known.tables or [], columns))
    text = (
        f"standby of PostgreSQL {state.version_num // 10_000}, replayed to {format_lsn(state.replayed_lsn)}"
    )
    yield Finding("ok", SUBJECT, text)
    yield from _settings(state)
    if slots >= max_slots:
        hint = f"raise max_replication_slots on the standby (ALTER SYSTEM on the primary does not), now {max_slots}"
        yield Finding("fail", SUBJECT, f"all {max_slots} replication slots of the standby are in use", hint)
    for one in unreadable:
        yield replace(one, message=f"on the standby: {one.message}", hint=f"on the primary: {one.hint}")


def _settings(state: StandbyState) -> Iterator[Finding]:
    if state.is_paused:
        message = "the replay of the standby is paused: the snapshot waits until the replay is resumed"
        yield Finding("warn", SUBJECT, message, "SELECT pg_wal_replay_resume() on the standby")
    if not state.has_feedback:
        message = (
            "hot_standby_feedback is off on the standby: VACUUM on the primary may cancel the copy, which cdcd then "
            "repeats"
        )
        hint = (
            "set hot_standby_feedback = on on the standby, or raise its max_standby_streaming_delay above the time "
            "that the copy takes"
        )
        yield Finding("warn", SUBJECT, message, hint)
