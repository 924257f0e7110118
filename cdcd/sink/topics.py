"""Topics: made with their settings, looked up, and watched for a changed number of partitions.

In: topic names.  Out: the number of partitions of each, which keys are hashed over (F66).
Invariant: a topic is never left to the broker's automatic creation, whose replicas and retention nobody chose
(F67); a topic that is there already is used as it is and never altered.
Must not: delete or alter a topic.  Everything here blocks and belongs in a thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import ClusterMetadata, NewTopic, OffsetSpec

from cdcd.errors import SinkError, SinkUnavailable, TopicMismatch, TopicMissing
from cdcd.findings import Finding
from cdcd.sink.admin import Admin
from cdcd.sink.claims import Claims
from cdcd.sink.faults import error_of, kafka_errors, translate
from cdcd.sink.hints import COLLISION_HINT, hint_for
from cdcd.sink.kept_topics import WAYS_ON, KeptTopic, KeptTopics, next_turn
from cdcd.sink.limits import Limits
from cdcd.sink.settings import SinkSettings, TopicSettings
from cdcd.sink.topic_configs import KEEP_HINT, check_durability, configurations, forgets

__all__ = ["DEAD_LETTER_PROPERTIES", "PROGRESS_PROPERTIES", "SCHEMA_PROPERTIES", "Topics"]

_LOG = logging.getLogger("cdcd.sink.topics")
_UNUSED = "has {partitions} partitions, of which the first is used and the others stay empty"
_LOOK_AGAIN_S = 0.05
_FIRST_LOOK_AGAIN_S = 0.002
"""A broker hears of a topic that was made a few milliseconds later, and a table's first row waits for it."""
_DESCRIBED_IN_A_LOOK = 20
"""The client never lets go of the id of a topic that it has described: about 100 bytes each time."""
_HEARD_OF_WITHIN_S = 5.0
"""A broker may hear of a topic later than the one that was asked first, and says until then that there is none."""

PROGRESS_PROPERTIES: Mapping[str, str] = {
    "cleanup.policy": "compact",
    # Readers cut all topics at a progress record's offsets, so the recent ones have to stay.
    "min.compaction.lag.ms": str(7 * 24 * 3600 * 1000),
}
SCHEMA_PROPERTIES: Mapping[str, str] = {"cleanup.policy": "compact"}
# They stay until somebody has seen to them.
DEAD_LETTER_PROPERTIES: Mapping[str, str] = {"cleanup.policy": "delete", "retention.ms": "-1"}


