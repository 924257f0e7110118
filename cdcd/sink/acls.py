"""The principal's authorized operations on existing topics, as the brokers report them.

In: an admin client and names.  Out: a finding for each topic that the principal may not write to.
Invariant: a broker that reports no operations (without an authorizer, or another product) leads to no finding.
Must not: test an ACL by writing.
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
    """Return a finding for each topic that denies Write: a row for it ends a session. Raises SinkError."""
    if not names:
        return []
    asked = client.describe_topics(
        TopicCollection(list(names)), include_authorized_operations=True, request_timeout=timeout_s
    )
    refused = []
    for name, future in asked.items():
        with kafka_errors("querying the ACLs of a topic", topic=name):
            rights = future.result().authorized_operations
        if rights and AclOperation.WRITE not in rights:
            refused.append(name)
    return [replace(failure(f"topic {name}", _refusal(name)), at_row=True) for name in refused]


def _refusal(name: str) -> SinkAuthorization:
    return SinkAuthorization(
        "the principal may not write to the topic",
        hint="grant the principal Write on the topic (kafka-acls --add --operation Write), or remove a Deny ACL",
        topic=name,
    )
