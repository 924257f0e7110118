"""The clients of one session, created in one place, and created again when their files have changed.

In: the configuration; `limits` and `schemas` of the process.  Out: sink, topics, ownership, schemas, catalog.
Invariant: all clients of Kafka have the same settings. The sink and the topics share one `TopicOwnership` (F80). No
client connects before its first use.
Must not: decide when a client is opened or closed.
"""

from __future__ import annotations

from collections.abc import Iterable

from cdcd.config import Config
from cdcd.registry.confluent import Registry
from cdcd.session.start_checks.topics import ownership_of
from cdcd.sink.kafka_sink import KafkaSink
from cdcd.sink.leaders import partitions_without_leader
from cdcd.sink.limits import Limits
from cdcd.sink.schemas import SchemaTopic
from cdcd.sink.settings import SinkSettings
from cdcd.sink.topic_identity import TopicIdentities
from cdcd.sink.topics import Topics
from cdcd.source.catalog import Catalog
from cdcd.waits import Blocker


class Clients:
    """`limits`: sizes that brokers have refused (F65). `schemas`: the registry, or the schema topic in its place."""

    def __init__(self, config: Config, limits: Limits, schemas: Registry | SchemaTopic) -> None:
        self._config = config
        self.sink_settings: SinkSettings = config.sink_settings()
        self.sink = KafkaSink(self.sink_settings, limits)
        self.topics = Topics(self.sink_settings, config.topic_settings(), limits)
        self.ownership = ownership_of(config, self.sink_settings)
        self.sink.ownership = self.topics.ownership = self.ownership
        self.schemas = schemas
        self.catalog = Catalog(config.source_settings())

    @property
    def schema_topic(self) -> SchemaTopic | None:
        """The topic that stores the schemas, None with a registry."""
        return self.schemas if isinstance(self.schemas, SchemaTopic) else None

    @property
    def is_exactly_once(self) -> bool:
        """Whether records are written in Kafka transactions."""
        return self.sink_settings.is_exactly_once

    def set_identities(self, identities: TopicIdentities) -> None:
        """Set the topic identities that the records depend on from now on."""
        self.sink.identities = self.topics.identities = identities

    def renew(self) -> None:
        """Create the Kafka clients again, between two groups: their secrets or certificates have changed."""
        self.sink_settings = settings = self._config.sink_settings()
        self.sink.renew(settings)
        self.topics.renew(settings)
        self.ownership.renew(settings)
        if self.schema_topic is not None:
            self.schema_topic.renew(settings)

    def without_leader(self, topics: Iterable[str]) -> tuple[Blocker, ...]:
        """Return the partitions of these topics that have no leader now. Blocking."""
        return partitions_without_leader(self.sink_settings, list(topics))
