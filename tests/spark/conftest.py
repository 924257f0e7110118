"""Real Spark, and a writer that takes the daemon's part on a real broker and registry."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.demo.stack.s3 import S3Server
from cdcd.spark.__main__ import main
from cdcd.spark.commands import read, running, verify
from tests.spark.ranges import IMPLEMENTATIONS, use
from tests.spark.topics import TopicsWriter
from tests.support.azure import AzureServer
from tests.support.hdfs import HdfsServer

S3_PASSWORD = "of-the-bucket-7c1f"


@pytest.fixture
def topics(kafka: KafkaBroker, registry: SchemaRegistry) -> Iterator[TopicsWriter]:
    """Yield a writer with a prefix of its own."""
    writer = TopicsWriter(kafka.bootstrap, registry.url, f"t{uuid.uuid4().hex[:8]}")
    yield writer
    writer.close()


Command = Callable[..., int]


class _Lasting:
    """The tests' Spark, which a command does not stop."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return (lambda: None) if name == "stop" else getattr(self._spark, name)


@pytest.fixture
def command(spark: SparkSession, topics: TopicsWriter, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return what runs a command in the tests' Spark, connected to `topics`, and returns its exit status."""
    for module in (read, running, verify):
        monkeypatch.setattr(module, "submitted_or_local", lambda *_: _Lasting(spark))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    connection = ["--brokers", topics.bootstrap, "--prefix", topics.prefix, "--registry", topics.registry_url]
    return lambda name, *words: main([name, *connection, *words])


@pytest.fixture
def target(tmp_path: Path) -> Any:
    """Return the folder of a mirror."""
    return tmp_path / "mirror"


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The reader that `read_ranges` uses."""
    use(request.param, monkeypatch)
    return str(request.param)


@pytest.fixture(scope="session")
def s3(artefacts: Cache, stack_folder: Path) -> Iterator[S3Server]:
    """Yield a real S3 API. A test that stops it starts it again."""
    with S3Server(stack_folder / "s3", cache=artefacts, password=S3_PASSWORD) as server:
        yield server


@pytest.fixture(scope="session")
def azure(artefacts: Cache, stack_folder: Path) -> Iterator[AzureServer]:
    """Yield a real API of Azure's blob storage."""
    with AzureServer(stack_folder / "azure", cache=artefacts) as server:
        yield server


@pytest.fixture(scope="session")
def hdfs(artefacts: Cache, stack_folder: Path) -> Iterator[HdfsServer]:
    """Yield a real HDFS. A test that stops it starts it again."""
    with HdfsServer(stack_folder / "hdfs", cache=artefacts) as server:
        yield server


@pytest.fixture
def bucket(s3: S3Server) -> str:
    """Return the URI of a new bucket."""
    return s3.create_bucket(f"b{uuid.uuid4().hex[:12]}")
