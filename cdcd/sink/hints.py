"""What can be done about each error of Kafka: the hints of the table in `faults`.

In: a KafkaError's code and text.  Out: a hint, "" where nothing is known but what the error's class says.
Invariant: a hint names what is to be changed (an option, a setting of broker or topic, a right), and how to go on.
Must not: decide whether cdcd tries again (`faults` does).
"""

from __future__ import annotations

from confluent_kafka import KafkaError

__all__ = ["COLLISION_HINT", "hint_for"]

COLLISION_HINT = (
    "Kafka takes . and _ in topic names for one character: put another between schema and table in "
    "sink.topics.template, such as {name}.{schema}-{table}"
)
_LOOK = "then `cdcd resume`"
_CREDENTIALS = (
    "correct sasl.mechanism, sasl.username and sasl.password in sink.properties and sink.secret_files; secret "
    "files are read again at each try"
)
_BROKERS_AFFAIR = (
    "nothing, while brokers start or end transactions; where it lasts, see their logs; cdcd tries again"
)
_OLD_BROKER = "use a broker of Kafka 2.5 or later, or take back the option that it does not know"
_BY_CODE: dict[int, str] = {
    KafkaError.TOPIC_EXCEPTION: COLLISION_HINT,  # names are legal by their escapes; another one is too near
    # The key is the one thing in cdcd's records that a broker may ask for.
    KafkaError.INVALID_RECORD: (
        "a topic with cleanup.policy=compact refuses records without a key (a TRUNCATE, the marker of a gap, a row "
        f"of a table that has none): set it to delete, {_LOOK}"
    ),
    KafkaError.INVALID_TIMESTAMP: (
        "the topic refuses the record's time, which is that of sending it: compare the clocks here and there, raise "
        "message.timestamp.before.max.ms and .after.max.ms of the topic (kafka-configs --alter), "
        f"or set its message.timestamp.type=LogAppendTime, {_LOOK}"
    ),
    KafkaError.INVALID_TRANSACTION_TIMEOUT: (
        "lower sink.transaction_timeout_ms to the broker's transaction.max.timeout.ms (900000 by default) or less, "
        "and restart cdcd; or raise that of all brokers"
    ),
    KafkaError.INVALID_REPLICATION_FACTOR: (
        "lower sink.topics.replication_factor to the number of brokers, and restart cdcd; or add brokers, "
        + _LOOK
    ),
    KafkaError.INVALID_PARTITIONS: "correct sink.topics.partitions, and restart cdcd",
    KafkaError.INVALID_CONFIG: "correct sink.topics.properties, and restart cdcd",
    KafkaError.POLICY_VIOLATION: (
        f"create the topic as the cluster's policy wants it, {_LOOK}; or change sink.topics so that it fits"
    ),
    KafkaError.UNSUPPORTED_VERSION: _OLD_BROKER,
    KafkaError._UNSUPPORTED_FEATURE: _OLD_BROKER,
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE: (
        "set sink.properties.compression.type to one that the broker takes, and restart cdcd"
    ),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: (
        "grant the principal Describe, Write and, where cdcd makes topics, Create on the topic; Read on those of "
        "cdcd's own: `cdcd check` lists the topics, and which of them may not be written to"
    ),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: (
        "grant the principal IdempotentWrite and, where cdcd makes topics, Create on the cluster"
    ),
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "grant the principal Write and Describe on the transactional id: the slot's name, or sink.transactional_id"
    ),
    KafkaError._AUTHENTICATION: _CREDENTIALS,
    KafkaError.SASL_AUTHENTICATION_FAILED: _CREDENTIALS,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: _CREDENTIALS,
    KafkaError.ILLEGAL_SASL_STATE: _CREDENTIALS,
    KafkaError._RESOLVE: "correct the host in sink.bootstrap_servers, or see to the name service; cdcd tries again",
    KafkaError._SSL: (
        "correct security.protocol and the ssl. properties in sink.properties, or the listener; cdcd tries again"
    ),
    KafkaError.CONCURRENT_TRANSACTIONS: _BROKERS_AFFAIR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS: _BROKERS_AFFAIR,
    KafkaError.COORDINATOR_NOT_AVAILABLE: _BROKERS_AFFAIR,
    KafkaError.NOT_COORDINATOR: _BROKERS_AFFAIR,
    KafkaError.NOT_ENOUGH_REPLICAS: (
        "bring brokers back until each partition has min.insync.replicas again; cdcd tries again"
    ),
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND: (
        "bring brokers back until each partition has min.insync.replicas again; cdcd tries again"
    ),
    KafkaError._UNKNOWN_PARTITION: (
        "the number of partitions changed while cdcd ran; `cdcd resume` looks again and names the commands"
    ),
}
_BY_TEXT: tuple[tuple[str, str], ...] = (
    (
        "verify that security.protocol",
        "where it lasts, correct security.protocol in sink.properties: the listener expects another; it is tried "
        "again",
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
"""By what librdkafka says, in lower case, of a broker that cannot be reached."""


def hint_for(error: KafkaError) -> str:
    """Return what can be done about this error."""
    if error.code() in (KafkaError._TRANSPORT, KafkaError._SSL, KafkaError._ALL_BROKERS_DOWN):
        text = error.str().lower()
        for phrase, hint in _BY_TEXT:
            if phrase in text:
                return hint
    return _BY_CODE.get(error.code(), "")
