"""What the checks of a start have found so far: each uses what the ones before it have found.

In: the configuration, and who asks.  Out: one `StartContext`, filled by the checks in their order.
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
from cdcd.session.start_checks.schema_dry_run import Report, unreported
from cdcd.sink.schemas import SchemaTopic
from cdcd.sink.settings import SinkSettings
from cdcd.sink.topic_identity import TopicIdentities
from cdcd.sink.topic_ownership import TopicOwnership
from cdcd.sink.topics import Topics
from cdcd.source.connection import connect_sql
from cdcd.source.identity import ServerIdentity
from cdcd.source.locks import set_lock_timeout
from cdcd.source.publication_catalog import PublishedTable
from cdcd.source.settings import SourceSettings
from cdcd.source.slot import SlotState

PATIENCE_S = 2.0
"""How long an undecided Kafka transaction is waited for: a commit's markers take a moment."""


CORRECT_FIRST = "correct this first, then run `cdcd check` again"


Compare = Callable[[TopicIdentities, bool, Any], list[Finding]]
"""What the publications have become since the record of the topics; `True`: all is copied again."""


@dataclass(slots=True)
class StartContext:
    """Who asks, and what the looks have found so far.

    `may_run`: a daemon may be running; that it holds the slot is no complaint. `registry`: None where there is none
    to ask. `is_first`: of this process's sessions; what costs much and was right then is not asked again.
    """

    config: Config
    source: SourceSettings
    open_sink: Callable[[], tuple[SinkSettings, Topics, TopicOwnership]]
    registry: Registry | None
    compare: Compare
    may_run: bool
    lock_patience_ms: int
    create_slot: bool
    report: Report = unreported
    is_first: bool = True
    server: ServerIdentity | None = None
    sink: SinkSettings | None = None
    topics: Topics | None = None
    ownership: TopicOwnership | None = None
    metadata: Any = None
    slot: SlotState | None = None
    stored: Progress | None = None
    timelines: Timelines | None = None
    verdict: Resume | Snapshot | None = None
    identities: TopicIdentities | None = None
    tables: list[PublishedTable] | None = None
    schemas: Registry | SchemaTopic | None = None
    is_transaction_known: bool = False
    shared: OwnedByAnother | None = None
    text_columns: list[Any] = field(default_factory=list)
    _connection: Any = None

    def sql(self) -> Any:
        """Return the one connection of all looks: what is compared is of one server (F59). Raises Source errors."""
        if self._connection is None:
            self._connection = connect_sql(self.source)
            set_lock_timeout(self._connection, self.lock_patience_ms)
        return self._connection

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @property
    def is_anew(self) -> bool:
        """Whether all tables are to be copied; also where that could not be found out."""
        return self.config.snapshot.mode == "initial" and not isinstance(self.verdict, Resume)

    @property
    def is_written_at_once(self) -> bool:
        """Whether a start makes the plan of each table before it streams: for the copy, or to mark a gap."""
        return self.is_anew or (self.stored is not None and self.stored.gap is not None)

    def policy_of(self, table: str) -> Policy:
        """What the configuration says of `schema.table`."""
        return self.config.format.policies().table(table)
