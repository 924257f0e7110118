"""Check before a start whether cdcd can use its topics, without creating or changing anything.

In: the cluster's metadata, the names of the topics.  Out: findings.
Invariant: a failure here is the error that the start itself would raise.
Must not: create, delete or alter a topic.  Every method here blocks and belongs in a thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ClusterMetadata, NewTopic

from cdcd.errors import SinkError
from cdcd.findings import Finding, failure
from cdcd.sink.acls import check_acls
from cdcd.sink.error_map import error_of, translate
from cdcd.sink.topic_admin import TopicAdmin, collisions, is_missing, is_there
from cdcd.sink.topic_configs import broker_configuration, check_durability, check_retention
from cdcd.sink.topic_identity import TopicIdentities

__all__ = ["UNUSED_PARTITIONS", "TopicChecks"]

UNUSED_PARTITIONS = "has {partitions} partitions; cdcd uses the first, and the others remain empty"
_SEE_ACLS = "grant the principal Describe and Write on the topics (kafka-acls --list shows the ACLs)"


class TopicChecks:
    """The checks of topics, by the metadata that `Topics.cluster_metadata` returns."""

    def __init__(self, cluster: TopicAdmin, identities: TopicIdentities | None) -> None:
        self._cluster = cluster
        self._identities = identities

    def topics(
        self,
        metadata: ClusterMetadata,
        names: Iterable[str],
        own: Mapping[str, Mapping[str, str]],
        *,
        keyless: Iterable[str] = (),
        describes: bool = True,
    ) -> list[Finding]:
        """Return findings on whether a write to these topics would fail, without creating or changing anything.

        `metadata` comes from `Topics.cluster_metadata`. `own` are the topics of cdcd's own records, with one
        partition, and their settings; `keyless` are the names whose records have no key. `describes`: also check
        whether a topic that has held records was recreated, which costs about 100 bytes of memory each time.
        """
        wanted = {name: self._cluster.new(name) for name in names}
        singles = {name: self._cluster.new_single(name, properties) for name, properties in own.items()}
        refusals = self._would_refuse(metadata, [*wanted.values(), *singles.values()])
        missing = {name for name in (*wanted, *singles) if not is_there(metadata, name)}
        changed = self._changed(metadata, wanted, describes=describes)
        findings = [
            changed.get(name) or self._check_topic(metadata, new, refusals, missing)
            for name, new in wanted.items()
        ]
        findings += collisions(name for name in wanted if not is_there(metadata, name))
        findings += [self._check_single(metadata, new, refusals, missing) for new in singles.values()]
        findings += self._check_replicas(len(metadata.brokers), metadata, [*wanted, *singles])
        lasting = [name for name, properties in own.items() if properties["cleanup.policy"] == "compact"]
        return [*findings, *self._check_retention(metadata, lasting, keyless)]

    def longest_transaction_ms(self, metadata: ClusterMetadata) -> int | None:
        """Return a broker's transaction.max.timeout.ms, None where it cannot be read. Raises Sink errors."""
        broker = next(iter(metadata.brokers), None)
        if broker is None:
            return None
        found = broker_configuration(self._cluster.client, broker, self._cluster.timeout_s)
        limit = found.get("transaction.max.timeout.ms")
        return None if limit is None else int(limit)

    def durability(self, metadata: ClusterMetadata, names: Iterable[str]) -> list[Finding]:
        """Return warnings for topics whose acknowledged records may be lost with a broker."""
        there = {
            name: min((len(one.replicas) for one in metadata.topics[name].partitions.values()), default=0)
            for name in names
            if is_there(metadata, name)
        }
        try:
            return check_durability(self._cluster.client, there, self._cluster.timeout_s)
        except SinkError as error:
            hint = error.advice or "grant DescribeConfigs on the topics"
            message = f"the configuration of the topics cannot be read: {error.without_hint}"
            return [Finding("warn", "sink.topics", message, hint)]

    def acls(self, metadata: ClusterMetadata, names: Iterable[str]) -> list[Finding]:
        """Return findings for existing topics that the principal may not write to."""
        there = [name for name in names if is_there(metadata, name)]
        try:
            return check_acls(self._cluster.client, there, self._cluster.timeout_s)
        except SinkError as error:
            message = f"the ACLs of the topics cannot be read: {error.without_hint}"
            return [Finding("warn", "sink.topics", message, _SEE_ACLS)]

    def _check_replicas(self, brokers: int, metadata: ClusterMetadata, names: list[str]) -> list[Finding]:
        """Return warnings about the replicas of new topics; for a missing topic the broker itself refuses."""
        wanted = self._cluster.settings.replication_factor
        if wanted > brokers and all(is_there(metadata, name) for name in names):
            hint = f"set sink.topics.replication_factor to {brokers} or less, or add brokers"
            message = f"new topics get {wanted} replicas, but the cluster has only {brokers} brokers"
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
        known = set() if self._identities is None else self._identities.known(names)
        changed = {}
        there = {name for name in known if is_there(metadata, name)}
        described = self._cluster.described(sorted(there)) if describes else {}
        for name in sorted(known):
            assert self._identities is not None
            try:
                if name not in there:
                    self._identities.refuse_missing([name])
                elif name in described:
                    self._identities.check(name, described[name])
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
        if topic is not None and not is_missing(topic.error):
            return failure(subject, translate(topic.error, "looking up a topic", topic=name))
        partitions = _partitions(new.num_partitions)
        if not self._cluster.settings.create:
            message = "the topic does not exist and sink.topics.create is off"
            not_made = self._cluster.not_made(sorted(missing))
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
            message = UNUSED_PARTITIONS.format(partitions=len(topic.partitions))
            return Finding("warn", f"topic {name}", message, "no action is needed; one partition is enough")
        return self._check_topic(metadata, new, refusals, missing)

    def _check_retention(
        self, metadata: ClusterMetadata, lasting: Iterable[str], keyless: Iterable[str]
    ) -> list[Finding]:
        compacts = "compact" in self._cluster.settings.properties.get("cleanup.policy", "")
        keyless = list(keyless)
        made = [name for name in keyless if compacts and not is_there(metadata, name)]
        return check_retention(
            self._cluster.client,
            [name for name in lasting if is_there(metadata, name)],
            [name for name in keyless if is_there(metadata, name)],
            made,
            self._cluster.timeout_s,
        )

    def _would_refuse(self, metadata: ClusterMetadata, topics: list[NewTopic]) -> dict[str, KafkaError]:
        """Return, by name, why the cluster would refuse to create a missing topic."""
        missing = [topic for topic in topics if not is_there(metadata, topic.topic)]
        if not missing or not self._cluster.settings.create:
            return {}
        timeout_s = self._cluster.timeout_s
        futures = self._cluster.client.create_topics(missing, validate_only=True, request_timeout=timeout_s)
        refusals = {}
        for name, future in futures.items():
            try:
                future.result()
            except KafkaException as failed:
                error = error_of(failed)
                if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:  # created since `metadata`
                    refusals[name] = error
        return refusals


def _partitions(number: int) -> str:
    return "1 partition" if number == 1 else f"{number} partitions"
