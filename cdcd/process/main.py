"""Start the daemon's parts, install the signal handlers, return the exit status.

In: a `Config`.  Out: an exit status.
Invariant: the first SIGTERM or SIGINT stops in order, within `shutdown_timeout_ms`. A second one, or the timeout,
ends the process at once. That loses nothing, because only durable positions are confirmed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable

import structlog

from cdcd.config import Config
from cdcd.errors import EXIT_CONFIG, EXIT_FAILURE, EXIT_FORCED
from cdcd.extensions import implementation, is_fallback
from cdcd.monitoring.heartbeat import Heartbeat
from cdcd.monitoring.new_tables import NewTables
from cdcd.monitoring.partition_monitor import PartitionMonitor
from cdcd.monitoring.publication_monitor import PublicationMonitor
from cdcd.monitoring.server_monitor import ServerMonitor
from cdcd.monitoring.status import Status
from cdcd.monitoring.wal_guard import WalGuard
from cdcd.monitoring.wal_levels import Sizes
from cdcd.ops.admin import AdminServer
from cdcd.ops.health import liveness, readiness, startup
from cdcd.ops.log import configure, flush
from cdcd.ops.metrics import Metrics
from cdcd.ops.stderr_lines import as_log_lines
from cdcd.process.gc_tuning import tune_gc
from cdcd.process.malloc_arenas import limit_malloc_arenas
from cdcd.process.memory import end_for, end_where_memory_is_short, last_words_to
from cdcd.process.served_schemas import ServedSchemas
from cdcd.process.supervisor import Supervisor
from cdcd.registry.confluent import Registry
from cdcd.sink.names import topic_of_table
from cdcd.sink.schemas import SchemaTopic
from cdcd.snapshot.admin_page import SnapshotPages
from cdcd.snapshot.control import SnapshotControl
from cdcd.version import __version__

_LOG = structlog.stdlib.get_logger("cdcd.main")
TURN_INTERVAL_S = 1.0
_STOP_HINT = (
    "the process ends with status 1, and no change is lost: the next start continues at the last durable position. "
    "If this repeats, raise shutdown_timeout_ms"
)


def run(config: Config) -> int:
    """Run until stopped; return the exit status."""
    limit_malloc_arenas()
    try:
        with as_log_lines() as stream:
            configure(config.log.level, config.log.format, stream, is_threaded=True)
            last_words_to(stream.fileno())
            return asyncio.run(_run(config))
    except MemoryError as error:  # during the shutdown, which takes memory too
        end_for(type(error))
        raise
    finally:
        flush()


async def _run(config: Config) -> int:
    end_where_memory_is_short()
    status = Status(Metrics(__version__), name=config.name, slot=config.source.slot.name)
    schemas = _schemas(config, status)
    publications = _publication_monitor(config, status)
    supervisor = Supervisor(config, status, schemas, publications)
    guard = _wal_guard(config, status, supervisor)
    partitions = PartitionMonitor(config.format.policies().table)
    monitor = ServerMonitor(
        config.source_settings(), status, publications, partitions, guard, supervisor.fail_session
    )
    admin = _admin(config, status, schemas, monitor, supervisor.retry.set, supervisor.commands)
    try:
        port = await admin.start()
    except OSError as error:
        _LOG.error(
            "admin_port_unavailable",
            host=config.admin.host,
            port=config.admin.port,
            error=error.strerror,
            hint="choose another admin.port or admin.host, or stop the program that listens there (`cdcd check` "
            "names it)",
        )
        return EXIT_CONFIG
    _LOG.info(
        "started",
        version=__version__,
        extensions=implementation(),
        name=config.name,
        slot=config.source.slot.name,
        admin_port=port,
    )
    if is_fallback():
        _LOG.warning(
            "python_fallback",
            hint="the Python fallback takes about twenty times as long for a row. Install cdcd on a machine with a C "
            "compiler, or set CDCD_EXTENSIONS=python to accept the fallback",
        )
    tune_gc()
    _wire_signals(supervisor, config.shutdown_timeout_ms / 1000)
    background = [asyncio.ensure_future(one) for one in (monitor.run(), status.waits.watch(), _turn(status))]
    if config.source.heartbeat_interval_ms:
        heartbeat = Heartbeat(config.source_settings(), status, config.source.heartbeat_interval_ms / 1000)
        background.append(asyncio.ensure_future(heartbeat.run()))
    try:
        return await supervisor.run()
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await admin.stop()


def _publication_monitor(config: Config, status: Status) -> PublicationMonitor:
    publication = config.source.publication
    return PublicationMonitor(
        config.source_settings().publications,
        status.metrics,
        halts_at_removal=publication.table_removed == "halt",
        topic_of=topic_of_table(config.sink.topics.template, config.name),
        new_tables=NewTables(config.snapshot.new_tables_policy, config.snapshot.rewritten_tables_policy),
    )


def _wal_guard(config: Config, status: Status, supervisor: Supervisor) -> WalGuard:
    guard = config.source.wal_guard
    sizes = Sizes(guard.warn, guard.critical, guard.drop_slot)
    return WalGuard(config.source_settings(), sizes, status, supervisor.fail_session)


def _schemas(config: Config, status: Status) -> Registry | SchemaTopic:
    topic = config.schema_topic
    if topic is None:
        return Registry(config.registry_settings(), status.registry_request)
    return SchemaTopic(topic, config.source.slot.name, config.registry.compatibility)


def _admin(
    config: Config,
    status: Status,
    schemas: Registry | SchemaTopic,
    monitor: ServerMonitor,
    resume: Callable[[], None],
    snapshots: SnapshotControl,
) -> AdminServer:
    async def metrics() -> bytes:
        await monitor.sample()
        return status.exposition()

    return AdminServer(
        config.admin.host,
        config.admin.port,
        metrics=metrics,
        livez=lambda: liveness(status.health, time.monotonic()),
        readyz=lambda: readiness(status.health, time.monotonic()),
        startupz=lambda: startup(status.health),
        status=status.page,
        schemas=ServedSchemas(schemas) if isinstance(schemas, SchemaTopic) else None,
        resume=resume,
        snapshots=SnapshotPages(snapshots, config.name),
        host_names=config.admin.host_names,
        durable=status.durable_waits,
    )


async def _turn(status: Status) -> None:
    """Show that the event loop is alive, also while the daemon is idle or halted."""
    while True:
        status.loop_turned()
        await asyncio.sleep(TURN_INTERVAL_S)


def _wire_signals(supervisor: Supervisor, timeout_s: float) -> None:
    loop = asyncio.get_running_loop()

    def expired() -> None:
        _LOG.error("stop_timed_out", timeout_s=timeout_s, hint=_STOP_HINT)
        flush()
        os._exit(EXIT_FAILURE)

    def stop(name: str) -> None:
        if supervisor.stop.is_set():
            _LOG.warning("stopping_immediately", signal=name)
            flush()
            os._exit(EXIT_FORCED)
        _LOG.info("stopping", signal=name)
        supervisor.stop.set()
        loop.call_later(timeout_s, expired)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)
    loop.add_signal_handler(signal.SIGHUP, supervisor.retry.set)
