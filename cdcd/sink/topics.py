"""Create topics with their settings, query them, and detect a changed number of partitions.

In: topic names.  Out: the number of partitions of each, over which keys are hashed (F66).
Invariant: the broker never creates a topic automatically, with replicas and retention that nobody chose (F67); an
existing topic is used as it is and never altered.
Must not: delete or alter a topic.  Every method here blocks and belongs in a thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import ClusterMetadata, NewTopic, OffsetSpec

from cdcd.errors import SinkError, SinkUnavailable, TopicMismatch, TopicMissing
from cdcd.findings import Finding, failure, refusal
from cdcd.sink.acls import check_acls
from cdcd.sink.admin import Admin
from cdcd.sink.error_map import error_of, kafka_errors, translate
from cdcd.sink.hints import COLLISION_HINT
from cdcd.sink.limits import Limits
from cdcd.sink.listed_offset import listed_offset
from cdcd.sink.settings import SinkSettings, TopicSettings
from cdcd.sink.topic_configs import (
    broker_configuration,
    check_durability,
    check_retention,
    configurations,
    forgets,
    retention_error,
)
from cdcd.sink.topic_identity import RESOLUTION_HINT, TopicIdentities, TopicIdentity, next_turn
from cdcd.sink.topic_ownership import TopicOwnership

__all__ = ["DEAD_LETTER_PROPERTIES", "PROGRESS_PROPERTIES", "SCHEMA_PROPERTIES", "Topics"]

_LOG = logging.getLogger("cdcd.sink.topics")
_UNUSED = "has {partitions} partitions; cdcd uses the first, and the others remain empty"
_SEE_ACLS = "grant the principal Describe and Write on the topics (kafka-acls --list shows the ACLs)"
_LOOK_AGAIN_S = 0.05
_FIRST_LOOK_AGAIN_S = 0.002
"""A new topic appears at a broker after a few milliseconds, and a table's first row waits for that."""
_DESCRIBED_IN_A_LOOK = 20
"""The client never frees the id of a topic that it has described: about 100 bytes each time."""
_HEARD_OF_WITHIN_S = 5.0
"""A new topic may appear at one broker later than at another, which until then reports that it does not exist."""

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
        self._topics = topic_settings
        self.renew(settings)
        self.identities: TopicIdentities | None = None
        """The stored identities, which `ensure` and `verify` compare; None: no comparison."""
        self.ownership: TopicOwnership | None = None
        """Checked before a topic is created or first written to; None: no check."""
        self._limits = Limits() if limits is None else limits
        self._described_last = ""

    def renew(self, settings: SinkSettings) -> None:
        """Use these settings from now on. A call in progress continues with its client."""
        self._admin = Admin(settings)
        self._settings = settings

    def ensure(self, names: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions by topic; create missing topics when that is allowed."""
        wanted = {name: self._new(name) for name in names}
        if self.identities is None:
            return self._ensure(wanted)
        known = self.identities.known(wanted)
        if self.ownership is not None and (new := wanted.keys() - known):
            self.ownership.refuse_owned(new)
        self.identities.refuse_missing(known - self._found_at_last(known).keys())
        described = self._described(self._ensure(wanted))
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
        self._ensure_single(self._new_single(name, PROGRESS_PROPERTIES))
        self._refuse_forgetting(name)

    def ensure_schemas(self, name: str) -> None:
        """Ensure that the schema topic exists, with the one partition that orders its records."""
        self._ensure_single(self._new_single(name, SCHEMA_PROPERTIES))
        self._refuse_forgetting(name)

    def ensure_dead_letters(self, name: str) -> None:
        """Ensure that the topic of dead letters exists, with the one partition that orders them."""
        self._ensure_single(self._new_single(name, DEAD_LETTER_PROPERTIES))

    def _ensure_single(self, topic: NewTopic) -> None:
        """Ensure that a topic exists of which cdcd uses only the first partition.

        A topic with more partitions is accepted: Kafka cannot remove partitions, so a halt would have no resolution.
        """
        partitions = self._ensure({topic.topic: topic})[topic.topic]
        if partitions != 1:
            _LOG.warning("topic %s %s", topic.topic, _UNUSED.format(partitions=partitions))

    def _refuse_forgetting(self, name: str) -> None:
        why = forgets(self._configuration(name))
        if why:  # F67: without its records the next start looks like a first start
            raise retention_error(name, why)

    def _configuration(self, name: str) -> dict[str, str]:
        """Return the configuration of an existing topic, empty where DescribeConfigs is not granted."""
        deadline = time.monotonic() + _HEARD_OF_WITHIN_S
        while True:
            try:
                found = configurations(self._admin.client, [name], self._settings.operation_timeout_s)
                return found.get(name, {})
            except TopicMissing:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_AGAIN_S)

    def partitions(self, names: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions of the existing topics in `names`."""
        metadata = self._metadata()
        found = {}
        for name in names:
            topic = metadata.topics.get(name)
            if topic is None or _is_missing(topic.error):
                continue
            if topic.error is not None:
                raise translate(topic.error, "looking up a topic", topic=name)
            found[name] = len(topic.partitions)
        return found

    def has_records(self, name: str) -> bool:
        """Whether the topic ever had a record. Raises SinkUnavailable, TopicMissing, SinkAuthorization."""
        partitions = [TopicPartition(name, number) for number in range(self.partitions([name]).get(name, 0))]
        asked = self._admin.client.list_offsets(
            dict.fromkeys(partitions, OffsetSpec.latest()), request_timeout=self._settings.operation_timeout_s
        )
        with kafka_errors("looking up the end of a topic", topic=name):
            return any(listed_offset(future) > 0 for future in asked.values())

    def verify(self, expected: Mapping[str, int]) -> None:
        """Raise TopicMissing, TopicReplaced or TopicMismatch when a topic has changed (F66).

        Each call checks that all topics exist with their partitions; it checks the ids of some of them in turn.
        """
        found = self._found_at_last(expected)
        for name, partitions in expected.items():
            if name not in found:
                raise TopicMissing(
                    "the topic was deleted: readers have lost its records", hint=RESOLUTION_HINT, topic=name
                )
            if found[name] != partitions:
                raise TopicMismatch(
                    f"the topic has {found[name]} partitions, keys were hashed over {partitions}",
                    hint=f"a new number of partitions breaks the order per key: {RESOLUTION_HINT}",
                    topic=name,
                )
        if self.identities is not None:
            turn = next_turn(expected, self._described_last, _DESCRIBED_IN_A_LOOK)
            self._described_last = max(turn, default="")
            for name, now in self._described(turn).items():
                self.identities.check(name, now)
        self.read_limits()

    def read_limits(self) -> None:
        """Read the limits of the topics where a broker has refused a batch; often there is none (F65)."""
        if self._limits:
            self._limits.read({name: self._limit_of(name) for name in list(self._limits.known)})

    def _limit_of(self, name: str) -> int | None:
        """Return the topic's max.message.bytes, None where the configuration may not be read."""
        try:
            limit = self._configuration(name).get("max.message.bytes")
        except TopicMissing:
            return None  # the next write to the topic reports the error
        return None if limit is None else int(limit)

    def cluster_metadata(self) -> ClusterMetadata:
        """Return the metadata of the brokers and their topics. Raises SinkUnavailable, SinkAuthorization."""
        return self._metadata()

    def check(
        self,
        metadata: ClusterMetadata,
        names: Iterable[str],
        own: Mapping[str, Mapping[str, str]],
        *,
        keyless: Iterable[str] = (),
        describes: bool = True,
    ) -> list[Finding]:
        """Return findings on whether a write to these topics would fail, without creating or changing anything.

        `metadata` comes from `cluster_metadata`. `own` are the topics of cdcd's own records, with one partition, and
        their settings; `keyless` are the names whose records have no key. `describes`: also check whether a topic
        that has held records was recreated, which costs memory each time (`_DESCRIBED_IN_A_LOOK`).
        """
        wanted = {name: self._new(name) for name in names}
        singles = {name: self._new_single(name, properties) for name, properties in own.items()}
        refusals = self._would_refuse(metadata, [*wanted.values(), *singles.values()])
        missing = {name for name in (*wanted, *singles) if not _is_there(metadata, name)}
        changed = self._changed(metadata, wanted, describes=describes)
        findings = [
            changed.get(name) or self._check_topic(metadata, new, refusals, missing)
            for name, new in wanted.items()
        ]
        findings += _collisions(name for name in wanted if not _is_there(metadata, name))
        findings += [self._check_single(metadata, new, refusals, missing) for new in singles.values()]
        findings += self._check_replicas(len(metadata.brokers), metadata, [*wanted, *singles])
        lasting = [name for name, properties in own.items() if properties["cleanup.policy"] == "compact"]
        return [*findings, *self._check_retention(metadata, lasting, keyless)]

    def longest_transaction_ms(self, metadata: ClusterMetadata) -> int | None:
        """Return a broker's transaction.max.timeout.ms, None where it cannot be read. Raises Sink errors."""
        broker = next(iter(metadata.brokers), None)
        if broker is None:
            return None
        found = broker_configuration(self._admin.client, broker, self._settings.operation_timeout_s)
        limit = found.get("transaction.max.timeout.ms")
        return None if limit is None else int(limit)

    def check_durability(self, metadata: ClusterMetadata, names: Iterable[str]) -> list[Finding]:
        """Return warnings for topics whose acknowledged records may be lost with a broker."""
        there = {
            name: min((len(one.replicas) for one in metadata.topics[name].partitions.values()), default=0)
            for name in names
            if _is_there(metadata, name)
        }
        try:
            return check_durability(self._admin.client, there, self._settings.operation_timeout_s)
        except SinkError as error:
            hint = error.advice or "grant DescribeConfigs on the topics"
            message = f"the configuration of the topics cannot be read: {error.without_hint}"
            return [Finding("warn", "sink.topics", message, hint)]

    def check_acls(self, metadata: ClusterMetadata, names: Iterable[str]) -> list[Finding]:
        """Return findings for existing topics that the principal may not write to."""
        there = [name for name in names if _is_there(metadata, name)]
        try:
            return check_acls(self._admin.client, there, self._settings.operation_timeout_s)
        except SinkError as error:
            message = f"the ACLs of the topics cannot be read: {error.without_hint}"
            return [Finding("warn", "sink.topics", message, _SEE_ACLS)]

    # --- inside ------------------------------------------------------------------------------------------

    def _found_at_last(self, names: Collection[str]) -> dict[str, int]:
        """Return the number of partitions of existing topics; wait for a topic that a broker does not list yet."""
        if not names:
            return {}
        deadline = time.monotonic() + _HEARD_OF_WITHIN_S
        while len(found := self.partitions(names)) < len(names) and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN_S)
        return found

    def _described(self, names: Iterable[str]) -> dict[str, TopicIdentity]:
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
        timeout_s = self._settings.operation_timeout_s
        asked = self._admin.client.describe_topics(TopicCollection(names), request_timeout=timeout_s)
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

    def _new(self, name: str) -> NewTopic:
        return NewTopic(
            name,
            num_partitions=self._topics.partitions,
            replication_factor=self._topics.replication_factor,
            config=dict(self._topics.properties),
        )

    def _new_single(self, name: str, properties: Mapping[str, str]) -> NewTopic:
        return NewTopic(
            name,
            num_partitions=1,
            replication_factor=self._topics.replication_factor,
            config=dict(properties),
        )

    def _ensure(self, wanted: Mapping[str, NewTopic]) -> dict[str, int]:
        found = self.partitions(wanted)
        missing = [topic for name, topic in wanted.items() if name not in found]
        if not missing:
            return found
        if not self._topics.create:
            raise self._not_made([topic.topic for topic in missing])
        self._create(missing)
        return self._await(wanted)

    def _not_made(self, names: Collection[str]) -> TopicMissing:
        return TopicMissing(
            f"{len(names)} topics are missing and sink.topics.create is off: {', '.join(names)}",
            hint=f"create them with {self._topics.partitions} partitions each, cdcd's own topics compacted with 1, "
            "then `cdcd resume`; or set sink.topics.create: true and restart cdcd",
        )

    def _create(self, missing: list[NewTopic]) -> None:
        # Kafka creates both of two colliding topics in one request; in two requests it refuses the second.
        error = refusal(_collisions(topic.topic for topic in missing))
        if error is not None:
            raise error
        timeout_s = self._settings.operation_timeout_s
        futures = self._admin.client.create_topics(
            missing, operation_timeout=timeout_s, request_timeout=timeout_s
        )
        for name, future in futures.items():
            try:
                future.result()
            except KafkaException as failure:
                error = error_of(failure)
                if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise translate(error, "creating a topic", topic=name) from failure

    def _await(self, wanted: Mapping[str, NewTopic]) -> dict[str, int]:
        """Wait until the brokers list the created topics."""
        deadline = time.monotonic() + self._settings.operation_timeout_s
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

    def _metadata(self) -> ClusterMetadata:
        doing = "querying the brokers' topics"
        return self._admin.metadata(None, doing, servers=self._settings.bootstrap_servers)

    def _check_replicas(self, brokers: int, metadata: ClusterMetadata, names: list[str]) -> list[Finding]:
        """Return warnings about the replicas of new topics; for a missing topic the broker itself refuses."""
        wanted = self._topics.replication_factor
        if wanted > brokers and all(_is_there(metadata, name) for name in names):
            hint = f"set sink.topics.replication_factor to {brokers} or less, or add brokers"
            message = f"new topics get {wanted} replicas, but there are only {brokers} brokers"
            return [Finding("warn", "sink.topics", message, hint)]
        if wanted < 2:
            hint = "set sink.topics.replication_factor: 3 and min.insync.replicas: 2 for durable topics"
            message = "new topics get one replica: the loss of a disk loses their records"
            return [Finding("warn", "sink.topics", message, hint)]
        return []

    def _changed(
        self, metadata: ClusterMetadata, names: Collection[str], *, describes: bool
    ) -> dict[str, Finding]:
        """Return findings, by name, for topics that have changed since they got records (F66, F67)."""
        known = set() if self.identities is None else self.identities.known(names)
        changed = {}
        there = {name for name in known if _is_there(metadata, name)}
        described = self._described(sorted(there)) if describes else {}
        for name in sorted(known):
            assert self.identities is not None
            try:
                if name not in there:
                    self.identities.refuse_missing([name])
                elif name in described:
                    self.identities.check(name, described[name])
            except SinkError as error:
                changed[name] = failure(f"topic {name}", error)
        return changed

    def _check_topic(
        self,
        metadata: ClusterMetadata,
        new: NewTopic,
        refusals: Mapping[str, KafkaError],
        missing: Collection[str],
    ) -> Finding:
        name = new.topic
        subject = f"topic {name}"
        topic = metadata.topics.get(name)
        if topic is not None and topic.error is None:
            return Finding("ok", subject, f"exists, {_partitions(len(topic.partitions))}")
        if topic is not None and not _is_missing(topic.error):
            return failure(subject, translate(topic.error, "looking up a topic", topic=name))
        partitions = _partitions(new.num_partitions)
        if not self._topics.create:
            message = "the topic does not exist and sink.topics.create is off"
            not_made = self._not_made(sorted(missing))
            return Finding("fail", subject, message, not_made.advice, not_made)
        refusal = refusals.get(name)
        if refusal is None:
            return Finding("ok", subject, f"will be created with {partitions}")
        error = translate(refusal, "the topic cannot be created", topic=name)
        return failure(subject, error)

    def _check_single(
        self,
        metadata: ClusterMetadata,
        new: NewTopic,
        refusals: Mapping[str, KafkaError],
        missing: Collection[str],
    ) -> Finding:
        name = new.topic
        topic = metadata.topics.get(name)
        if topic is not None and topic.error is None and len(topic.partitions) != 1:
            message = _UNUSED.format(partitions=len(topic.partitions))
            return Finding("warn", f"topic {name}", message, "no action is needed; one partition is enough")
        return self._check_topic(metadata, new, refusals, missing)

    def _check_retention(
        self, metadata: ClusterMetadata, lasting: Iterable[str], keyless: Iterable[str]
    ) -> list[Finding]:
        compacts = "compact" in self._topics.properties.get("cleanup.policy", "")
        keyless = list(keyless)
        made = [name for name in keyless if compacts and not _is_there(metadata, name)]
        return check_retention(
            self._admin.client,
            [name for name in lasting if _is_there(metadata, name)],
            [name for name in keyless if _is_there(metadata, name)],
            made,
            self._settings.operation_timeout_s,
        )

    def _would_refuse(self, metadata: ClusterMetadata, topics: list[NewTopic]) -> dict[str, KafkaError]:
        """Return, by name, why the cluster would refuse to create a missing topic."""
        missing = [topic for topic in topics if not _is_there(metadata, topic.topic)]
        if not missing or not self._topics.create:
            return {}
        timeout_s = self._settings.operation_timeout_s
        futures = self._admin.client.create_topics(missing, validate_only=True, request_timeout=timeout_s)
        refusals = {}
        for name, future in futures.items():
            try:
                future.result()
            except KafkaException as failed:
                error = error_of(failed)
                if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:  # created since `metadata`
                    refusals[name] = error
        return refusals


def _is_there(metadata: ClusterMetadata, name: str) -> bool:
    topic = metadata.topics.get(name)
    return topic is not None and topic.error is None


def _collisions(names: Iterable[str]) -> list[Finding]:
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


def _partitions(number: int) -> str:
    return "1 partition" if number == 1 else f"{number} partitions"


def _is_missing(error: KafkaError | None) -> bool:
    return error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
