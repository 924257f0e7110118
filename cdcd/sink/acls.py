"""What the principal may do with topics that are there, as the brokers say it.

In: an admin client and names.  Out: a finding for each topic that may not be written to.
Invariant: a broker that does not say (without an authorizer, or of another make) is no reason to complain.
Must not: try it by writing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient

from cdcd.errors import SinkAuthorization
from cdcd.findings import Finding, failure
from cdcd.sink.error_map import kafka_errors

__all__ = ["check_acls"]


def check_acls(client: AdminClient, names: Collection[str], timeout_s: float) -> list[Finding]:
    """Return which of these topics may not be written to: a row for one ends a session. Raises Sink errors."""
    if not names:
        return []
    asked = client.describe_topics(
        TopicCollection(list(names)), include_authorized_operations=True, request_timeout=timeout_s
    )
    refused = []
    for name, future in asked.items():
        with kafka_errors("asking for the rights on a topic", topic=name):
            rights = future.result().authorized_operations
        if rights and AclOperation.WRITE not in rights:
            refused.append(name)
    return [replace(failure(f"topic {name}", _refusal(name)), at_row=True) for name in refused]


def _refusal(name: str) -> SinkAuthorization:
    return SinkAuthorization(
        "the principal may not write to the topic",
        hint="grant the principal Write on it (kafka-acls --add --operation Write), or take a Deny back",
        topic=name,
    )
