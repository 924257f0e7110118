"""Make the incremental snapshots of a session, and what gives them commands.

In: the session's configuration, pump, writer and server.  Out: `IncrementalSnapshots`; its background work.
Invariant: the connections that read chunks are to the server and the timeline of the stream.
Must not: decide what is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from cdcd.avro.plan import RelationPlan
from cdcd.avro.transaction import TransactionContext
from cdcd.avro.truncates import is_truncate
from cdcd.config import Config
from cdcd.config.model import Buffer
from cdcd.model import TransactionInfo
from cdcd.monitoring.publication_monitor import PublicationMonitor
from cdcd.monitoring.status import Status
from cdcd.pipeline.chunk_emitter import ChunkEmitter
from cdcd.pipeline.plans import Plans
from cdcd.pipeline.pump import Pump
from cdcd.pipeline.table_copies import TableCopies
from cdcd.pipeline.writer import Writer
from cdcd.session.blocking import BlockingSnapshots
from cdcd.session.blocking_copy import BlockingParts
from cdcd.session.clients import Clients
from cdcd.session.incremental import IncrementalSnapshots
from cdcd.session.new_table_follower import NewTableFollower
from cdcd.session.published_tables import PublishedTables
from cdcd.session.signal_follower import SignalFollower
from cdcd.session.start_state import StartState
from cdcd.sink.stale_keys import StaleKeys, ends_of
from cdcd.snapshot.chunk_reader import ChunkReader, ServerAndTimeline
from cdcd.snapshot.reports import TableReports
from cdcd.snapshot.signal_reader import SignalReader
from cdcd.source.connection import connect_sql, translate

KEYS_PART = 4
"""The keys of a topic take 1/n of the space for open transactions at most, in addition."""


def new_incremental_snapshots(
    config: Config,
    start_state: StartState,
    clients: Clients,
    plans: Plans,
    copies: TableCopies,
    emitter: ChunkEmitter,
    pump: Pump,
    writer: Writer,
    reports: TableReports,
    status: Status,
    new_context: Callable[[TransactionInfo], TransactionContext],
) -> IncrementalSnapshots:
    """Return the incremental snapshots of a session, with its blocking ones."""
    source, options = config.source_settings(), config.snapshot
    selection, policies = options.selection(), config.format.policies()
    published = PublishedTables(
        source,
        clients.catalog,
        plans,
        selection,
        policies,
        is_binary=start_state.options.binary,
    )
    server = ServerAndTimeline(start_state.server.system_identifier, start_state.server.timeline)
    connect = partial(connect_sql, source)
    parts = BlockingParts(
        copies,
        pump,
        writer,
        reports,
        source,
        start_state.server,
        clients.catalog,
        plans,
        status,
        new_context,
        clients.topics.has_records,
        options.workers,
        config.format.transactions,
        selection,
        policies,
    )
    return IncrementalSnapshots(
        copies,
        emitter,
        pump,
        writer,
        published,
        partial(ChunkReader, connect, translate, source.publications, published.find, server),
        reports,
        partial(BlockingSnapshots, parts, emitter),
        KeysInKafka(clients, config.buffer),
        workers=options.workers,
        selection=selection,
        chunk_time_s=options.incremental.chunk_time_ms / 1000,
        limits=options.incremental.limits(),
        lag_s=status.lag_s,
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
    """Return what copies, and what gives commands: the topic of the signals, tables that join the publication."""
    tasks = [copying.run()]
    if topic := config.snapshot.signals.topic:
        new_reader = partial(SignalReader, config.sink_settings(), topic, config.name)
        tasks.append(SignalFollower(copying, new_reader).run())
    if publications.new_tables.policy == "snapshot":
        tasks.append(NewTableFollower(copying, publications, config.snapshot.selection()).run())
    return tasks
