"""What a topic's own configuration does to what is written to it: forget it, or lose it with a broker (F63, F67).

In: a topic's configuration as the broker gives it, defaults included.  Out: what is wrong with it, in words.
Invariant: a topic that forgets a slot's progress or a schema is refused, because what is gone there looks like a
first start; what only the owner of a data topic can judge is a warning of `cdcd check`.
Must not: alter a topic.  Asking blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from confluent_kafka.admin import AdminClient, ConfigResource

from cdcd.errors import SinkAuthorization
from cdcd.findings import Finding
from cdcd.sink.faults import kafka_errors

_LOG = logging.getLogger("cdcd.sink.topics")
_FOREVER = "-1"
_NAMED = 3
_DURABLE_HINT = "3 replicas, min.insync.replicas=2 and no unclean election keep what was acknowledged"
KEEP_HINT = "kafka-configs --alter --add-config cleanup.policy=compact on it"


def forgets(configuration: Mapping[str, str]) -> str:
    """Return why the topic loses the last record of a key in time, "" when it does not."""
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
    """Return how an acknowledged record of the topic can be lost with a broker, "" where it is not that easy."""
    reasons = []
    if replicas < 2:
        reasons.append("one replica")
    elif configuration.get("min.insync.replicas", "1") == "1":
        reasons.append("min.insync.replicas=1")
    if configuration.get("unclean.leader.election.enable") == "true":
        reasons.append("unclean.leader.election.enable=true")
    return " and ".join(reasons)


def configurations(client: AdminClient, topics: Iterable[str], timeout_s: float) -> dict[str, dict[str, str]]:
    """Return the configuration of each topic that may be asked for one. Raises SinkUnavailable and others.

    Without the right to describe configurations a topic is left out, and that is logged.
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
                "the configuration of topic %s may not be read: DescribeConfigs is not granted", resource.name
            )
            continue
        found[resource.name] = {
            name: entry.value for name, entry in entries.items() if entry.value is not None
        }
    return found


def check_durability(
    client: AdminClient, replicas: Mapping[str, int], lasting: Iterable[str], timeout_s: float
) -> list[Finding]:
    """Return what is to be known of topics that are there: the fewest replicas of each by name.

    `lasting`: those among them that may forget nothing.
    """
    findings = []
    must_last = set(lasting)
    losing: dict[str, list[str]] = {}
    for name, configuration in configurations(client, replicas, timeout_s).items():
        why = forgets(configuration)
        if why and name in must_last:
            findings.append(
                Finding("fail", f"topic {name}", f"it forgets what has to stay: {why}", KEEP_HINT)
            )
        if loses := may_lose(configuration, replicas[name]):
            losing.setdefault(loses, []).append(name)
    for loses, names in losing.items():
        some = ", ".join(sorted(names)[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
        message = f"a broker that is lost may take records of {len(names)} topics with it, {loses}: {some}"
        findings.append(Finding("warn", "topics", message, _DURABLE_HINT))
    return findings
