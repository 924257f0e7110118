"""Situations that Kafka causes."""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka import Producer

from cdcd.demo.stack.ports import free_port
from tests.faults.test_fault_21_topics import delete, replace, widen
from tests.hints.situation import World, situation
from tests.support.topics import committed_records, create_topic, set_topic_config
from tests.support.waiting import eventually

SINK, UNAVAILABLE = "CDCD-SINK", "CDCD-SINK-UNAVAILABLE"


@situation(
    SINK, "a topic refuses old records", "message.timestamp.before.max.ms", "LogAppendTime", "cdcd resume"
)
def old_records(w: World) -> Iterator[None]:
    _refusing_what_was_sent_before(w)
    yield
    set_topic_config(w.kafka.bootstrap, w.topic, "message.timestamp.before.max.ms", "86400000000")
    w.resume()


@situation(
    SINK, "a topic refuses old records, and gets LogAppendTime", "message.timestamp.type=LogAppendTime"
)
def old_records_by_their_arrival(w: World) -> Iterator[None]:
    _refusing_what_was_sent_before(w)
    yield
    set_topic_config(w.kafka.bootstrap, w.topic, "message.timestamp.type", "LogAppendTime")
    w.resume()


def _refusing_what_was_sent_before(w: World) -> None:
    """Use no Kafka transaction: a broker may also refuse its end marker, and then never ends the transaction."""
    create_topic(w.kafka.bootstrap, w.topic, 2, config={"message.timestamp.before.max.ms": "0"})
    w.insert()
    w.start(sink={"delivery": "at_least_once"})


@situation(
    SINK, "a Kafka transaction may not be open for so long", "lower sink.transaction_timeout_ms", "900000"
)
def timeout_of_the_broker(w: World) -> Iterator[None]:
    w.start(sink={"transaction_timeout_ms": 3_600_000})
    yield
    assert "-> lower sink.transaction_timeout_ms" in w.command("check").stdout
    assert w.daemon.events("retrying") == []
    w.follow(w.printed_hint(SINK), "sink.transaction_timeout_ms", 900_000)


@situation(SINK, "more replicas than brokers", "lower sink.topics.replication_factor")
def too_many_replicas(w: World) -> Iterator[None]:
    w.start(sink={"topics": {"replication_factor": 3}})
    yield
    w.follow(w.printed_hint(SINK), "sink.topics.replication_factor", 1)


@situation(SINK, "a property that no topic has", "correct sink.topics.properties")
def no_such_topic_property(w: World) -> Iterator[None]:
    w.insert()
    w.start(sink={"topics": {"properties": {"cleanup.policy": "sometimes"}}})
    yield
    w.start(sink={"topics": {"properties": {"cleanup.policy": "delete"}}})


@situation(
    SINK, "a compacted topic refuses a record without a key", "set the policy to delete", "cdcd resume"
)
def compacted_topic(w: World) -> Iterator[None]:
    w.stream(sink={"topics": {"properties": {"cleanup.policy": "compact"}}})
    w.sql("TRUNCATE t")
    yield
    set_topic_config(w.kafka.bootstrap, w.topic, "cleanup.policy", "delete")
    w.resume()


@situation(SINK, "two tables whose topics' names collide in Kafka", "{name}.{schema}-{table}")
def colliding_topics(w: World) -> Iterator[None]:
    """Kafka creates two colliding topics of one request; it refuses the second one if it is created later."""
    w.sql("CREATE SCHEMA x", "CREATE SCHEMA x_y", "CREATE TABLE x.y_z (id int PRIMARY KEY)")
    w.sql("INSERT INTO x.y_z VALUES (1)")
    w.stream()
    w.sql("CREATE TABLE x_y.z (id int PRIMARY KEY)", "INSERT INTO x_y.z VALUES (1)")
    yield
    w.start(sink={"topics": {"template": "{name}.{schema}-{table}"}})


@situation(SINK, "a property that librdkafka does not have", "correct sink.properties")
def no_such_property(w: World) -> Iterator[None]:
    w.start(sink={"properties": {"nonsense.ms": "1"}})
    yield
    del w.daemon.config["sink"]["properties"]["nonsense.ms"]
    w.start()


@situation(UNAVAILABLE, "nothing listens there", "start Kafka, or correct sink.bootstrap_servers")
def nothing_listens(w: World) -> Iterator[str]:
    w.configure(sink={"bootstrap_servers": f"127.0.0.1:{free_port()}"})
    yield _checked(w, "Connection refused")
    w.start(sink={"bootstrap_servers": w.kafka.bootstrap})


@situation(UNAVAILABLE, "the name has no address", "correct the host in sink.bootstrap_servers")
def no_address(w: World) -> Iterator[str]:
    w.configure(sink={"bootstrap_servers": "nowhere.invalid:9092"})
    yield _checked(w, "Failed to resolve")
    w.start(sink={"bootstrap_servers": w.kafka.bootstrap})


@situation(UNAVAILABLE, "TLS where the broker has none", "security.protocol")
def tls_without_need(w: World) -> Iterator[str]:
    w.configure(sink={"properties": {"security.protocol": "SSL"}})
    yield _checked(w, "SSL handshake failed")
    w.start(sink={"properties": {"security.protocol": "PLAINTEXT"}})


def _checked(w: World, cause: str) -> str:
    """Return what `cdcd check` prints about Kafka. The daemon reports the same only after a minute."""
    lines = w.command("check").stdout.splitlines()
    (at,) = [number for number, line in enumerate(lines) if UNAVAILABLE in line]
    assert cause in lines[at], lines[at]
    return " ".join(lines[at : at + 2])