class Topics:
    """The topics of one sink. Errors: SinkUnavailable, SinkAuthorization, TopicMissing, TopicMismatch."""

    def __init__(
        self, settings: SinkSettings, topic_settings: TopicSettings, limits: Limits | None = None
    ) -> None:
        self._topics = topic_settings
        self.renew(settings)
        self.kept: KeptTopics | None = None
        """What was counted on before, which `ensure` and `verify` compare; None: nothing is compared."""
        self.claims: Claims | None = None
        """Asked before a topic is made or written to for the first time; None: nobody is asked."""
        self._limits = Limits() if limits is None else limits
        self._described_last = ""

    def renew(self, settings: SinkSettings) -> None:
        """Ask with these settings from now on. Who is asking goes on with the client that he has."""
        self._admin = Admin(settings)
        self._settings = settings

    def ensure(self, names: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions by topic, creating what is missing when that is allowed."""
        wanted = {name: self._new(name) for name in names}
        if self.kept is None:
            return self._ensure(wanted)
        known = self.kept.known(wanted)
        if self.claims is not None and (new := wanted.keys() - known):
            self.claims.refuse_owned(new)
        self.kept.refuse_missing(known - self._found_at_last(known).keys())
        described = self._described(self._ensure(wanted))
        for name, now in described.items():
            self.kept.take(name, now)
        # What is kept is what keys are hashed over: a topic may have been widened since it was found (F66).
        return {name: now.partitions for name, now in described.items()}

    def ensure_new(self, names: Iterable[str]) -> dict[str, int]:
        """As `ensure`, of those alone that nothing was written to yet."""
        names = list(names)
        known = set[str]() if self.kept is None else self.kept.known(names)
        return self.ensure(name for name in names if name not in known)

    def ensure_progress(self, name: str) -> None:
        """Make sure that the progress topic is there, with the one partition that orders its records."""
        self._ensure_single(self._new_single(name, PROGRESS_PROPERTIES))
        self._refuse_forgetting(name)

    def ensure_schemas(self, name: str) -> None:
        """Make sure that the schema topic is there, with the one partition that orders its records."""
        self._ensure_single(self._new_single(name, SCHEMA_PROPERTIES))
        self._refuse_forgetting(name)

    def ensure_dead_letters(self, name: str) -> None:
        """Make sure that the topic of dead letters is there, with the one partition that orders them."""
        self._ensure_single(self._new_single(name, DEAD_LETTER_PROPERTIES))

    def _ensure_single(self, topic: NewTopic) -> None:
        """Make sure of a topic of which the first partition is all that is written to and read.

        It may have more: partitions cannot be taken away again, and a halt for them would have no way on.
        """
        partitions = self._ensure({topic.topic: topic})[topic.topic]
        if partitions != 1:
            _LOG.warning("topic %s %s", topic.topic, _UNUSED.format(partitions=partitions))

    def _refuse_forgetting(self, name: str) -> None:
        why = forgets(self._configuration(name))
        if why:  # F67: what is gone here looks like a first start
            raise TopicMismatch(f"the topic forgets what has to stay: {why}", hint=KEEP_HINT, topic=name)

    def _configuration(self, name: str) -> dict[str, str]:
        """Return the configuration of a topic that is there, nothing where it may not be asked for."""
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
        """Return the number of partitions of those topics that exist."""
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
        """Whether anything was ever written to the topic. Raises SinkUnavailable, TopicMissing, SinkAuthorization."""
        partitions = [TopicPartition(name, number) for number in range(self.partitions([name]).get(name, 0))]
        asked = self._admin.client.list_offsets(
            dict.fromkeys(partitions, OffsetSpec.latest()), request_timeout=self._settings.operation_timeout_s
        )
        with kafka_errors("looking up the end of a topic", topic=name):
            return any(future.result().offset > 0 for future in asked.values())

    def verify(self, expected: Mapping[str, int]) -> None:
        """Raise TopicMissing, TopicReplaced or TopicMismatch when a topic is no longer what it was (F66).

        That all are there with their partitions is seen each time; whether one was made again, of some in turn.
        """
        found = self._found_at_last(expected)
        for name, partitions in expected.items():
            if name not in found:
                raise TopicMissing(
                    "the topic is gone: its records are lost to readers", hint=WAYS_ON, topic=name
                )
            if found[name] != partitions:
                raise TopicMismatch(
                    f"the topic has {found[name]} partitions, keys were hashed over {partitions}",
                    hint=f"the order per key breaks where the number changes (F66): {WAYS_ON}",
                    topic=name,
                )
        if self.kept is not None:
            turn = next_turn(expected, self._described_last, _DESCRIBED_IN_A_LOOK)
            self._described_last = max(turn, default="")
            for name, now in self._described(turn).items():
                self.kept.check(name, now)
        self.read_limits()

    def read_limits(self) -> None:
        """Read the limits of those topics of which a broker has refused a batch; often there are none (F65)."""
        if self._limits:
            self._limits.read({name: self._limit_of(name) for name in list(self._limits.known)})

    def _limit_of(self, name: str) -> int | None:
        """Return the topic's max.message.bytes, None where that may not be asked."""
        try:
            limit = self._configuration(name).get("max.message.bytes")
        except TopicMissing:
            return None  # who writes to it meets it as well, and says so
        return None if limit is None else int(limit)

    def check(
        self, names: Iterable[str], own: Mapping[str, Mapping[str, str]] | None = None
    ) -> list[Finding]:
        """Return what would keep cdcd from writing to these topics, without creating or changing anything.

        `own` are those with one partition that cdcd keeps its own records in, with their settings.
        """
        own = own or {}
        try:
            metadata = self._metadata()
        except SinkError as error:
            mend = error.advice or "check sink.bootstrap_servers, the network and the security properties"
            return [Finding("fail", "kafka", str(error), mend)]
        brokers = len(metadata.brokers)
        findings = [Finding("ok", "kafka", f"cluster {metadata.cluster_id} answers, {brokers} brokers")]
        findings += self._check_replicas(brokers)
        names = list(names)
        for name in names:
            findings.append(self._check_topic(metadata, self._new(name)))
        findings += _collisions(name for name in names if name not in metadata.topics)
        for name, properties in own.items():
            findings.append(self._check_single(metadata, self._new_single(name, properties)))
        lasting = [name for name, properties in own.items() if properties["cleanup.policy"] == "compact"]
        findings += self._check_durability(metadata, [*names, *own], lasting)
        return findings

    # --- inside ------------------------------------------------------------------------------------------

    def _found_at_last(self, names: Collection[str]) -> dict[str, int]:
        """Return the number of partitions of those topics that exist, also where one broker has not heard of it."""
        if not names:
            return {}
        deadline = time.monotonic() + _HEARD_OF_WITHIN_S
        while len(found := self.partitions(names)) < len(names) and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN_S)
        return found

    def _described(self, names: Iterable[str]) -> dict[str, KeptTopic]:
        """Return topics that were just found, as they are now. Raises TopicMissing and what asking met."""
        found: dict[str, KeptTopic] = {}
        deadline = time.monotonic() + _HEARD_OF_WITHIN_S
        missing = list(names)
        while missing:
            found |= self._described_once(missing, is_last=time.monotonic() > deadline)
            if missing := [name for name in missing if name not in found]:
                time.sleep(_LOOK_AGAIN_S)
        return found

    def _described_once(self, names: list[str], *, is_last: bool) -> dict[str, KeptTopic]:
        """Return those that the broker knows; the last time, raise TopicMissing for the others."""
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
            found[name] = KeptTopic(str(topic.topic_id), len(topic.partitions))
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
            names = ", ".join(topic.topic for topic in missing)
            raise TopicMissing(
                f"{len(missing)} topics are missing and sink.topics.create is off: {names}",
                hint=f"create them, {self._topics.partitions} partitions each, cdcd's own with 1 and compacted, and "
                "`cdcd resume`; or set sink.topics.create: true and restart cdcd",
            )
        self._create(missing)
        return self._await(wanted)

    def _create(self, missing: list[NewTopic]) -> None:
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
        """Wait until every broker that is asked knows the created topics."""
        deadline = time.monotonic() + self._settings.operation_timeout_s
        pause_s = _FIRST_LOOK_AGAIN_S
        while True:
            found = self.partitions(wanted)
            absent = sorted(wanted.keys() - found.keys())
            if not absent:
                return found
            if time.monotonic() > deadline:
                raise SinkUnavailable(f"created topics do not appear: {', '.join(absent)}")
            time.sleep(pause_s)
            pause_s = min(_LOOK_AGAIN_S, 2 * pause_s)

    def _metadata(self) -> ClusterMetadata:
        doing = "asking the brokers for their topics"
        return self._admin.metadata(None, doing, servers=self._settings.bootstrap_servers)

    def _check_replicas(self, brokers: int) -> list[Finding]:
        wanted = self._topics.replication_factor
        if wanted > brokers:
            mend = f"set sink.topics.replication_factor to {brokers} or less, or add brokers"
            message = f"new topics want {wanted} replicas and there are {brokers} brokers"
            return [Finding("fail" if self._topics.create else "warn", "sink.topics", message, mend)]
        if wanted < 2:
            mend = "set sink.topics.replication_factor: 3 and min.insync.replicas: 2 where it matters"
            return [
                Finding("warn", "sink.topics", "new topics have one replica: a lost disk loses them", mend)
            ]
        return []

    def _check_topic(self, metadata: ClusterMetadata, new: NewTopic) -> Finding:
        subject = f"topic {new.topic}"
        topic = metadata.topics.get(new.topic)
        if topic is not None and topic.error is None:
            return Finding("ok", subject, f"exists, {_partitions(len(topic.partitions))}")
        if topic is not None and not _is_missing(topic.error):
            return Finding("fail", subject, topic.error.str(), "grant Describe and Write on it")
        partitions = _partitions(new.num_partitions)
        if not self._topics.create:
            mend = f"create it with {partitions}, or set sink.topics.create"
            return Finding("fail", subject, "does not exist and sink.topics.create is off", mend)
        refusal = self._would_refuse(new)
        if refusal is not None:
            mend = hint_for(refusal) or "grant Create, or create it yourself"
            return Finding("fail", subject, f"cannot be created: {refusal.str()}", mend)
        return Finding("ok", subject, f"will be created with {partitions}")

    def _check_single(self, metadata: ClusterMetadata, new: NewTopic) -> Finding:
        name = new.topic
        topic = metadata.topics.get(name)
        if topic is not None and topic.error is None and len(topic.partitions) != 1:
            message = _UNUSED.format(partitions=len(topic.partitions))
            return Finding("warn", f"topic {name}", message, "none is needed; one partition would do")
        return self._check_topic(metadata, new)

    def _check_durability(
        self, metadata: ClusterMetadata, names: Iterable[str], lasting: list[str]
    ) -> list[Finding]:
        there = {
            name: min((len(one.replicas) for one in topic.partitions.values()), default=0)
            for name in names
            if (topic := metadata.topics.get(name)) is not None and topic.error is None
        }
        try:
            return check_durability(self._admin.client, there, lasting, self._settings.operation_timeout_s)
        except SinkError as error:
            return [
                Finding("warn", "sink.topics", f"their configuration is not known: {error}", error.advice)
            ]

    def _would_refuse(self, topic: NewTopic) -> KafkaError | None:
        """Return why the cluster would not create the topic, None when it would."""
        timeout_s = self._settings.operation_timeout_s
        futures = self._admin.client.create_topics([topic], validate_only=True, request_timeout=timeout_s)
        try:
            futures[topic.topic].result()
        except KafkaException as failure:
            return error_of(failure)
        return None


def _collisions(names: Iterable[str]) -> list[Finding]:
    """Return which topics that are not there yet cannot both come to be: alone, the cluster would take either."""
    first: dict[str, str] = {}
    findings = []
    for name in names:
        other = first.setdefault(name.replace(".", "_"), name)
        if other != name:
            message = f"cannot be created along with {other}"
            findings.append(Finding("fail", f"topic {name}", message, COLLISION_HINT))
    return findings


def _partitions(number: int) -> str:
    return "1 partition" if number == 1 else f"{number} partitions"


def _is_missing(error: KafkaError | None) -> bool:
    return error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
