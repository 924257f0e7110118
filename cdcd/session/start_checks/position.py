"""The check that decides where a start would begin, by the stored position, the slot and the server.

In: `StartContext`, after server and Kafka have answered.  Out: the decision of `recovery.start_decision`, or its
error.
Invariant: slot, stored position and server are read in this order, because a daemon stores a position before it
confirms the position (F3), and the server writes the WAL before the daemon stores its position.
Must not: change anything, fence a producer (F79).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from cdcd.config import Config
from cdcd.errors import (
    ProgressUnreadable,
    SinkAuthorization,
    SinkUnavailable,
    SlotActive,
    SlotAhead,
    SlotLost,
    SlotMissing,
    SlotUnusable,
    SourceMismatch,
    TopicMissing,
)
from cdcd.findings import Finding
from cdcd.lsn import INVALID_LSN, Lsn, format_lsn
from cdcd.model import Progress
from cdcd.pipeline.partial_transaction import check_numbers, numbered_by
from cdcd.recovery.new_snapshot import Decision, decide
from cdcd.recovery.start_decision import Resume, Snapshot, StartOptions, check_ours, is_anew
from cdcd.session.queries import timelines_of
from cdcd.session.start_checks.context import PEEK_TIMEOUT_S, StartContext
from cdcd.session.tables_to_continue import tables_to_continue
from cdcd.sink.reader import peek, read_topic_identities
from cdcd.sink.settings import SinkSettings
from cdcd.sink.topic_identity import TopicIdentities
from cdcd.sink.topics import Topics
from cdcd.source.identity import check_same_server, identify
from cdcd.source.preflight import holder_findings
from cdcd.source.slot import SlotState, read_slot

OF_THE_SLOT = (SlotAhead, SlotLost, SlotMissing, SlotUnusable)


OF_THE_POSITION = (ProgressUnreadable, SinkAuthorization, SourceMismatch)


def check_position(known: StartContext) -> list[Finding]:
    """Check that a start may begin at the stored position or the slot's; the finding names the position."""
    if known.server is not None and known.server.in_recovery:
        message = "the start position is not known: the slots of a standby cannot be read"
        return [Finding("unknown", "start", message, "run `cdcd check` against the primary")]
    try:
        finding = position(known)
    except (*OF_THE_SLOT, *OF_THE_POSITION):
        if not known.may_run:
            raise
        # A daemon at its first start creates the slot and the position one after the other: read both again.
        finding = position(known)
    known.identities = identities = _topic_identities(known)
    assert known.topics is not None
    known.topics.identities = identities  # `check_topics` compares with them
    return [*_holder(known), finding]


def position(known: StartContext) -> Finding:
    """Decide where a start would begin. Raises the error that would refuse the start."""
    connection = known.sql()
    expected = known.server
    known.slot = slot = read_slot(connection, known.source.slot)
    known.stored, is_final = _peeked(known, INVALID_LSN if slot is None else slot.confirmed_flush_lsn)
    if expected is not None:
        check_same_server(connection, expected)
    known.server = identify(connection)
    known.timelines = timelines_of(known.source, known.server)
    try:
        if slot is not None and slot.active and not known.may_run:
            check_ours(slot, known.server, known.source.slot, known.stored)
            raise slot_held(known.source.slot, slot.active_pid)
        decision = decide_start(known, known.stored, slot)
    except OF_THE_SLOT as error:
        if is_final:
            raise
        return _undecided(f"{error.code}: {error.message}", "unknown")
    known.verdict = decision.verdict
    known.left = left_to_copy(known, decision.verdict)
    known.drops_ahead = isinstance(decision.halt, SlotAhead)
    summary = _start_summary(decision, known)
    return Finding("ok", "start", summary) if is_final else _undecided(summary, "warn")


def decide_start(
    known: StartContext, stored: Progress | None, slot: SlotState | None, topics: Iterable[str] = ()
) -> Decision:
    """Decide by slot and position where a start begins. Raises the error that would refuse the start.

    `topics`: those that a new snapshot empties; only the decision that is carried out needs them.
    """
    assert known.server is not None
    assert known.timelines is not None
    if slot is not None and known.may_run:
        slot = replace(slot, active=False)  # a running daemon may hold the slot
    wanted = replace(
        wanted_of(known.config),
        create_slot=known.create_slot,
        is_due=known.config.snapshot.mode == "always" and known.is_snapshot_due,
    )
    now_us = time.time_ns() // 1000
    found = decide(stored, slot, known.server, wanted, known.timelines, topics, now_us)
    if stored is not None and isinstance(found.verdict, Resume):
        check_numbers(stored.part, numbered_by(known.config))
    return found


