"""Make the incremental snapshots of a session, and the tasks that start and stop them.

In: the session's configuration, pump, writer and server.  Out: `IncrementalSnapshots`; its background work.
Invariant: the connections that read chunks are to the server and the timeline of the stream.
Must not: decide what is copied.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from cdcd.avro.plan import RelationPlan
from cdcd.avro.truncates import is_truncate
from cdcd.config import Config
from cdcd.config.model import Buffer
from cdcd.monitoring.incomplete_tables import IncompleteTables
from cdcd.monitoring.publication_monitor import PublicationMonitor
from cdcd.pipeline.chunk_emitter import ChunkEmitter
from cdcd.pipeline.pump import Pump
from cdcd.session.blocking import BlockingSnapshots
from cdcd.session.blocking_copy import blocking_parts
from cdcd.session.clients import Clients
from cdcd.session.incremental import CopyOptions, IncrementalSnapshots
from cdcd.session.new_table_follower import NewTableFollower
from cdcd.session.parts import SessionParts
from cdcd.session.published_tables import PublishedTables
from cdcd.session.signal_follower import SignalFollower
from cdcd.session.start_state import StartState
from cdcd.sink.stale_keys import StaleKeys, ends_of
from cdcd.snapshot.chunk_reader import ChunkReader
from cdcd.snapshot.chunk_values import ServerAndTimeline
from cdcd.snapshot.signal_reader import SignalReader
from cdcd.source.connection import connect_sql, translate

KEYS_PART = 4
"""The keys of a topic take 1/n of the space for open transactions at most, in addition."""


def new_incremental_snapshots(
    parts: SessionParts,
    start_state: StartState,
    pump: Pump,
    emitter: ChunkEmitter,
    publications: PublicationMonitor,
) -> IncrementalSnapshots:
    """Return the incremental snapshots of a session, with its blocking ones."""
    config, clients = parts.config, parts.clients
    source, options = config.source_settings(), config.snapshot
    published = PublishedTables(
        source,
        clients.catalog,
        parts.plans,
        options.selection(),
        config.format.policies(),
        is_binary=start_state.options.binary,
    )
    server = ServerAndTimeline(start_state.server.system_identifier, start_state.server.timeline)
    connect = partial(connect_sql, source)
    return IncrementalSnapshots(
        emitter,
        pump.progress,
        parts.writer,
        published,
        partial(ChunkReader, connect, translate, source.publications, published.find, server),
        parts.reports,
        partial(BlockingSnapshots, blocking_parts(parts, pump, start_state.server), emitter),
        KeysInKafka(clients, config.buffer),
        CopyOptions(
            workers=options.workers,
            selection=options.selection(),
            chunk_time_s=options.incremental.chunk_time_ms / 1000,
            limits=options.incremental.limits(),
        ),
        lag_s=parts.status.lag_s,
        note_ended=publications.copy_ended,
    )


class KeysInKafka:
    """The `TopicKeys` of a session. `buffer` says where the keys of a topic are stored, and how many."""

    def __init__(self, clients: Clients, buffer: Buffer) -> None:
        self._settings, self._buffer = clients.sink_settings, buffer

    def ends_of(self, plan: RelationPlan) -> tuple[int, ...]:
        """Return the next offset of each partition of the relation's topic."""
        return ends_of(self._settings, plan.topic)

    def stale(self, plan: RelationPlan, starts: Sequence[int]) -> StaleKeys:
        """Return a reader of the relation's topic."""
        folder, most_bytes = self._buffer.spill_dir, self._buffer.spill // KEYS_PART
        return StaleKeys(self._settings, plan.topic, starts, folder, most_bytes, partial(is_truncate, plan))


def background_work(
    config: Config, copying: IncrementalSnapshots, publications: PublicationMonitor
) -> list[Coroutine[Any, Any, None]]:
    """Return the tasks: the copy, the reader of the signal topic, the copy of new tables, and their record."""
    tasks = [copying.run(), record_complete(copying, publications.incomplete)]
    if topic := config.snapshot.signals.topic:
        new_reader = partial(SignalReader, config.sink_settings(), topic, config.name)
        tasks.append(SignalFollower(copying, new_reader).run())
    if publications.new_tables.copies_any:
        tasks.append(NewTableFollower(copying, publications, config.snapshot.selection()).run())
    return tasks


async def record_complete(copying: IncrementalSnapshots, incomplete: IncompleteTables) -> None:
    """Write the record of tables that turn out to lack nothing, or to be dropped, until cancelled.

    Readers wait for it, on an idle server, too.

    A copy that is complete, and a table that waits for one, are recorded with their own position.
    """
    while True:
        await incomplete.is_due.wait()
        incomplete.is_due.clear()
        await copying.record_topics()
