"""Where a session begins: the table of cases, one line each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from cdcd.errors import (
    CdcdError,
    Retry,
    SlotAhead,
    SlotLost,
    SlotMissing,
    SlotUnusable,
    SourceMismatch,
    SourceSetup,
)
from cdcd.model import PreparedBefore, Progress, SourceIdentity
from cdcd.runtime.recovery import Resume, Snapshot, Wanted, verdict


@dataclass(frozen=True)
class Slot:
    plugin: str | None = "pgoutput"
    database: str | None = "shop"
    confirmed_flush_lsn: int | None = 500
    wal_status: str | None = "reserved"
    invalidation_reason: str | None = None
    two_phase: bool = False


@dataclass(frozen=True)
class Server:
    system_identifier: str = "77"
    timeline: int = 1
    database: str = "shop"
    wal_lsn: int = 9000


STORED = Progress(SourceIdentity("77", 1, "shop", "slot"), "streaming", 480, 500, 5)
BEGUN = replace(STORED, phase="snapshot", commit_lsn=0, end_lsn=0, snapshot_tables=("shop.public.a",))
WANTED = Wanted(slot="slot", create_slot=True, snapshot=True)
NO_CREATE = replace(WANTED, create_slot=False)
NO_SNAPSHOT = replace(WANTED, snapshot=False)
LOST, PHYSICAL, OTHER_DB = Slot(wal_status="lost"), Slot(plugin=None, database=None), Slot(database="other")
OTHER_PLUGIN, IDLE_OUT = Slot(plugin="wal2json"), Slot(invalidation_reason="idle_timeout")
TWO_PHASE = Slot(two_phase=True)
PREPARED = replace(WANTED, two_phase=True)
LOST_ROWS = PreparedBefore(450, frozenset({(7, "lost")}))


@pytest.mark.parametrize(
    ("stored", "slot", "wanted", "expected"),
    [
        # nothing stored
        (None, None, WANTED, Snapshot(drop_slot=False, begun_topics=())),
        (None, None, NO_SNAPSHOT, Snapshot(drop_slot=False, begun_topics=())),
        (None, Slot(), NO_SNAPSHOT, Resume(500, 0, PreparedBefore())),
        (None, Slot(confirmed_flush_lsn=None), NO_SNAPSHOT, Resume(0, 0, PreparedBefore())),
        # somebody else may have confirmed a PREPARE: it has to be asked; what was found then is known ever after
        (None, TWO_PHASE, replace(NO_SNAPSHOT, two_phase=True), Resume(500, 0, None)),
        (replace(STORED, prepared_before=LOST_ROWS), TWO_PHASE, PREPARED, Resume(500, 480, LOST_ROWS)),
        # streaming: always from the stored position, whatever the slot has persisted (F3, F4)
        (STORED, Slot(confirmed_flush_lsn=500), WANTED, Resume(500, 480, PreparedBefore())),
        (STORED, Slot(confirmed_flush_lsn=300), WANTED, Resume(500, 480, PreparedBefore())),
        (STORED, Slot(confirmed_flush_lsn=None), WANTED, Resume(500, 480, PreparedBefore())),
        (STORED, Slot(wal_status="extended"), WANTED, Resume(500, 480, PreparedBefore())),
        (STORED, Slot(wal_status="unreserved"), WANTED, Resume(500, 480, PreparedBefore())),
        (replace(STORED, end_lsn=9000), Slot(), WANTED, Resume(9000, 480, PreparedBefore())),
        (STORED, Slot(), NO_CREATE, Resume(500, 480, PreparedBefore())),
        # a snapshot that was cut off is begun anew, with a new slot (F37, F40)
        (BEGUN, None, WANTED, Snapshot(drop_slot=False, begun_topics=("shop.public.a",))),
        (BEGUN, Slot(confirmed_flush_lsn=8000), WANTED, Snapshot(True, ("shop.public.a",))),
        (replace(BEGUN, snapshot_tables=()), None, NO_SNAPSHOT, Snapshot(drop_slot=False, begun_topics=())),
        (BEGUN, LOST, WANTED, Snapshot(True, ("shop.public.a",))),
        (BEGUN, TWO_PHASE, WANTED, Snapshot(True, ("shop.public.a",))),
        # prepared transactions: the slot has them, or the server switches it at START_REPLICATION (F35)
        (STORED, TWO_PHASE, PREPARED, Resume(500, 480, PreparedBefore())),
        (STORED, Slot(), PREPARED, Resume(500, 480, PreparedBefore())),
        # the commit LSN runs ahead of what an undecided PREPARE holds back (F33)
        (replace(STORED, commit_lsn=900), TWO_PHASE, PREPARED, Resume(500, 900, PreparedBefore())),
    ],
)
def test_a_session_begins(
    stored: Progress | None, slot: Slot | None, wanted: Wanted, expected: Resume | Snapshot
) -> None:
    assert verdict(stored, slot, Server(), wanted) == expected


@pytest.mark.parametrize(
    ("stored", "slot", "server", "wanted", "error"),
    [
        (None, None, Server(), NO_CREATE, SlotMissing),
        (None, Slot(), Server(), WANTED, SlotUnusable),  # its snapshot could not join the stream (F36)
        (None, LOST, Server(), NO_SNAPSHOT, SlotLost),
        (None, OTHER_DB, Server(), WANTED, SlotUnusable),
        (None, TWO_PHASE, Server(), NO_SNAPSHOT, SlotUnusable),  # it would send prepared transactions
        (STORED, TWO_PHASE, Server(), WANTED, SlotUnusable),
        (STORED, None, Server(), WANTED, SlotMissing),  # F10
        (STORED, LOST, Server(), WANTED, SlotLost),  # F23
        (STORED, IDLE_OUT, Server(), WANTED, SlotLost),  # F23
        (STORED, PHYSICAL, Server(), WANTED, SlotUnusable),
        (STORED, OTHER_PLUGIN, Server(), WANTED, SlotUnusable),
        (STORED, OTHER_DB, Server(), WANTED, SlotUnusable),
        (STORED, Slot(confirmed_flush_lsn=501), Server(), WANTED, SlotAhead),  # F3, F10
        (STORED, Slot(), Server(wal_lsn=499), WANTED, SourceMismatch),  # F62
        (STORED, Slot(), Server(system_identifier="78"), WANTED, SourceMismatch),  # F58
        (STORED, Slot(), Server(timeline=2), WANTED, SourceMismatch),  # F58
        (replace(STORED, identity=SourceIdentity("77", 1, "b", "slot")), Slot(), Server(), WANTED, SourceMismatch),
        (BEGUN, None, Server(system_identifier="78"), WANTED, SourceMismatch),  # never another server's topics
        (BEGUN, None, Server(), NO_SNAPSHOT, SourceSetup),  # its rows would stay without their deletes
        (BEGUN, OTHER_PLUGIN, Server(), WANTED, SlotUnusable),  # never drop what is not ours
    ],
)  # fmt: skip
def test_a_session_does_not_begin(
    stored: Progress | None, slot: Slot | None, server: Server, wanted: Wanted, error: type[CdcdError]
) -> None:
    with pytest.raises(error) as caught:
        verdict(stored, slot, server, wanted)
    assert type(caught.value) is error
    assert caught.value.retry is Retry.OPERATOR, "only an operator can mend it: trying again cannot"
    assert caught.value.advice
