"""The resolutions of a halt: `cdcd resume`, `cdcd resume --accept-gap`, `cdcd resnapshot`.

Comes in: a configuration.  Goes out: lines with the steps done, an audit line, a request to the daemon to retry.
Invariant: all checks that may refuse run before anything is changed (F79), and again after fencing. Opening the sink
fences any other producer; the sink is opened only with the start lock (F69) and while no session uses the slot. The
verdict is the daemon's own. The command takes effect with one step, the new progress record with its gap: a second
attempt finds what was done before it (a new slot), and the daemon does all later steps.
Must not: write a record if the command does not resolve the verdict.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator

import structlog

from cdcd.cli.daemon_port import NoAnswer, NotLocal, PortUnknown, ask_daemon
from cdcd.cli.exclusive import exclusive, look, who
from cdcd.cli.published_topics import command_settings, published_topics
from cdcd.cli.slot_creation import create_slot_reporting_waits
from cdcd.cli.start_inspection import ask, peek_progress, refuse_unready
from cdcd.config import Config
from cdcd.errors import CdcdError, ProgressUnreadable, ResumeRefused, Retry, SourceMismatch, SourceTimeline
from cdcd.lsn import INVALID_LSN, Lsn, format_lsn
from cdcd.model import Gap, PreparedBefore, Progress, SourceIdentity, Timelines
from cdcd.ops.admin import RESUME_HEADER
from cdcd.recovery.resolutions import REQUESTED, after_gap, before_snapshot, check_accepts_gap, needs_new_slot
from cdcd.recovery.start_decision import Snapshot, check_ours, is_same_database, verdict
from cdcd.session.queries import timelines_of
from cdcd.session.start_checks.position import known_by_all_brokers, wanted_of
from cdcd.session.start_checks.topics import ownership_of, topics_with_rows
from cdcd.session.start_state import identity_of
from cdcd.sink.kafka_sink import KafkaSink
from cdcd.sink.reader import read_topic_identities
from cdcd.sink.topic_identity import TopicIdentities
from cdcd.sink.topics import Topics
from cdcd.source.connection import connect_sql
from cdcd.source.identity import ServerIdentity, check_same_server
from cdcd.source.prepared import prepared_before
from cdcd.source.slot import SlotState, drop_slot

_LOG = structlog.stdlib.get_logger("cdcd.audit")
_TIMEOUT_S = 60.0


def look_again(config: Config, *, is_dry: bool = False) -> list[str]:
    """Ask the daemon on this machine to retry. Raises ResumeRefused if none answers."""
    if is_dry:
        return [f"would ask the daemon at port {config.admin.port} to retry"]
    try:
        return [_tell(config)]
    except NoAnswer as none:
        raise ResumeRefused(none.problem, hint=none.hint, port=config.admin.port) from None


def accept_gap(config: Config, *, is_dry: bool = False) -> list[str]:
    """Continue without the missing changes. Raises ResumeRefused if that resolves no halt, Source and Sink errors."""
    if is_dry:
        halt = check_accepts_gap(_halt_of(config))
        return [f"would accept the gap of this halt: {halt}"]
    with _opened(config, _gap) as (sink, stored):
        slot, server, timelines, halt = _gap(config, stored)
        slot_lsn, made_lsn = _slot_to_go_on_with(config, slot, server, stored)
        identity = _identity(config, server, timelines, made_lsn)
        before = _prepared_before(config)
        now = after_gap(stored, halt, slot_lsn, identity, timelines, before, time.time_ns() // 1000)
        _write(sink, now)
    return [_audit(config, "gap_accepted", now), _reported(config), _AFTER_GAP]


def accept_topics(
    config: Config, names: list[str], *, is_dry: bool = False, is_all: bool = True
) -> list[str]:
    """Accept these topics as they are. Raises ResumeRefused for a topic that is not known, Source and Sink errors.

    `is_all`: nothing else has to be decided, so the daemon is asked to retry. Otherwise a gap is accepted next, and
    its checks run before the topics are accepted (F79).
    """

    def accepted(config: Config, stored: Progress) -> TopicIdentities:
        identities = _identities_without(config, stored, names, accepts_gap=not is_all)
        if not is_all:
            _gap(config, stored)
        return identities

    if is_dry:
        _refuse_first(config, accepted)
        return [f"would accept these topics as they are: {', '.join(names)}"]
    with _opened(config, accepted) as (sink, stored):
        sink.identities = accepted(config, stored)
        _write(sink, stored)
    by, slot = who(), config.source.slot.name
    _LOG.warning("topics_accepted", who=by, slot=slot, topics=names)
    data = [_reported(config)] if is_all else []
    return [f"topics_accepted by {by}: {', '.join(names)}", *data]


def resnapshot(config: Config, *, is_dry: bool = False) -> list[str]:
    """Request a new copy of the tables. Raises ResumeRefused if that is not safe, Source and Sink errors."""
    if not config.snapshot.copies_tables:
        raise ResumeRefused(
            f"with snapshot.mode: {config.snapshot.mode} cdcd copies no tables",
            hint="set snapshot.mode: initial",
        )
    if is_dry:
        halt = _halt_of(config)
        _refuse_first(config, _anew)
        refuse_unready(config)
        return [
            f"would copy the tables of these topics again: {', '.join(_topics(config))}; "
            f"a start now: {halt or 'succeeds'}"
        ]
    with _opened(config, _anew, refuse_unready) as (sink, stored):
        now = _anew(config, stored)
        sink.identities = _left(config, stored)
        _write(sink, now)
    return [_audit(config, "resnapshot_requested", now), _reported(config)]


# --- inside ---

_AFTER_GAP = (
    "changes in the gap remain missing; when the daemon streams, `cdcd snapshot start --all --compare` (or "
    "--recopy) copies the tables again, and the stream continues meanwhile; a table with `include: false`: "
    "`cdcd snapshot start --table SCHEMA.TABLE --recopy`"
)
_NOT_RUNNING = "no cdcd answers on this machine: start the daemon, or send it SIGHUP, to continue"
_NOT_ASKED = "if the daemon runs, send it SIGHUP to continue, otherwise start it"


def _refuse_first(config: Config, ask: Callable[[Config, Progress], object]) -> None:
    """Run all checks that may refuse before the sink is opened, which fences any other producer (F79).

    An open transaction of a killed daemon hides the durable progress. The checks therefore run again after fencing,
    and then decide by the durable progress.
    """
    stored, is_final = peek_progress(config)
    if stored is None:
        if is_final:
            raise _nothing_written(config)
        return
    try:
        ask(config, stored)
    except ResumeRefused:
        if is_final:
            raise


def _gap(config: Config, stored: Progress) -> tuple[SlotState | None, ServerIdentity, Timelines, CdcdError]:
    """Return slot, server, its timelines and the halt whose gap is accepted. Raises ResumeRefused for other halts."""
    slot, server = look(config)
    timelines = timelines_of(config.source_settings(), server)
    halt = check_accepts_gap(_halted(config, stored, slot, server, timelines))
    # Refuse before a slot is dropped; the consistent point of the new slot is not known yet.
    confirmed_lsn = 0 if slot is None else slot.confirmed_flush_lsn or 0
    slot_lsn = server.wal_lsn if needs_new_slot(slot) else confirmed_lsn
    identity = _identity(config, server, timelines, stored.identity.slot_lsn)
    after_gap(stored, halt, slot_lsn, identity, timelines, PreparedBefore(), 0)
    return slot, server, timelines, halt


def _identities_without(
    config: Config, stored: Progress, names: list[str], *, accepts_gap: bool
) -> TopicIdentities:
    """Return the stored identities of all other topics. Raises ResumeRefused, SourceMismatch on another server.

    `accepts_gap`: the caller accepts a gap, too, which resolves the halt of a server on another timeline.
    """
    slot, server = look(config)
    halt = _halted(config, stored, slot, server, timelines_of(config.source_settings(), server))
    if isinstance(halt, SourceMismatch) and not (accepts_gap and isinstance(halt, SourceTimeline)):
        raise halt
    identities = read_topic_identities(command_settings(config, timeout_s=_TIMEOUT_S), stored.topics_at)
    unknown = sorted(set(names) - set(identities.with_records()))
    if unknown:
        raise ResumeRefused(
            f"cdcd has written nothing to {', '.join(unknown)}, so there is nothing to accept",
            hint="name only topics that the halt names",
        )
    identities.forget(names)
    return identities


def _left(config: Config, stored: Progress) -> TopicIdentities:
    """Return the stored topic identities without the fact that the topics hold records (F42)."""
    try:
        identities = read_topic_identities(command_settings(config, timeout_s=_TIMEOUT_S), stored.topics_at)
    except ProgressUnreadable:
        return TopicIdentities()
    identities.reset()
    return identities


def _anew(config: Config, stored: Progress) -> Progress:
    """Return the progress record that requests a new copy. Raises ResumeRefused if that is not safe."""
    slot, server = look(config)
    if slot is not None:  # by the new position, our own slot of another database would be a foreign one
        check_ours(slot, server, config.source.slot.name, stored)
    timelines = timelines_of(config.source_settings(), server)
    halt = _halted(config, stored, slot, server, timelines)
    reason = REQUESTED if halt is None else halt.code
    # F80: a slot of this name on another server may be another daemon's.
    slot_lsn = stored.identity.slot_lsn if is_same_database(stored.identity, server) else INVALID_LSN
    identity = _identity(config, server, timelines, slot_lsn)
    now_us = time.time_ns() // 1000
    now = before_snapshot(stored, server, identity, timelines, _topics(config), reason, now_us)
    if not isinstance(verdict(now, slot, server, wanted_of(config)), Snapshot):
        raise ResumeRefused("a start would not take a snapshot")
    return now


def _identity(config: Config, server: ServerIdentity, timelines: Timelines, slot_lsn: Lsn) -> SourceIdentity:
    two_phase = config.source.protocol.two_phase
    return identity_of(server, timelines, config.source.slot.name, two_phase=two_phase, slot_lsn=slot_lsn)


def _nothing_written(config: Config) -> ResumeRefused:
    return ResumeRefused(
        "cdcd has written nothing for this slot yet, so there is no position after which changes can be missing",
        hint="start cdcd; `cdcd check` shows the problems of a start. If the topics have rows of a former slot, run "
        "`cdcd resnapshot` when cdcd has streamed",
        slot=config.source.slot.name,
    )


@contextlib.contextmanager
def _opened(
    config: Config,
    ask: Callable[[Config, Progress], object],
    ask_besides: Callable[[Config], None] = lambda config: None,
) -> Iterator[tuple[KafkaSink, Progress]]:
    """Fence the last producer and read the durable progress, if no daemon starts or streams and no check refuses.

    `ask_besides`: the check that does not depend on the stored position. Raises ResumeRefused.
    """
    settings = command_settings(config, timeout_s=_TIMEOUT_S)
    with exclusive(config), contextlib.closing(KafkaSink(settings)) as sink:
        _refuse_first(config, ask)
        ask_besides(config)
        ownership_of(config, settings).refuse_owned(
            ()
        )  # opening fences the producer that has our transactional id
        with known_by_all_brokers(config.progress_topic):  # the checks have read it
            stored = sink.open(lambda: _confirmed_lsn(config))
        if stored is None:
            raise _nothing_written(config)
        yield sink, stored


def _confirmed_lsn(config: Config) -> Lsn:
    slot, _ = look(config)
    return INVALID_LSN if slot is None else slot.confirmed_flush_lsn or INVALID_LSN


def _halted(
    config: Config, stored: Progress, slot: SlotState | None, server: ServerIdentity, timelines: Timelines
) -> CdcdError | None:
    """Return the error with which a start would halt now, or None. Raises errors that a retry resolves."""
    try:
        verdict(stored, slot, server, wanted_of(config), timelines.left)
    except CdcdError as error:
        if error.retry is Retry.AUTO:
            raise
        return error
    return None


def _halt_of(config: Config) -> CdcdError | None:
    """Return the error with which a start would halt, without fencing any producer."""
    stored, is_final = peek_progress(config)
    if stored is None and is_final:
        raise _nothing_written(config)
    # A command resolves the halt also where the daemon would take a new snapshot by itself.
    initial = config.snapshot.model_copy(update={"mode": "initial"})
    to_check = config.model_copy(update={"snapshot": initial}) if config.snapshot.copies_tables else config
    try:
        ask(to_check, create_slot=config.source.slot.create)
    except CdcdError as error:
        if error.retry is Retry.AUTO:
            raise
        return error
    return None


def _slot_to_go_on_with(
    config: Config, slot: SlotState | None, server: ServerIdentity, stored: Progress
) -> tuple[Lsn, Lsn]:
    """Return the slot's confirmed LSN and consistent point; recreate a slot that can no longer be read.

    Raises SourceUnavailable if the connection leads to another server than the one of `slot` (F59).
    """
    source = config.source_settings()
    if slot is not None and not needs_new_slot(slot):
        return slot.confirmed_flush_lsn or 0, min(stored.identity.slot_lsn, slot.confirmed_flush_lsn or 0)
    if slot is not None:
        with contextlib.closing(connect_sql(source)) as connection:
            check_same_server(connection, server)
            drop_slot(connection, source.slot)
    with create_slot_reporting_waits(source, server) as created:
        return created.consistent_point, created.consistent_point


def _prepared_before(config: Config) -> PreparedBefore:
    """Return the transactions prepared now: a PREPARE may lie in the gap, so that its rows never arrive (F33)."""
    source = config.source_settings()
    if not source.two_phase:
        return PreparedBefore()
    with contextlib.closing(connect_sql(source)) as connection:
        return prepared_before(connection)


def _topics(config: Config) -> list[str]:
    """Return the topics that hold rows of the published tables: a truncate event empties each for its readers."""
    topics = Topics(command_settings(config, timeout_s=_TIMEOUT_S), config.topic_settings())
    return topics_with_rows(topics, published_topics(config))


def _write(sink: KafkaSink, progress: Progress) -> None:
    sink.begin()
    sink.commit(progress)


def _audit(config: Config, event: str, progress: Progress) -> str:
    """Log the decision with the user's name; return the same text for the command's output."""
    gap = progress.gap
    assert isinstance(gap, Gap)
    data = {
        "who": who(),
        "slot": config.source.slot.name,
        "from_lsn": format_lsn(gap.from_lsn),
        "to_lsn": None if gap.to_lsn is None else format_lsn(gap.to_lsn),
        "reason": gap.reason,
    }
    _LOG.warning(event, **data)
    until = "the new snapshot" if gap.to_lsn is None else data["to_lsn"]
    return f"{event} by {data['who']}: {data['slot']}, from {data['from_lsn']} to {until}, because of {gap.reason}"


def _reported(config: Config) -> str:
    """Ask the daemon on this machine to retry. Return a line: its state, or what to do."""
    try:
        return _tell(config)
    except (NotLocal, PortUnknown) as none:
        return f"{none.problem}; {_NOT_ASKED}"
    except NoAnswer:
        return _NOT_RUNNING


def _tell(config: Config) -> str:
    """Ask the daemon on this machine to retry. Return its state as a line. Raises NoAnswer if none answers."""
    answer = ask_daemon(config, "POST", "/resume", header=RESUME_HEADER)
    try:
        found = json.loads(answer.body) if answer.status == 200 else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("name") != config.name:
        raise NoAnswer
    reason = f" ({found['reason']})" if found.get("reason") else ""
    return f"asked cdcd to retry; it was in state {found.get('state')}{reason}"
