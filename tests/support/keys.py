"""Check the keys of millions of records by their bytes: decoding each value would take many minutes.

In: a broker, a topic whose key is one int.  Out: a failed test if an id is missing or repeated.
"""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition


def assert_each_key_once(bootstrap: str, topic: str, rows: int) -> None:
    """Assert that each id from 1 to `rows` is the key of exactly one committed record."""
    seen = bytearray(rows + 1)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "independent",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        waiting = set(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in waiting])
        while waiting:
            for message in consumer.consume(10_000, 5):
                if message.error() is not None:
                    assert message.error().name() == "_PARTITION_EOF", message.error()
                    waiting.discard(message.partition())
                    continue
                number = _avro_int(message.key())
                assert seen[number] == 0, f"key {number} occurs twice"
                seen[number] = 1
    finally:
        consumer.close()
    assert sum(seen) == rows


def _avro_int(key: bytes) -> int:
    """Return the int of a key: Confluent's five bytes, then an Avro zigzag integer."""
    value = shift = 0
    for byte in key[5:]:
        value |= (byte & 0x7F) << shift
        shift += 7
    return (value >> 1) ^ -(value & 1)
