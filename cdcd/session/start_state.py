"""The start of a session before its first record: the server, the durable position, and where the session begins.

In: the configuration, the session's sink, topics, schemas and catalog.  Out: `StartState`, or the error that refuses
the start.
Invariant: `run_checks` only reads, and raises whatever refuses the start. It changes nothing and fences no producer,
so a refused start leaves no trace and another running daemon continues (F69, F79). `fence_and_decide` changes, in the
order of docs/recovery.md: it fences an older producer, so that nobody else writes after the position is read again
(F64, F76), and decides again by that position.
Must not: stream, or write a record.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import structlog

from cdcd.ack.group import CommitPosition
from cdcd.config import Config
from cdcd.errors import CdcdError, SlotActive
from cdcd.findings import Finding, failure, refusal
from cdcd.lsn import INVALID_LSN, Lsn, format_lsn
from cdcd.model import PartPosition, PreparedBefore, Progress, SourceIdentity, Timelines
from cdcd.monitoring.lag import ServerTimeline
from cdcd.monitoring.publication_monitor import PublicationMonitor
from cdcd.monitoring.status import Status
from cdcd.recovery.new_snapshot import Decision
from cdcd.recovery.start_decision import Resume, Snapshot, on_timeline
from cdcd.recovery.start_decision import is_anew as begins_anew
from cdcd.registry.confluent import Registry
from cdcd.session.clients import Clients
from cdcd.session.option_downgrade import allowed_options, without
from cdcd.session.queries import slot_state
from cdcd.session.server_crashes import ServerCrashes
from cdcd.session.start_checks.binary_columns import in_readable_form
from cdcd.session.start_checks.checks import START_CHECKS, run_check
from cdcd.session.start_checks.context import StartContext
from cdcd.session.start_checks.position import decide_start, slot_held
from cdcd.session.start_checks.schemas import to_try_in_background
from cdcd.session.start_checks.topics import table_topics, topics_with_rows
from cdcd.sink.reader import read_topic_identities
from cdcd.sink.schemas import SchemaTopic
from cdcd.sink.topic_identity import TopicIdentities, TopicOwner
from cdcd.source.identity import ServerIdentity, check_same_server
from cdcd.source.publication_catalog import LOCK_TIMEOUT_MS, PublishedTable
from cdcd.source.settings import StreamOptions, granted_options, shortfalls
from cdcd.threads import in_thread, start_in_thread

_LOG = structlog.stdlib.get_logger("cdcd.session")
_SERVE_WITHIN_S = 10.0
"""How long a refused start may read the schema topic for its readers."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StartState:
    """The state that a session begins with. `stored`: the stored position on the server's timeline (F58).

    `identity` is written into the session's progress records; `timelines` gives the timeline of a commit.
    """

    stored: Progress | None
    server: ServerIdentity
    options: StreamOptions
    verdict: Resume | Snapshot
    identity: SourceIdentity
    timelines: Timelines

    @property
    def is_first(self) -> bool:
        """Whether no earlier session has streamed."""
        return self.stored is None or isinstance(self.verdict, Snapshot)

    @property
    def durable_lsn(self) -> Lsn:
        """The LSN that may be confirmed before anything was received; never beyond the end of a former timeline."""
        if self.stored is None or isinstance(self.verdict, Snapshot):
            return INVALID_LSN
        return self.verdict.start_lsn

    @property
    def part(self) -> PartPosition | None:
        """The part of the first transaction of the stream that is already in Kafka; None: no part."""
        return None if self.stored is None else self.stored.part


def position_before(
    begin: Resume, start_state: StartState, before: PreparedBefore, durable_us: int
) -> CommitPosition:
    """Return the commit position before the stream; the parts of its first transaction are written at this position.

    `durable_us`: the commit time of the last durable transaction, 0 if not known.
    """
    return CommitPosition(
        begin.written_commit_lsn,
        begin.start_lsn,
        durable_us,
        0,
        prepared_before=before,
        part=start_state.part,
        copy=begin.copy,
    )


