"""The state that outlives a session, apart from the progress record.

Invariant: the sessions of a process come one after the other, so one of them at most uses it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cdcd.monitoring.publication_monitor import PublicationMonitor
from cdcd.monitoring.status import Status
from cdcd.registry.confluent import Registry
from cdcd.session.server_crashes import ServerCrashes
from cdcd.session.snapshot_commands import SnapshotCommands
from cdcd.session.stale_tables import StaleTables
from cdcd.sink.limits import Limits
from cdcd.sink.schemas import SchemaTopic

__all__ = ["ProcessState"]


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The state of a process that its sessions share.

    `schemas`, whose ids remain valid while a registry is down (F55); `limits`, the sizes that brokers have refused
    (F65); `stale`, the tables rewritten during earlier snapshots; `crashes`, the server's crashes at one position;
    `ended_gaps`, the tables that the new snapshot does not copy, and whose markers say so by an end.
    """

    status: Status
    schemas: Registry | SchemaTopic
    publications: PublicationMonitor
    commands: SnapshotCommands
    limits: Limits = field(default_factory=Limits)
    stale: StaleTables = field(default_factory=StaleTables)
    crashes: ServerCrashes = field(default_factory=ServerCrashes)
    ended_gaps: set[int] = field(default_factory=set)
