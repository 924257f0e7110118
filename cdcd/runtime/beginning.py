"""What a session has to know before its first record: who answers, what is durable, where to go on.

In: the configuration, the session's sink, topics, schemas and catalog.  Out: `Begun`, or the error that says why not.
Invariant: a slot that is held is waited for, and its holder not fenced (F69). Then the sink is opened: that fences
an older producer, so nobody else writes behind the position that is read then (F64, F76). PostgreSQL is asked the
rest after that, and nothing is made before every option is granted.
Must not: stream, or write a record.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from cdcd.ack.group import Boundary
from cdcd.config import Config
from cdcd.errors import CdcdError
from cdcd.lsn import INVALID_LSN, Lsn, format_lsn
from cdcd.model import Part, PreparedBefore, Progress, SourceIdentity, Timelines
from cdcd.registry.confluent import Registry
from cdcd.runtime.asking import looked, refuse_held, which_history, which_server, which_slot
from cdcd.runtime.binary import in_readable_form
from cdcd.runtime.fallback import allowed
from cdcd.runtime.ownership import refuse_owned
from cdcd.runtime.parts import check_numbers, numbered_by
from cdcd.runtime.publication_watch import PublicationWatch
from cdcd.runtime.recovery import Resume, Slot, Snapshot, Wanted, on_timeline, verdict
from cdcd.runtime.status import Status
from cdcd.sink.claims import Claims
from cdcd.sink.kept_topics import TopicOwner
from cdcd.sink.producer import KafkaSink
from cdcd.sink.reader import read_kept_topics
from cdcd.sink.schemas import SchemaTopic
from cdcd.sink.topics import Topics
from cdcd.source.catalog import Catalog
from cdcd.source.identity import ServerIdentity
from cdcd.source.settings import SourceSettings, StreamOptions, granted, shortfalls
from cdcd.threads import in_thread

_LOG = structlog.stdlib.get_logger("cdcd.session")


@dataclass(frozen=True, slots=True)
class Begun:
    """What a session begins with: the stored position as it is on the server's timeline (F58).

    `identity` is what its progress records say; `timelines` tell which one a commit belongs to.
    """

    stored: Progress | None
    server: ServerIdentity
    options: StreamOptions
    verdict: Resume | Snapshot
    identity: SourceIdentity
    timelines: Timelines

    @property
    def durable_lsn(self) -> Lsn:
        """What may be confirmed before anything was received: nothing behind the point where a timeline was left."""
        if self.stored is None or isinstance(self.verdict, Snapshot):
            return INVALID_LSN
        return self.verdict.start_lsn

    @property
    def part(self) -> Part | None:
        """What of the first transaction is written already."""
        return None if self.stored is None else self.stored.part


def boundary_before(begin: Resume, begun: Begun, before: PreparedBefore, durable_us: int) -> Boundary:
    """Return what is complete before the stream: a part of its first transaction has this position.

    `durable_us`: when the last transaction committed that is durable, 0 where that is not known.
    """
    return Boundary(
        begin.written_commit_lsn, begin.start_lsn, durable_us, 0, prepared_before=before, part=begun.part
    )


class Beginning:
    """The first steps of one session, up to the verdict. `after`: what ended the last that has streamed."""

    def __init__(
        self,
        config: Config,
        sink: KafkaSink,
        topics: Topics,
        claims: Claims,
        schemas: Registry | SchemaTopic,
        catalog: Catalog,
        status: Status,
        publications: PublicationWatch,
        after: CdcdError | None,
    ) -> None:
        self._config = config
        self._source = config.source_settings()
        self._sink = sink
        self._topics = topics
        self._claims = claims
        self._schemas = schemas
        self._catalog = catalog
        self._status = status
        self._publications = publications
        self._after = after

    async def begin(self) -> Begun:
        """Open the sink, ask the server, compare. Raises the errors of all of them."""
        await in_thread(refuse_held, self._source)
        shared = await in_thread(refuse_owned, self._config, self._claims)
        if shared is not None:
            _LOG.warning("topics_shared", said=shared.message, hint=shared.advice)
        waits = self._status.waits
        waits.stop_retrying("source", "slot_held", "promotion")
        with waits.on("kafka", "the topics of cdcd and the stored position"):
            stored = await self._open_sink()
        waits.stop_retrying("kafka")
        server = await in_thread(which_server, self._source)
        options = self._granted(server)  # refused before anything is made
        policies = self._config.format.policies()
        options = await in_thread(in_readable_form, options, self._source, self._catalog, policies)
        timelines = await in_thread(timelines_of, self._source, server)
        stored, decided, slot = await in_thread(self._decide, stored, server, timelines)
        if stored is not None and isinstance(decided, Resume):
            check_numbers(stored.part, numbered_by(self._config))
        await self._compare_kept(server, is_anew=isinstance(decided, Snapshot))
        # F35: where the stream asks for two_phase, the server switches the slot at START_REPLICATION.
        two_phase = options.two_phase or (isinstance(decided, Resume) and slot is not None and slot.two_phase)
        slot_lsn = stored.identity.slot_lsn if stored is not None else INVALID_LSN
        identity = identity_of(server, timelines, self._source.slot, two_phase=two_phase, slot_lsn=slot_lsn)
        assert self._topics.kept is not None
        self._topics.kept.own(TopicOwner(server.system_identifier, server.database, self._source.slot))
        return Begun(stored, server, options, decided, identity, timelines)

    async def _open_sink(self) -> Progress | None:
        await in_thread(self._topics.ensure_progress, self._config.progress_topic)
        stored = await in_thread(self._sink.open)
        await in_thread(self._topics.read_limits)
        if self._config.dead_letter_topic is not None:
            await in_thread(self._topics.ensure_dead_letters, self._config.dead_letter_topic)
        if isinstance(self._schemas, SchemaTopic):
            await in_thread(self._topics.ensure_schemas, self._config.schema_topic)
            await in_thread(self._schemas.open, self._sink, self._config.sink_settings())
        at = -1 if stored is None else stored.topics_at
        self._sink.kept = self._topics.kept = await in_thread(
            read_kept_topics, self._config.sink_settings(), at
        )
        self._status.sink_opened()
        if stored is not None:
            self._status.progress(stored)
            _LOG.info(
                "progress_read",
                phase=stored.phase,
                commit_lsn=format_lsn(stored.commit_lsn),
                end_lsn=format_lsn(stored.end_lsn),
            )
        return stored

    async def _compare_kept(self, server: ServerIdentity, *, is_anew: bool) -> None:
        """Compare what is published with what was when records were last written (F39, F42)."""
        kept = self._topics.kept
        assert kept is not None
        if is_anew:
            kept.forget(kept.names())  # all of it is written anew
        self._publications.begin(kept, is_anew=is_anew)
        look = await in_thread(looked, self._source, server, self._publications.look)
        error = self._publications.judge(look)
        if error is not None:
            raise error
        self._publications.is_on = True

    def _granted(self, server: ServerIdentity) -> StreamOptions:
        """Return what to ask of this server. Raises SourceSetup for a wish that it cannot grant."""
        wanted, failover = self._config.wanted_options(server.version_num), self._source.failover
        options = granted(server.version_num, allowed(wanted, self._after), failover=failover)
        for one in shortfalls(server.version_num, wanted):
            _LOG.warning("option_left_out", option=one.option, reason=one.why)
        return options

    def _decide(
        self, stored: Progress | None, server: ServerIdentity, timelines: Timelines
    ) -> tuple[Progress | None, Resume | Snapshot, Slot | None]:
        slot = which_slot(self._source, server)
        decided = verdict(stored, slot, server, wanted_of(self._config), timelines.left)
        if stored is not None:
            stored = on_timeline(stored, server.timeline, timelines.left)
        return stored, decided, slot


def timelines_of(source: SourceSettings, server: ServerIdentity) -> Timelines:
    """Return the server's timeline and its history (F58). Blocks. Raises Source errors.

    Also where the stored position is of this timeline: what comes may have been committed on the one before.
    """
    return Timelines(server.timeline, which_history(source, server.timeline))


def identity_of(
    server: ServerIdentity, timelines: Timelines, slot: str, *, two_phase: bool, slot_lsn: Lsn
) -> SourceIdentity:
    """Return what the progress records of a session say of the slot and its server (F10)."""
    return SourceIdentity(
        server.system_identifier,
        server.timeline,
        server.database,
        slot,
        two_phase=two_phase,
        slot_lsn=slot_lsn,
        timeline_lsn=timelines.now_lsn,
    )


def wanted_of(config: Config) -> Wanted:
    """Return what the configuration says about the slot and the beginning."""
    return Wanted(
        slot=config.source.slot.name,
        create_slot=config.source.slot.create,
        snapshot=config.snapshot.mode == "initial",
        two_phase=config.source.protocol.two_phase,
    )
