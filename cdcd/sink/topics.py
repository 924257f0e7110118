"""Ensure that the topics of a sink exist, and detect deleted, recreated and changed ones.

In: topic names.  Out: the number of partitions of each, over which keys are hashed (F66).
Invariant: the broker never creates a topic automatically, with replicas and retention that nobody chose (F67); an
existing topic is used as it is and never altered.
Must not: delete or alter a topic.  Every method here blocks and belongs in a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from confluent_kafka import TopicPartition
from confluent_kafka.admin import ClusterMetadata, NewTopic, OffsetSpec

from cdcd.errors import TopicMismatch, TopicMissing
from cdcd.sink.limits import Limits
from cdcd.sink.listed_offset import listed_offset, listed_offsets
from cdcd.sink.settings import SinkSettings, TopicSettings
from cdcd.sink.topic_admin import TopicAdmin
from cdcd.sink.topic_checks import UNUSED_PARTITIONS, TopicChecks
from cdcd.sink.topic_configs import forgets, retention_error
from cdcd.sink.topic_identity import RESOLUTION_HINT, TopicIdentities, next_turn
from cdcd.sink.topic_ownership import TopicOwnership

__all__ = ["DEAD_LETTER_PROPERTIES", "PROGRESS_PROPERTIES", "SCHEMA_PROPERTIES", "Topics"]

_LOG = logging.getLogger("cdcd.sink.topics")
_DESCRIBED_IN_A_LOOK = 20
"""The client never frees the id of a topic that it has described: about 100 bytes each time."""

PROGRESS_PROPERTIES: Mapping[str, str] = {
    "cleanup.policy": "compact",
    # Readers cut all topics at a progress record's offsets, so recent progress records have to remain.
    "min.compaction.lag.ms": str(7 * 24 * 3600 * 1000),
}
SCHEMA_PROPERTIES: Mapping[str, str] = {"cleanup.policy": "compact"}
# Dead letters remain until an operator has processed them.
DEAD_LETTER_PROPERTIES: Mapping[str, str] = {"cleanup.policy": "delete", "retention.ms": "-1"}


class Topics:
    """The topics of one sink. Errors: SinkUnavailable, SinkAuthorization, TopicMissing, TopicMismatch."""

    def __init__(
        self, settings: SinkSettings, topic_settings: TopicSettings, limits: Limits | None = None
    ) -> None:
        self._cluster = TopicAdmin(settings, topic_settings)
        self.identities: TopicIdentities | None = None
        """The stored identities, which `ensure` and `verify` compare; None: no comparison."""
        self.ownership: TopicOwnership | None = None
        """Checked before a topic is created or first written to; None: no check."""
        self._limits = Limits() if limits is None else limits
        self._described_last = ""

    def renew(self, settings: SinkSettings) -> None:
        """Use these settings from now on. A call in progress continues with its client."""
        self._cluster.renew(settings)

    @property
    def checks(self) -> TopicChecks:
        """The checks of topics before a start, which change nothing."""
        return TopicChecks(self._cluster, self.identities)

    def ensure(self, names: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions by topic; create missing topics when that is allowed."""
        wanted = {name: self._cluster.new(name) for name in names}
        if self.identities is None:
            return self._cluster.ensure(wanted)
        known = self.identities.known(wanted)
        if self.ownership is not None and (new := wanted.keys() - known):
            self.ownership.refuse_owned(new)
        self.identities.refuse_missing(known - self._cluster.found_at_last(known).keys())
        described = self._cluster.described(self._cluster.ensure(wanted))
        for name, now in described.items():
            self.identities.take(name, now)
        # Keys are hashed over the stored number: partitions may have been added since the topic was found (F66).
        return {name: now.partitions for name, now in described.items()}

    def ensure_new(self, names: Iterable[str]) -> dict[str, int]:
        """Do the same as `ensure` for the topics that have no records yet."""
        names = list(names)
        known = set[str]() if self.identities is None else self.identities.known(names)
        return self.ensure(name for name in names if name not in known)

    def ensure_progress(self, name: str) -> None:
        """Ensure that the progress topic exists, with the one partition that orders its records."""
        self._ensure_single(self._cluster.new_single(name, PROGRESS_PROPERTIES))
        self._refuse_forgetting(name)

    def ensure_schemas(self, name: str) -> None:
        """Ensure that the schema topic exists, with the one partition that orders its records."""
        self._ensure_single(self._cluster.new_single(name, SCHEMA_PROPERTIES))
        self._refuse_forgetting(name)

    def ensure_dead_letters(self, name: str) -> None:
        """Ensure that the topic of dead letters exists, with the one partition that orders them."""
        self._ensure_single(self._cluster.new_single(name, DEAD_LETTER_PROPERTIES))

    def _ensure_single(self, topic: NewTopic) -> None:
        """Ensure that a topic exists of which cdcd uses only the first partition.

        A topic with more partitions is accepted: Kafka cannot remove partitions, so a halt would have no resolution.
        """
        partitions = self._cluster.ensure({topic.topic: topic})[topic.topic]
        if partitions != 1:
            _LOG.warning("topic %s %s", topic.topic, UNUSED_PARTITIONS.format(partitions=partitions))

    def _refuse_forgetting(self, name: str) -> None:
        why = forgets(self._cluster.configuration(name))
        if why:  # F67: without its records the next start looks like a first start
            raise retention_error(name, why)

    def partitions(self, names: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions of the existing topics in `names`."""
        return self._cluster.partitions(names)

    def cluster_metadata(self) -> ClusterMetadata:
        """Return the metadata of the brokers and their topics. Raises SinkUnavailable, SinkAuthorization."""
        return self._cluster.metadata()

    def exists(self, name: str) -> bool:
        """Return whether a topic exists. Raises SinkUnavailable, SinkAuthorization if it may not be described."""
        return self._cluster.exists(name)

    def has_records(self, name: str) -> bool:
        """Whether the topic ever had a record. Raises SinkUnavailable, TopicMissing, SinkAuthorization."""
        partitions = [TopicPartition(name, number) for number in range(self.partitions([name]).get(name, 0))]
        asked = self._cluster.client.list_offsets(
            dict.fromkeys(partitions, OffsetSpec.latest()), request_timeout=self._cluster.timeout_s
        )
        doing = "looking up the end of a topic"
        return any(listed_offset(future, doing, name) > 0 for future in asked.values())

    def stable_offsets(self, places: Collection[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the last stable offsets of partitions: readers of committed records get what is below them.

        Raises SinkUnavailable, TopicMissing, SinkAuthorization.
        """
        doing = "looking up the last stable offset of a partition"
        cluster = self._cluster
        latest = OffsetSpec.latest()
        return listed_offsets(cluster.client, places, latest, doing, cluster.timeout_s, is_committed=True)

    def verify(self, expected: Mapping[str, int]) -> None:
        """Raise TopicMissing, TopicReplaced or TopicMismatch when a topic has changed (F66).

        Each call checks that all topics exist with their partitions; it checks the ids of some of them in turn.
        """
        found = self._cluster.found_at_last(expected)
        for name, partitions in expected.items():
            if name not in found:
                raise TopicMissing(
                    "the topic was deleted: readers have lost its records", hint=RESOLUTION_HINT, topic=name
                )
            if found[name] != partitions:
                raise TopicMismatch(
                    f"the topic has {found[name]} partitions, but had {partitions} when its records were written",
                    hint=f"a new number of partitions breaks the order per key: {RESOLUTION_HINT}",
                    topic=name,
                )
        if self.identities is not None:
            turn = next_turn(expected, self._described_last, _DESCRIBED_IN_A_LOOK)
            self._described_last = max(turn, default="")
            for name, now in self._cluster.described(turn).items():
                self.identities.check(name, now)
        self.read_limits()

    def read_limits(self) -> None:
        """Read the limits of the topics where a broker has refused a batch; often there is none (F65)."""
        if self._limits:
            self._limits.read({name: self._limit_of(name) for name in list(self._limits.known)})

    def _limit_of(self, name: str) -> int | None:
        """Return the topic's max.message.bytes, None where the configuration may not be read."""
        try:
            limit = self._cluster.configuration(name).get("max.message.bytes")
        except TopicMissing:
            return None  # the next write to the topic reports the error
        return None if limit is None else int(limit)
