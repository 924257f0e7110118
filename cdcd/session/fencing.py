"""Decide who has ended the producer: another cdcd, or the broker because a Kafka transaction took too long (F69).

In: the greatest age of a Kafka transaction of the producer, the holder of the slot, the last progress record.
Out: SinkFenced, which ends the process, or TransactionExpired, after which a new session begins; and whether a
session may still fence others.
Invariant: librdkafka reports both as _FENCED: the coordinator bumps the producer's epoch when a transaction expires,
and when another producer initialises the same id. No transaction expires before its timeout, so the producer of a
younger one was certainly taken over. A transaction may be open at the coordinator that the producer has not begun: a
late AddPartitionsToTxn opens it (F77). So the age is the time since none was open. If both are possible, the slot and
the progress topic show whether another daemon runs: the slot is the lock, and a session checks the slot before it
fences anyone.
Must not: write, or fence anyone itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import structlog

from cdcd.errors import CdcdError, SinkFenced, SlotActive, SourceUnavailable, TransactionExpired
from cdcd.session.queries import slot_state
from cdcd.sink.reader import read_last
from cdcd.sink.settings import SinkSettings
from cdcd.source.settings import SourceSettings

_LOG = structlog.stdlib.get_logger("cdcd.fencing")
RELEASE_WITHIN_S = 5.0
"""How long our own walsender may take to release the slot."""
_POLL_INTERVAL_S = 0.2
_UNKNOWN_HINT = (
    "no change is lost: without this evidence cdcd assumes that another cdcd may have taken over; check that only "
    "one runs with this name"
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The facts that decide who has ended the producer. None: not known.

    `age_s`: how long ago certainly no Kafka transaction was open. `is_held`: another walsender holds the slot.
    `has_written`: another producer has written a progress record.
    """

    age_s: float
    timeout_s: float
    is_held: bool | None = None
    has_written: bool | None = None


def may_have_expired(age_s: float, timeout_s: float) -> bool:
    """Return whether the transaction may have expired at the coordinator. Clocks may differ by a hundredth."""
    return age_s >= timeout_s * 0.99


def fenced_by(evidence: Evidence) -> type[SinkFenced] | type[TransactionExpired]:
    """Return the class of the error that this evidence proves.

    Unknown facts do not prove a takeover: the next session checks the slot first, and waits while the slot is held.
    """
    if not may_have_expired(evidence.age_s, evidence.timeout_s):
        return SinkFenced
    return SinkFenced if evidence.is_held or evidence.has_written else TransactionExpired


def error_of_fencing(
    error: SinkFenced,
    source: SourceSettings,
    sink: SinkSettings,
    *,
    age_s: float,
    own_pid: int | None,
    own_offset: int,
) -> CdcdError:
    """Return the error to end the session with. Blocks.

    `own_pid` is the backend of our own, closed walsender; `own_offset` is the offset of the last progress record that
    this session has read or written.
    """
    timeout_s = sink.transaction_timeout_ms / 1000
    if not may_have_expired(age_s, timeout_s):
        return error
    evidence = Evidence(age_s, timeout_s, _is_held(source, own_pid), _has_written(sink, own_offset))
    _LOG.warning(
        "fenced",
        transaction_age_s=round(age_s, 1),
        other_holds_slot=evidence.is_held,
        other_has_written=evidence.has_written,
    )
    cls = fenced_by(evidence)
    if cls is SinkFenced:
        return error
    return cls(
        "the broker has ended the Kafka transaction, which may have been open for too long; no other cdcd has "
        "taken over",
        age_s=round(age_s, 1),
        timeout_s=round(timeout_s, 1),
    )


def refuse_if_taken_over(source: SourceSettings, own_pid: int | None) -> None:
    """Raise SlotActive or SourceUnavailable unless our own walsender, if any, holds the slot. Blocks.

    `own_pid` is the backend of our own walsender, None before the stream is open. A process that was suspended
    detects a takeover this way: a new producer epoch of this process would fence the other daemon's producer.
    """
    slot = slot_state(source)
    holder = None if slot is None else slot.active_pid
    if holder == own_pid:
        return
    if holder is None:
        raise SourceUnavailable("the connection that held the slot is gone", slot=source.slot)
    raise SlotActive("another walsender holds the slot", slot=source.slot, pid=holder)


def _is_held(source: SourceSettings, own_pid: int | None) -> bool | None:
    deadline = time.monotonic() + RELEASE_WITHIN_S
    try:
        while True:
            slot = slot_state(source)
            if slot is None or not slot.active:
                return False
            if slot.active_pid != own_pid:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_INTERVAL_S)
    except CdcdError as error:
        _LOG.warning("slot_state_unknown", error=str(error), hint=_UNKNOWN_HINT)
        return None


def _has_written(sink: SinkSettings, own_offset: int) -> bool | None:
    try:
        last = read_last(sink)
    except CdcdError as error:
        _LOG.warning("progress_unknown", error=str(error), hint=_UNKNOWN_HINT)
        return None
    return last is not None and last.offset > own_offset
