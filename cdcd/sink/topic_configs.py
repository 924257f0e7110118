"""Topic configurations with which Kafka removes needed records, or loses them with a broker (F63, F67).

In: a topic's configuration as the broker reports it, defaults included.  Out: the problem, as text.
Invariant: a topic that may remove a slot's progress or a schema is refused, because without the record a start looks
like a first start. A problem that only the owner of a data topic can judge is a warning of `cdcd check`.
Must not: alter a topic.  Queries block.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from confluent_kafka.admin import AdminClient, ConfigResource

from cdcd.errors import SinkAuthorization, SinkError, TopicMismatch
from cdcd.findings import Finding, failure
from cdcd.sink.error_map import kafka_errors

_LOG = logging.getLogger("cdcd.sink.topics")
_FOREVER = "-1"
_NAMED = 3
_DURABLE_HINT = "3 replicas, min.insync.replicas=2 and no unclean election protect acknowledged records"
_OLD_MS = 60_000
_AGE_HINT = (
    "raise the limit, or set message.timestamp.type=LogAppendTime: otherwise cdcd halts when a record waits longer "
    "than the limit, or the clocks differ"
)
KEEP_HINT = "run kafka-configs --alter --add-config cleanup.policy=compact for the topic, then `cdcd resume`"
KEYLESS_HINT = (
    "set cleanup.policy=delete on the topic (in sink.topics.properties for topics that cdcd creates); or add a "
    "primary key to the table, or with REPLICA IDENTITY FULL set format.key_columns or format.keyless"
)


def forgets(configuration: Mapping[str, str]) -> str:
    """Return why Kafka will remove the last record of a key from the topic, "" when it does not."""
    policy = configuration.get("cleanup.policy", "")
    if "delete" not in policy:
        return ""
    limits = [
        f"{name}={value}"
        for name in ("retention.ms", "retention.bytes")
        if (value := configuration.get(name, _FOREVER)) != _FOREVER
    ]
    return f"cleanup.policy={policy} with {', '.join(limits)}" if limits else ""


def may_lose(configuration: Mapping[str, str], replicas: int) -> str:
    """Return why the loss of one broker can lose an acknowledged record of the topic, "" where it cannot."""
    reasons = []
    if replicas < 2:
        reasons.append("one replica")
    elif configuration.get("min.insync.replicas", "1") == "1":
        reasons.append("min.insync.replicas=1")
    if configuration.get("unclean.leader.election.enable") == "true":
        reasons.append("unclean.leader.election.enable=true")
    return " and ".join(reasons)


def refuses_age(configuration: Mapping[str, str]) -> str:
    """Return which records the topic refuses for their age, "" where it accepts records of a minute ago.

    A record's timestamp is the time of sending: the record may wait in the client, and clocks differ.
    """
    limit_ms = configuration.get("message.timestamp.before.max.ms", "")
    is_own_time = configuration.get("message.timestamp.type") == "LogAppendTime"
    if is_own_time or not limit_ms.isdecimal() or int(limit_ms) >= _OLD_MS:
        return ""
    return f"records older than {int(limit_ms) / 1000:g} s are refused (message.timestamp.before.max.ms)"


def configurations(client: AdminClient, topics: Iterable[str], timeout_s: float) -> dict[str, dict[str, str]]:
    """Return the configuration of each topic. Raises SinkUnavailable and other Sink errors.

    A topic on which DescribeConfigs is not granted is left out, and a line in the log says so.
    """
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics]
    if not resources:
        return {}
    found = {}
    for resource, future in client.describe_configs(resources, request_timeout=timeout_s).items():
        try:
            with kafka_errors("describing a topic's configuration", topic=resource.name):
                entries = future.result()
        except SinkAuthorization:
            _LOG.info(
                "the configuration of topic %s cannot be read: DescribeConfigs is not granted", resource.name
            )
            continue
        found[resource.name] = {
            name: entry.value for name, entry in entries.items() if entry.value is not None
        }
    return found


def broker_configuration(client: AdminClient, broker: int, timeout_s: float) -> dict[str, str]:
    """Return a broker's configuration, empty where DescribeConfigs is not granted. Raises Sink errors."""
    resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
    try:
        with kafka_errors("describing a broker's configuration"):
            entries = client.describe_configs([resource], request_timeout=timeout_s)[resource].result()
    except SinkAuthorization:
        return {}
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}


def check_retention(
    client: AdminClient, lasting: Iterable[str], keyless: Iterable[str], made: Iterable[str], timeout_s: float
) -> list[Finding]:
    """Return findings for topics that would remove needed records, or refuse cdcd's records. Raises Sink errors.

    `lasting` topics have to retain every key; `keyless` topics get records without a key; `made` are keyless topics
    that do not exist and would be created compacted.
    """
    lasting, keyless = list(lasting), list(keyless)
    found = configurations(client, [*lasting, *keyless], timeout_s)
    findings = [
        failure(f"topic {name}", retention_error(name, why))
        for name in lasting
        if (why := forgets(found.get(name, {})))
    ]
    compacted = [name for name in keyless if "compact" in found.get(name, {}).get("cleanup.policy", "")]
    for name in [*compacted, *made]:
        message = "the topic is compacted and refuses records without a key, and its table has no key"
        findings.append(failure(f"topic {name}", SinkError(message, hint=KEYLESS_HINT, topic=name)))
    message = "the topic's configuration cannot be read, so retention and cleanup policy are not checked"
    return findings + [
        Finding("warn", f"topic {name}", message, "grant DescribeConfigs on the topic")
        for name in [*lasting, *keyless]
        if name not in found
    ]


def retention_error(name: str, why: str) -> TopicMismatch:
    """Return the error of a topic whose configuration lets Kafka remove needed records (F67)."""
    return TopicMismatch(f"Kafka will remove records that cdcd needs: {why}", hint=KEEP_HINT, topic=name)


def check_durability(client: AdminClient, replicas: Mapping[str, int], timeout_s: float) -> list[Finding]:
    """Return findings for topics that refuse records for their age, or may lose them with a broker.

    `replicas`: by name, the smallest number of replicas of a partition.
    """
    findings = []
    losing: dict[str, list[str]] = {}
    for name, configuration in configurations(client, replicas, timeout_s).items():
        if refuses := refuses_age(configuration):
            findings.append(Finding("warn", f"topic {name}", refuses, _AGE_HINT))
        if loses := may_lose(configuration, replicas[name]):
            losing.setdefault(loses, []).append(name)
    for loses, names in losing.items():
        some = ", ".join(sorted(names)[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
        message = f"the loss of one broker may lose records of {len(names)} topics, {loses}: {some}"
        findings.append(Finding("warn", "topics", message, _DURABLE_HINT))
    return findings