@situation("CDCD-TOPIC-MISSING", "topics are created by hand", "create them", "cdcd resume")
def topics_made_by_hand(w: World) -> Iterator[None]:
    w.insert()
    w.start(sink={"topics": {"create": False}})
    for name, partitions in ((f"{w.daemon.name}.__progress", 1), (w.topic, 2)):
        w.daemon.wait_state("halted")
        assert name in w.daemon.events("halted")[-1]["error"]
        config = {"cleanup.policy": "compact"} if partitions == 1 else {}
        if name == w.topic:
            break
        create_topic(w.kafka.bootstrap, name, partitions, config=config)
        w.resume()
        eventually(lambda: len(w.daemon.events("halted")) == 2, "the next topic is missing")
    yield
    create_topic(w.kafka.bootstrap, w.topic, 2)
    w.resume()


@situation("CDCD-TOPIC-MISSING", "topics.create is switched on later", "set sink.topics.create: true")
def topics_made_after_all(w: World) -> Iterator[None]:
    w.start(sink={"topics": {"create": False}})
    yield
    w.follow(w.printed_hint("CDCD-TOPIC-MISSING"), "sink.topics.create")


@situation("CDCD-TOPIC-MISSING", "the topic was deleted", "cdcd resume --accept-topic NAME")
def topic_deleted(w: World) -> Iterator[None]:
    _stopped(w)
    delete(w.kafka.bootstrap, w.topic)
    w.start()
    yield
    w.resume("resume", "--accept-topic", w.topic)


@situation("CDCD-TOPIC-REPLACED", "the topic was made again", "cdcd resnapshot")
def topic_replaced(w: World) -> Iterator[None]:
    _stopped(w)
    replace(w.kafka.bootstrap, w.topic)
    w.start()
    yield
    w.resume("resnapshot")


@situation("CDCD-TOPIC-MISMATCH", "the topic got another partition", "cdcd resume --accept-topic NAME")
def topic_widened(w: World) -> Iterator[None]:
    _stopped(w)
    widen(w.kafka.bootstrap, w.topic)
    w.start()
    yield
    w.resume("resume", "--accept-topic", w.topic)


def _stopped(w: World) -> None:
    """Stream one row and stop the daemon; insert another row for its next start."""
    w.stream()
    w.daemon.stop()
    w.insert()


@situation(
    "CDCD-RECORD-TOO-LARGE", "a row is larger than the client takes", "sink.properties.message.max.bytes"
)
def larger_than_the_client_takes(w: World) -> Iterator[None]:
    w.stream()
    w.sql("INSERT INTO t VALUES (1, repeat('x', 2000000))")
    yield
    w.daemon.stop()
    set_topic_config(w.kafka.bootstrap, w.topic, "max.message.bytes", "4000000")
    w.start(sink={"properties": {"message.max.bytes": "4000000"}})


@situation("CDCD-RECORD-TOO-LARGE", "a row is larger than the topic takes", "max.message.bytes (topic)")
def larger_than_the_topic_takes(w: World) -> Iterator[None]:
    w.stream()
    set_topic_config(w.kafka.bootstrap, w.topic, "max.message.bytes", "50000")
    w.sql("INSERT INTO t VALUES (1, repeat('x', 100000))")
    yield
    set_topic_config(w.kafka.bootstrap, w.topic, "max.message.bytes", "4000000")
    w.resume()


@situation("CDCD-RECORD-TOO-LARGE", "a marker replaces the row", "sink.too_large: dead_letter")
def larger_and_marked(w: World) -> Iterator[None]:
    w.stream()
    w.sql("INSERT INTO t VALUES (1, repeat('x', 2000000))")
    yield
    w.follow(w.printed_hint("CDCD-RECORD-TOO-LARGE"), "sink.too_large")


@situation(
    "CDCD-TRANSACTION-TOO-LARGE",
    "too many rows",
    "Raise sink.large_transactions.max_rows and restart cdcd",
)
def too_many_rows(w: World) -> Iterator[None]:
    w.stream(sink={"large_transactions": {"max_rows": 10}})
    w.sql(
        "INSERT INTO t SELECT g FROM generate_series(10001, 40000) g"
    )  # more than one read returns: a transaction within one read is not split
    yield
    w.follow(w.printed_hint("CDCD-TRANSACTION-TOO-LARGE"), "sink.large_transactions.max_rows", 100_000)


@situation(
    "CDCD-TRANSACTION-TOO-LARGE", "too many bytes, written in parts", "sink.large_transactions.policy: parts"
)
def too_many_bytes(w: World) -> Iterator[None]:
    w.stream(sink={"large_transactions": {"max_bytes": "100KiB"}})
    w.sql("INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 900) g")
    yield
    assert "sink.large_transactions.max_bytes" in w.daemon.events("halted")[0]["error"]
    w.follow(w.printed_hint("CDCD-TRANSACTION-TOO-LARGE"), "sink.large_transactions.policy")


@situation(
    "CDCD-PROGRESS-UNREADABLE",
    "another program writes a record with the slot's key",
    "last record of this key again",
    "cdcd resume",
)
def foreign_progress(w: World) -> Iterator[None]:
    w.stream()
    w.daemon.stop()
    topic = f"{w.daemon.name}.__progress"
    (good,) = [one for one in committed_records(w.kafka.bootstrap, topic) if one.key() == w.slot.encode()][
        -1:
    ]
    _produce(w, topic, b"not cdcd's")
    w.start()
    yield
    _produce(w, topic, good.value())
    w.resume()


def _produce(w: World, topic: str, value: bytes | None) -> None:
    producer = Producer({"bootstrap.servers": w.kafka.bootstrap})
    producer.produce(topic, value, key=w.slot)
    assert producer.flush(30) == 0
