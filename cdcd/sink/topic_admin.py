"""Look up and create topics on the cluster.

In: topic names.  Out: their partitions, ids and configuration; `NewTopic`s with the settings of the sink.
Invariant: a topic that one broker does not list yet is looked up again before it counts as missing.
Must not: delete or alter a topic.  Every method here blocks and belongs in a thread.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic

from cdcd.errors import SinkError, SinkUnavailable, TopicMissing
from cdcd.findings import Finding, refusal
from cdcd.sink.admin import Admin
from cdcd.sink.error_map import error_of, kafka_errors, translate
from cdcd.sink.hints import COLLISION_HINT
from cdcd.sink.settings import SinkSettings, TopicSettings
from cdcd.sink.topic_configs import configurations
from cdcd.sink.topic_identity import TopicIdentity

__all__ = ["TopicAdmin", "collisions", "is_missing", "is_there"]

_LOOK_AGAIN_S = 0.05
_FIRST_LOOK_AGAIN_S = 0.002
"""A new topic appears at a broker after a few milliseconds, and a table's first row waits for that."""
_HEARD_OF_WITHIN_S = 5.0
"""A new topic may appear at one broker later than at another, which until then reports that it does not exist."""


class TopicAdmin:
    """The topics of the cluster. Errors: SinkUnavailable, SinkAuthorization, TopicMissing."""

    def __init__(self, settings: SinkSettings, topic_settings: TopicSettings) -> None:
        self.settings = topic_settings
        self.renew(settings)

    def renew(self, settings: SinkSettings) -> None:
        """Use these settings from now on. A call in progress continues with its client."""
        self._admin = Admin(settings)
        self._settings = settings

    @property
    def client(self) -> AdminClient:
        """The admin client of librdkafka."""
        return self._admin.client

    @property
    def timeout_s(self) -> float:
        """The timeout of a request."""
        return self._settings.operation_timeout_s

    def metadata(self) -> ClusterMetadata:
        """Return the metadata of the brokers and their topics. Raises SinkUnavailable, SinkAuthorization."""
        doing = "querying the brokers' topics"
        return self._admin.metadata(None, doing, servers=self._settings.bootstrap_servers)

    def partitions(self, names: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions of the existing topics in `names`."""
        metadata = self.metadata()
        found = {}
        for name in names:
            topic = metadata.topics.get(name)
            if topic is None or is_missing(topic.error):
                continue
            if topic.error is not None:
                raise translate(topic.error, "looking up a topic", topic=name)
            found[name] = len(topic.partitions)
        return found

    def exists(self, name: str) -> bool:
        """Return whether a topic exists. Raises SinkAuthorization if the principal may not describe it.

        The list of all topics leaves out such a topic; the answer about it alone names the reason.
        """
        return name in self.partitions([name]) or bool(self._described_once([name], is_last=False))

    def found_at_last(self, names: Collection[str]) -> dict[str, int]:
        """Return the number of partitions of existing topics; wait for a topic that a broker does not list yet."""
        if not names:
            return {}
        deadline = time.monotonic() + _HEARD_OF_WITHIN_S
        while len(found := self.partitions(names)) < len(names) and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN_S)
        return found

    def described(self, names: Iterable[str]) -> dict[str, TopicIdentity]:
        """Return the current identities of topics that were just found. Raises TopicMissing and other Sink errors."""
        found: dict[str, TopicIdentity] = {}
        deadline = time.monotonic() + _HEARD_OF_WITHIN_S
        missing = list(names)
        while missing:
            found |= self._described_once(missing, is_last=time.monotonic() > deadline)
            if missing := [name for name in missing if name not in found]:
                time.sleep(_LOOK_AGAIN_S)
        return found

    def _described_once(self, names: list[str], *, is_last: bool) -> dict[str, TopicIdentity]:
        """Return the identities of the topics that the broker knows; if `is_last`, raise TopicMissing for others."""
        found = {}
        timeout_s = self.timeout_s
        asked = self.client.describe_topics(TopicCollection(names), request_timeout=timeout_s)
        for name, future in asked.items():
            try:
                with kafka_errors("describing a topic", topic=name):
                    topic = future.result()
            except TopicMissing:
                if is_last:
                    raise
                continue
            found[name] = TopicIdentity(str(topic.topic_id), len(topic.partitions))
        return found

    def configuration(self, name: str) -> dict[str, str]:
        """Return the configuration of an existing topic, empty where DescribeConfigs is not granted."""
        deadline = time.monotonic() + _HEARD_OF_WITHIN_S
        while True:
            try:
                found = configurations(self.client, [name], self.timeout_s)
                return found.get(name, {})
            except TopicMissing:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_AGAIN_S)

    def new(self, name: str) -> NewTopic:
        """Return the topic of a table, as it would be created."""
        return NewTopic(
            name,
            num_partitions=self.settings.partitions,
            replication_factor=self.settings.replication_factor,
            config=dict(self.settings.properties),
        )

    def new_single(self, name: str, properties: Mapping[str, str]) -> NewTopic:
        """Return a topic of one partition with these properties, as it would be created."""
        return NewTopic(
            name,
            num_partitions=1,
            replication_factor=self.settings.replication_factor,
            config=dict(properties),
        )

    def ensure(self, wanted: Mapping[str, NewTopic]) -> dict[str, int]:
        """Return the number of partitions by topic; create missing topics when that is allowed."""
        found = self.partitions(wanted)
        missing = [topic for name, topic in wanted.items() if name not in found]
        if not missing:
            return found
        if not self.settings.create:
            raise self.not_made([topic.topic for topic in missing])
        self._create(missing)
        return self._await(wanted)

    def not_made(self, names: Collection[str]) -> TopicMissing:
        """Return the error of missing topics that cdcd may not create."""
        return TopicMissing(
            f"{len(names)} topics are missing and sink.topics.create is off: {', '.join(names)}",
            hint=f"create them with {self.settings.partitions} partitions each, cdcd's own topics with 1 and "
            "compaction, then `cdcd resume`; or set sink.topics.create: true and restart cdcd",
        )

    def _create(self, missing: list[NewTopic]) -> None:
        # Kafka creates both of two colliding topics in one request; in two requests it refuses the second.
        error = refusal(collisions(topic.topic for topic in missing))
        if error is not None:
            raise error
        timeout_s = self.timeout_s
        futures = self.client.create_topics(missing, operation_timeout=timeout_s, request_timeout=timeout_s)
        for name, future in futures.items():
            try:
                future.result()
            except KafkaException as failure:
                error = error_of(failure)
                if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise translate(error, "creating a topic", topic=name) from failure

    def _await(self, wanted: Mapping[str, NewTopic]) -> dict[str, int]:
        """Wait until the brokers list the created topics."""
        deadline = time.monotonic() + self.timeout_s
        pause_s = _FIRST_LOOK_AGAIN_S
        while True:
            found = self.partitions(wanted)
            absent = sorted(wanted.keys() - found.keys())
            if not absent:
                return found
            if time.monotonic() > deadline:
                raise SinkUnavailable(
                    f"the brokers do not list topics that cdcd created: {', '.join(absent)}"
                )
            time.sleep(pause_s)
            pause_s = min(_LOOK_AGAIN_S, 2 * pause_s)


def is_there(metadata: ClusterMetadata, name: str) -> bool:
    """Whether the metadata has the topic."""
    topic = metadata.topics.get(name)
    return topic is not None and topic.error is None


def collisions(names: Iterable[str]) -> list[Finding]:
    """Return findings for missing topics whose names collide: the cluster would create either, but not both."""
    first: dict[str, str] = {}
    findings = []
    for name in names:
        other = first.setdefault(name.replace(".", "_"), name)
        if other != name:
            message = f"the topic cannot be created together with {other}: their names collide"
            error = SinkError(message, hint=COLLISION_HINT, topic=name)
            findings.append(Finding("fail", f"topic {name}", message, COLLISION_HINT, error))
    return findings


def is_missing(error: KafkaError | None) -> bool:
    """Whether the error is that of a topic that does not exist."""
    return error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