def slot_held(slot: str, pid: int | None) -> SlotActive:
    """Return the error of a slot that another walsender holds: the slot is the lock (F69)."""
    return SlotActive(
        "another walsender holds the slot",
        slot=slot,
        pid=pid,
    )


def peek_listed(
    settings: SinkSettings, topics: Topics, confirmed_lsn: Lsn | None = None
) -> tuple[Progress | None, bool]:
    """Return the stored position, None if the cluster has no progress topic, and whether it is final.

    `confirmed_lsn`: what the slot is confirmed up to, None if it is not known.
    The cluster is asked again: a daemon at its first start may have created the topic since. A broker
    that has just come back may not know a topic that others know: that is not a first start, but would look like one.
    Raises Sink errors.
    """
    topic = settings.progress_topic
    if not topics.exists(topic):
        return None, True
    with known_by_all_brokers(topic):
        return peek(settings, PEEK_TIMEOUT_S, confirmed_lsn=confirmed_lsn or INVALID_LSN)


@contextlib.contextmanager
def known_by_all_brokers(topic: str) -> Iterator[None]:
    """Raise SinkUnavailable, which is retried, if a broker does not know a topic that the cluster has."""
    try:
        yield
    except TopicMissing as error:
        raise SinkUnavailable(
            "the cluster has the progress topic, but a broker does not know it yet, or it is being deleted",
            topic=topic,
        ) from error


def _peeked(known: StartContext, confirmed_lsn: Lsn | None) -> tuple[Progress | None, bool]:
    assert known.sink is not None
    assert known.topics is not None
    return peek_listed(known.sink, known.topics, confirmed_lsn)


def _undecided(what: str, level: Any) -> Finding:
    message = f"the start position is not known yet; by the records committed now: {what}"
    hint = "another producer has an open transaction in the progress topic: run `cdcd check` again when it has ended"
    return Finding(level, "start", message, hint)


def _topic_identities(known: StartContext) -> TopicIdentities:
    """Return the topic identities that the records depend on; empty if all tables are copied again."""
    assert known.sink is not None
    at = -1 if known.stored is None else known.stored.topics_at
    identities = read_topic_identities(known.sink, at)
    if is_anew(known.verdict):
        identities.reset()
    return identities


def _holder(known: StartContext) -> list[Finding]:
    if known.slot is not None:
        return list(holder_findings(known.sql(), known.source, known.slot))
    return [Finding("ok", "slot", f"slot {known.source.slot} does not exist yet and will be created")]


def left_to_copy(known: StartContext, begin: Resume | Snapshot) -> frozenset[int]:
    """Return the tables that the start copies of an interrupted snapshot, also those that are included again."""
    if not isinstance(begin, Snapshot) or begin.left is None:
        return frozenset()
    state = begin.left.state
    relids = (*state.partial, *state.excluded)
    again = tables_to_continue(known.source, relids) if relids else ()
    chosen = known.config.snapshot.selection().choose(again)
    return state.incomplete.union(table.relid for table in chosen)


def _start_summary(decision: Decision, known: StartContext) -> str:
    begin = decision.verdict
    if decision.halt is not None:
        return f"creates the slot again and takes a new snapshot, because of {decision.halt}"
    if decision.new_snapshot is not None:
        return "creates the slot again and takes a new snapshot (snapshot.mode: always)"
    if isinstance(begin, Resume):
        return f"continues from {format_lsn(begin.start_lsn)}"
    if not known.config.snapshot.copies_tables:
        return "creates the slot and begins there, without a snapshot"
    if begin.left is not None and not known.left:
        return "the snapshot is complete"
    if begin.left is not None:
        return f"copies the {len(known.left)} tables that the interrupted snapshot has left"
    again = " again: the last one was not completed" if begin.begun_topics or begin.drop_slot else ""
    return f"creates the slot and takes the snapshot{again}"


def wanted_of(config: Config) -> StartOptions:
    """Return the options of the configuration that concern the slot and the start."""
    return StartOptions(
        slot=config.source.slot.name,
        create_slot=config.source.slot.create,
        mode=config.snapshot.mode,
        two_phase=config.source.protocol.two_phase,
    )
