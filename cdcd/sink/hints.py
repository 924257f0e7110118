"""The hint of each Kafka error, for the table in `error_map`.

In: a KafkaError's code and text.  Out: a hint, "" where the hint of the error's class is the best one.
Invariant: a hint names the thing to change (an option, a setting of broker or topic, an ACL), and how to continue.
Must not: decide whether cdcd tries again (`error_map` does).
"""

from __future__ import annotations

from confluent_kafka import KafkaError

__all__ = ["COLLISION_HINT", "hint_for"]

COLLISION_HINT = (
    "Kafka treats . and _ in topic names as the same character: put another character between schema and "
    "table in sink.topics.template, such as {name}.{schema}-{table}"
)
_LOOK = "then `cdcd resume`"
_CREDENTIALS = (
    "correct sasl.mechanism, sasl.username and sasl.password in sink.properties and sink.secret_files; cdcd tries "
    "again, and reads the secret files at each attempt"
)
_BROKERS_AFFAIR = (
    "no action is needed while brokers start or end transactions: cdcd tries again. If the error lasts, read the "
    "brokers' logs"
)
_OLD_BROKER = "use a broker of Kafka 2.5 or later, or remove the option that the broker does not support"
_BY_CODE: dict[int, str] = {
    KafkaError.TOPIC_EXCEPTION: COLLISION_HINT,  # escaped names are legal, so the name collides with another
    # A missing key is the only reason for which a broker refuses one of cdcd's records.
    KafkaError.INVALID_RECORD: (
        "a topic with cleanup.policy=compact refuses records without a key (a TRUNCATE, the marker of a gap, a row "
        f"of a table without a key): set the policy to delete, {_LOOK}"
    ),
    KafkaError.INVALID_TIMESTAMP: (
        "the topic refuses the record's timestamp, which is the time of sending: compare the clocks of cdcd and the "
        "broker; raise message.timestamp.before.max.ms and .after.max.ms of the topic (kafka-configs --alter), "
        f"or set its message.timestamp.type=LogAppendTime, {_LOOK}"
    ),
    KafkaError.INVALID_TRANSACTION_TIMEOUT: (
        "lower sink.transaction_timeout_ms to the broker's transaction.max.timeout.ms (900000 by default) or less, "
        "and restart cdcd; or raise the setting on all brokers"
    ),
    KafkaError.INVALID_REPLICATION_FACTOR: (
        "lower sink.topics.replication_factor to the number of brokers, and restart cdcd; or add brokers, "
        + _LOOK
    ),
    KafkaError.INVALID_PARTITIONS: "correct sink.topics.partitions, and restart cdcd",
    KafkaError.INVALID_CONFIG: "correct sink.topics.properties, and restart cdcd",
    KafkaError.POLICY_VIOLATION: (
        f"create the topic as the cluster's policy requires, {_LOOK}; or change sink.topics to fit it and restart "
        "cdcd"
    ),
    KafkaError.UNSUPPORTED_VERSION: _OLD_BROKER,
    KafkaError._UNSUPPORTED_FEATURE: _OLD_BROKER,
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE: (
        "set sink.properties.compression.type to a codec that the broker supports, and restart cdcd"
    ),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: (
        "grant the principal Describe, Write and, where cdcd creates topics, Create on the topic, and Read on cdcd's "
        "own topics: `cdcd check` lists the topics, and those that deny Write"
    ),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: (
        "grant the principal IdempotentWrite and, where cdcd creates topics, Create on the cluster"
    ),
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "grant the principal Write and Describe on the transactional id: the slot's name, or sink.transactional_id"
    ),
    KafkaError._AUTHENTICATION: _CREDENTIALS,
    KafkaError.SASL_AUTHENTICATION_FAILED: _CREDENTIALS,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: _CREDENTIALS,
    KafkaError.ILLEGAL_SASL_STATE: _CREDENTIALS,
    KafkaError._RESOLVE: "correct the host in sink.bootstrap_servers, or repair the name service; cdcd tries again",
    KafkaError._SSL: (
        "correct security.protocol and the ssl.* properties in sink.properties, or the listener; cdcd tries again"
    ),
    KafkaError.CONCURRENT_TRANSACTIONS: _BROKERS_AFFAIR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS: _BROKERS_AFFAIR,
    KafkaError.COORDINATOR_NOT_AVAILABLE: _BROKERS_AFFAIR,
    KafkaError.NOT_COORDINATOR: _BROKERS_AFFAIR,
    KafkaError.NOT_ENOUGH_REPLICAS: (
        "start brokers until each partition has min.insync.replicas in-sync replicas again; cdcd tries again"
    ),
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND: (
        "start brokers until each partition has min.insync.replicas in-sync replicas again; cdcd tries again"
    ),
    KafkaError._UNKNOWN_PARTITION: (
        "the number of partitions changed while cdcd ran; `cdcd resume` checks again and names the commands"
    ),
}
_BY_TEXT: tuple[tuple[str, str], ...] = (
    (
        "verify that security.protocol",
        "if the error lasts, correct security.protocol in sink.properties: the listener expects another protocol; "
        "cdcd tries again",
    ),
    (
        "connecting to a plaintext broker listener",
        "set sink.properties.security.protocol to PLAINTEXT or SASL_PLAINTEXT, or use the port of a TLS listener",
    ),
    (
        "certificate",
        "correct ssl.ca.location in sink.properties, or the broker's certificate; cdcd tries again",
    ),
)
"""By a phrase, in lower case, of librdkafka's message about a broker that cannot be reached."""


def hint_for(error: KafkaError) -> str:
    """Return the hint for this error, "" where there is none."""
    if error.code() in (KafkaError._TRANSPORT, KafkaError._SSL, KafkaError._ALL_BROKERS_DOWN):
        text = error.str().lower()
        for phrase, hint in _BY_TEXT:
            if phrase in text:
                return hint
    return _BY_CODE.get(error.code(), "")
