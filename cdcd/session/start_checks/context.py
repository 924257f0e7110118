"""The results of the checks of a start so far: each check uses those of the checks before it.

In: the configuration, and the caller.  Out: one `StartContext`, filled by the checks in their order.
Must not: decide anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cdcd.config import Config
from cdcd.errors import OwnedByAnother
from cdcd.findings import Finding
from cdcd.model import Progress, Timelines
from cdcd.recovery.start_decision import Resume, Snapshot
from cdcd.registry.confluent import Registry
from cdcd.schema.policy import Policy
from cdcd.session.snapshot_copy import copied_table
from cdcd.session.start_checks.schema_dry_run import Report, unreported
from cdcd.sink.schemas import SchemaTopic
from cdcd.sink.settings import SinkSettings
from cdcd.sink.topic_identity import TopicIdentities
from cdcd.sink.topic_ownership import TopicOwnership
from cdcd.sink.topics import Topics
from cdcd.snapshot.units import CopiedTable
from cdcd.source.connection import connect_sql
from cdcd.source.identity import ServerIdentity
from cdcd.source.locks import set_lock_timeout
from cdcd.source.publication_catalog import PublishedTable
from cdcd.source.settings import SourceSettings
from cdcd.source.slot import SlotState

PEEK_TIMEOUT_S = 2.0
"""How long a check waits for an undecided Kafka transaction: the markers of a commit take a moment."""
Compare = Callable[[TopicIdentities, bool, Any], list[Finding]]
"""Compares the publications with the record of the topics; `True`: all tables are copied again."""


@dataclass(slots=True)
class StartContext:
    """The caller, and the results of the checks so far.

    `may_run`: a daemon may be running, and may hold the slot. `registry`: None without a registry to ask. `is_first`:
    this is the first session of the process; later sessions skip the expensive checks, which succeeded then.
    """

    config: Config
    source: SourceSettings
    open_sink: Callable[[], tuple[SinkSettings, Topics, TopicOwnership]]
    registry: Registry | None
    compare: Compare
    may_run: bool
    lock_timeout_ms: int
    create_slot: bool
    report: Report = unreported
    is_first: bool = True
    is_snapshot_due: bool = True
    """With `snapshot.mode: always`: the process has yet to begin its snapshot."""
    server: ServerIdentity | None = None
    sink: SinkSettings | None = None
    topics: Topics | None = None
    ownership: TopicOwnership | None = None
    metadata: Any = None
    slot: SlotState | None = None
    stored: Progress | None = None
    timelines: Timelines | None = None
    verdict: Resume | Snapshot | None = None
    left: frozenset[int] = frozenset()
    """The tables that the start copies of an interrupted snapshot."""
    drops_ahead: bool = False
    """A new snapshot drops a slot that another consumer has advanced."""
    identities: TopicIdentities | None = None
    tables: list[PublishedTable] | None = None
    schemas: Registry | SchemaTopic | None = None
    is_transaction_known: bool = False
    shared: OwnedByAnother | None = None
    text_columns: list[Any] = field(default_factory=list)
    _connection: Any = None

    def sql(self) -> Any:
        """Return the one connection of all checks, so that all compare one server (F59). Raises Source errors."""
        if self._connection is None:
            self._connection = connect_sql(self.source)
            set_lock_timeout(self._connection, self.lock_timeout_ms)
        return self._connection

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @property
    def copied(self) -> list[CopiedTable]:
        """The published tables that a first start copies, with the columns that it reads."""
        policies = self.config.format.policies()
        tables = (copied_table(table, policies) for table in self.tables or ())
        return self.config.snapshot.selection().choose(tables)

    @property
    def is_anew(self) -> bool:
        """Whether all tables are to be copied; True also while that is not known."""
        return self.config.snapshot.copies_tables and not isinstance(self.verdict, Resume)

    @property
    def is_written_at_once(self) -> bool:
        """Whether a start makes the plan of each table before it streams: for the copy, or to mark a gap."""
        return self.is_anew or (self.stored is not None and self.stored.gap is not None)

    def policy_of(self, table: str) -> Policy:
        """Return the policy that the configuration has for `schema.table`."""
        return self.config.format.policies().table(table)