class SessionStart:
    """The first steps of one session, up to the verdict. `last_error`: what ended the last session that streamed."""

    def __init__(
        self,
        config: Config,
        clients: Clients,
        status: Status,
        publications: PublicationMonitor,
        last_error: CdcdError | None,
        crashes: ServerCrashes,
        *,
        is_snapshot_due: bool,
    ) -> None:
        """`is_snapshot_due`: with `snapshot.mode: always`, the process has yet to begin its snapshot."""
        self._config = config
        self._source = config.source_settings()
        self._clients = clients
        self._sink = clients.sink
        self._topics = clients.topics
        self._schemas = schemas = clients.schemas
        self._status = status
        self._publications = publications
        self._last_error = last_error
        self._crashes = crashes
        self._has_gap = False
        self._loop = asyncio.get_running_loop()
        self._known = StartContext(
            config,
            self._source,
            lambda: (config.sink_settings(), clients.topics, clients.ownership),
            schemas if isinstance(schemas, Registry) and not schemas.knows_any else None,
            self._compare,
            may_run=False,
            lock_timeout_ms=LOCK_TIMEOUT_MS,
            create_slot=config.source.slot.create,
            is_first=last_error is None,
            is_snapshot_due=is_snapshot_due,
        )

    async def run_checks(self) -> None:
        """Run every check that may refuse the start, before anything is changed (F79). Raises the first failure."""
        waits = self._status.waits
        try:
            for one in START_CHECKS:
                waiting = contextlib.nullcontext() if one.server is None else waits.on(one.server, one.name)
                with waiting:
                    findings, _ = await in_thread(run_check, one, self._known)
                for finding in findings:
                    if finding.level == "unknown":
                        reason, hint = finding.message, finding.hint
                        _LOG.warning("check_inconclusive", subject=finding.subject, reason=reason, hint=hint)
                error = refusal(findings)
                if error is not None:
                    raise error
                waits.stop_retrying(*one.answers)
                if one.name == "position":  # slot, server and database are those of the stored position
                    self._status.is_slot_anothers = False
                    assert self._known.server is not None
                    self._status.source.stored(_place(self._known.server))
        except CdcdError as error:
            # While another daemon holds the slot, it may have made more durable than the stored position says.
            if self._known.stored is not None and not isinstance(error, SlotActive):
                self._status.progress(self._known.stored)
            await self._serve_schemas()
            raise
        finally:
            # A cancelled query may still run: the thread waits for its end.
            start_in_thread(self._known.close)
        shared = self._known.shared
        if shared is not None:
            _LOG.warning("topics_shared", reason=shared.message, hint=shared.advice)

    @property
    def to_try_in_background(self) -> dict[str, PublishedTable | None]:
        """The topics, each with its table, that the session checks while it streams: rows may never come for them."""
        return to_try_in_background(self._known)

    async def _serve_schemas(self) -> None:
        """Serve the committed schemas to readers although this start is refused."""
        if isinstance(self._schemas, SchemaTopic) and self._schemas.schema_index is None:
            try:
                await in_thread(self._schemas.serve, self._config.sink_settings(), _SERVE_WITHIN_S)
            except CdcdError as error:
                _LOG.info("schemas_not_served", error=str(error))

    async def fence_and_decide(self) -> StartState:
        """Make what is missing in Kafka, fence, read the durable position again, decide again. Raises CdcdError."""
        known = self._known
        server, timelines = known.server, known.timelines
        assert server is not None
        assert timelines is not None
        options = in_readable_form(self._granted(server), known.text_columns)
        with self._status.waits.on("kafka", "the topics of cdcd and the stored position"):
            stored = await self._open_sink(server)
        decision, is_two_phase = await in_thread(self._decide, stored, server, timelines)
        # Before a monitor may end the session: from here on none takes anything from another server.
        self._status.source.decided(_place(server))
        stored, found = decision.stored, decision.verdict
        await self._set_identities(stored, is_anew=begins_anew(found))
        await self._open_schemas()
        self._status.sink_opened()
        self._report_new_snapshot(decision)
        # F35: where the stream asks for two_phase, the server switches the slot at START_REPLICATION.
        two_phase = options.two_phase or (isinstance(found, Resume) and is_two_phase)
        slot_lsn = stored.identity.slot_lsn if stored is not None else INVALID_LSN
        identity = identity_of(server, timelines, self._source.slot, two_phase=two_phase, slot_lsn=slot_lsn)
        assert self._topics.identities is not None
        self._topics.identities.set_owner(
            TopicOwner(server.system_identifier, server.database, self._source.slot)
        )
        return StartState(stored, server, options, found, identity, timelines)

    async def _open_sink(self, server: ServerIdentity) -> Progress | None:
        await in_thread(self._topics.ensure_progress, self._config.progress_topic)
        stored = await in_thread(self._sink.open, partial(self._confirmed_lsn, server))
        await in_thread(self._topics.read_limits)
        if stored is not None:
            self._status.progress(stored)
            _LOG.info(
                "progress_read",
                phase=stored.phase,
                commit_lsn=format_lsn(stored.commit_lsn),
                end_lsn=format_lsn(stored.end_lsn),
                tables_to_copy=None if stored.copy is None else len(stored.copy.pending),
            )
        return stored

    def _confirmed_lsn(self, server: ServerIdentity) -> Lsn:
        slot = slot_state(self._source, server)
        if slot is None:
            return INVALID_LSN
        if slot.active:
            raise slot_held(self._source.slot, slot.active_pid)
        return slot.confirmed_flush_lsn or INVALID_LSN

    async def _open_schemas(self) -> None:
        if self._config.dead_letter_topic is not None:
            await in_thread(self._topics.ensure_dead_letters, self._config.dead_letter_topic)
        if isinstance(self._schemas, SchemaTopic):
            await in_thread(self._topics.ensure_schemas, self._config.schema_topic)
            await in_thread(self._schemas.open, self._sink, self._config.sink_settings())

    def _decide(
        self, stored: Progress | None, server: ServerIdentity, timelines: Timelines
    ) -> tuple[Decision, bool]:
        """Decide again, by a position that no other producer can change; also return the slot's two_phase."""
        slot = slot_state(self._source, server)
        if slot is not None and slot.active:
            raise slot_held(self._source.slot, slot.active_pid)
        decision = decide_start(self._known, stored, slot)
        if decision.new_snapshot is not None:
            topics = topics_with_rows(self._topics, table_topics(self._known, []))
            decision = decide_start(self._known, stored, slot, topics)
        if decision.stored is not None:
            on_its_timeline = on_timeline(decision.stored, server.timeline, timelines.left)
            decision = replace(decision, stored=on_its_timeline)
        return decision, slot is not None and slot.two_phase

    def _report_new_snapshot(self, decision: Decision) -> None:
        if decision.new_snapshot is None:
            return
        halt = "" if decision.halt is None else str(decision.halt)
        self._status.new_snapshot(decision.new_snapshot, halt or "snapshot.mode: always")
        _LOG.warning("new_snapshot", reason=decision.new_snapshot, error=halt)

    async def _set_identities(self, stored: Progress | None, *, is_anew: bool) -> None:
        """Set the topic identities of the records; compare the publications again if the record changed meanwhile."""
        peeked, identities = self._known.stored, self._known.identities
        at, was_at = (-1 if one is None else one.topics_at for one in (stored, peeked))
        if identities is None or at != was_at or is_anew != begins_anew(self._known.verdict):
            identities = await in_thread(read_topic_identities, self._config.sink_settings(), at)
            if is_anew:
                identities.reset()
            self._has_gap = stored is not None and stored.gap is not None
            error = refusal(await in_thread(self._compare_again, identities, is_anew))
            if error is not None:
                raise error
        if at >= 0 and self._may_have_orphan(stored, peeked):
            identities.is_changed = True
        self._clients.set_identities(identities)
        self._publications.is_on = True

    def _may_have_orphan(self, *progress: Progress | None) -> bool:
        """Return whether a session may have left a record of the topics that no progress record names.

        Without Kafka transactions it is written, and the process may end before the progress record. Compaction
        retains the newest record only, not the one in use: the session's first progress record gets a newer one.
        """
        return not self._clients.is_exactly_once or any(
            one is not None and not one.transactional_id for one in progress
        )

    def _compare_again(self, identities: TopicIdentities, is_anew: bool) -> list[Finding]:
        server, connection = self._known.server, self._known.sql()
        try:
            assert server is not None
            check_same_server(connection, server)  # the checks' connection was closed
            return self._compare(identities, is_anew, connection)
        finally:
            self._known.close()

    def _compare(self, identities: TopicIdentities, is_anew: bool, connection: Any) -> list[Finding]:
        """Compare the publications with those at the last written record (F39, F42). In a thread."""
        stored = self._known.stored
        has_gap = self._has_gap or (stored is not None and stored.gap is not None)
        if is_anew:
            has_gap = not self._config.snapshot.copies_tables
        begin = partial(self._publications.begin, identities, is_anew=is_anew, has_gap=has_gap)
        self._on_loop(begin)
        comparison = self._publications.compare(connection)
        error = self._on_loop(partial(self._publications.judge, comparison))
        return [] if error is None else [failure("publication", error)]

    def _on_loop(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    def _granted(self, server: ServerIdentity) -> StreamOptions:
        """Return the options to ask this server for; `start_checks` has refused options that it does not support."""
        wanted, failover = self._config.wanted_options(server.version_num), self._source.failover
        asked_for = allowed_options(wanted, self._last_error)
        left_out = self._crashes.options_to_leave_out(server)
        for option in left_out:
            if without(asked_for, (option,)) != asked_for:
                reason = "the server crashed while it decoded from this position, again"
                _LOG.warning("option_disabled", option=f"source.protocol.{option}", reason=reason)
        options = granted_options(server.version_num, without(asked_for, left_out), failover=failover)
        for one in shortfalls(server.version_num, wanted):
            _LOG.warning("option_disabled", option=one.option, reason=one.why)
        return options


def identity_of(
    server: ServerIdentity, timelines: Timelines, slot: str, *, two_phase: bool, slot_lsn: Lsn
) -> SourceIdentity:
    """Return the identity of the slot and its server for the session's progress records (F10)."""
    return SourceIdentity(
        server.system_identifier,
        server.timeline,
        server.database,
        slot,
        two_phase=two_phase,
        slot_lsn=slot_lsn,
        timeline_lsn=timelines.now_lsn,
    )


def _place(server: ServerIdentity) -> ServerTimeline:
    return ServerTimeline(server.system_identifier, server.timeline)
