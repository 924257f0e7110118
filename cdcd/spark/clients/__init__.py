"""Connections to Kafka: options, secrets, consumers, and the errors of librdkafka in the words of a reader."""
