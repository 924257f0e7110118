"""The parts that the work of one session shares.

Invariant: a session is one producer epoch and one walsender connection (F9, F27); the next session uses none of its
parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cdcd.avro.transaction import TransactionContext
from cdcd.config import Config
from cdcd.model import TransactionInfo
from cdcd.monitoring.status import Status
from cdcd.pipeline.plans import Plans
from cdcd.pipeline.writer import Writer
from cdcd.session.clients import Clients
from cdcd.snapshot.reports import TableReports

__all__ = ["SessionParts"]


@dataclass(frozen=True, slots=True)
class SessionParts:
    """The parts of one session, whose writer is open."""

    config: Config
    clients: Clients
    plans: Plans
    writer: Writer
    status: Status
    reports: TableReports
    new_context: Callable[[TransactionInfo], TransactionContext]
