"""Spark with a broker and a registry that ask for passwords, certificates and tokens; no secret is shown."""

from __future__ import annotations

import base64
import json
import os
import pickle
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.errors import EXIT_FAILURE, CdcdError, ConfigError, SecretUnreadable, SinkAuthorization
from cdcd.spark import decode
from cdcd.spark.__main__ import main
from cdcd.spark.clients.connection_options import connection_from
from cdcd.spark.commands import running
from cdcd.spark.data_source import CdcdReader, parse_options, register
from cdcd.spark.decoding.decode import decoding_of
from cdcd.spark.decoding.schemas import access_of
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.session import run_to_end
from cdcd.spark.storage.uri import open_storage
from cdcd.spark.tables.tasks import fold_group
from tests.faults.access import sink_by_certificate, sink_by_password, sink_by_token
from tests.spark.events import column
from tests.spark.topics import TopicsWriter, rows_of
from tests.support.issuer import Issuer
from tests.support.nightly import nightly
from tests.support.pages import ROOT, python_blocks
from tests.support.registry_door import Door
from tests.support.secured_kafka import SecuredKafka

ITEMS = [column("id", "int", required=True), column("name", "string")]
IDS = [1, 2, 3]
KAFKA, REGISTRY, OF_KEY, IN_CLEAR, WRONG = (
    f"canary-{name}-5f3a91" for name in ("kafka", "registry", "key", "clear", "wrong")
)
CONTROL = "control-5f3a91"
USER = "spark"
DEADLINE_S = 280


class Secured:
    """A broker and a registry with authentication, a daemon's configuration for them, and three rows in a topic."""

    def __init__(self, kafka: SecuredKafka, registry: SchemaRegistry, folder: Path) -> None:
        self.kafka, self.folder = kafka, folder
        self.door = Door(registry.url, folder, wants_certificate=True)
        self.door.opens_to = "Basic " + base64.b64encode(f"{USER}:{REGISTRY}".encode()).decode()
        self.topics = TopicsWriter(kafka.broker.bootstrap, registry.url, f"t{uuid.uuid4().hex[:8]}")
        self.items = self.topics.table("items", ITEMS)
        for number in IDS:
            row = {"id": number, "name": "a"}
            self.topics.commit(number * 10, self.topics.change(self.items, "c", number * 10, 1, after=row))
        kafka.set_password(USER, KAFKA)
        for principal in (USER, "CN=cdcd", "bearer"):
            kafka.allow(f"User:{principal}")
        for name, secret in (("kafka", KAFKA), ("registry", REGISTRY), ("key", "of the key")):
            (folder / name).write_text(f"{secret}\n")

    def configure(self, sink: dict[str, object] | None = None) -> str:
        """Write the daemon's configuration; return its path."""
        tree: dict[str, Any] = {
            "name": self.topics.prefix,
            "source": {"dsn": "postgresql://cdcd@db/shop", "password_file": "/nowhere/postgres"},
            "sink": sink or sink_by_password(self.kafka, USER, self.folder / "kafka"),
            "registry": {
                "url": self.door.url,
                "username": USER,
                "password_file": f"{self.folder}/registry",
                "properties": {
                    "ssl.ca.location": f"{self.folder}/ca.crt",
                    "ssl.certificate.location": f"{self.folder}/client.crt",
                    "ssl.key.location": f"{self.folder}/client.key",
                },
                "secret_files": {"ssl.key.password": f"{self.folder}/key"},
            },
        }
        path = self.folder / "cdcd.yaml"
        path.write_text(yaml.safe_dump(tree))
        return str(path)


@pytest.fixture
def secured(secured_kafka: SecuredKafka, registry: SchemaRegistry, tmp_path: Path) -> Iterator[Secured]:
    made = Secured(secured_kafka, registry, tmp_path)
    with made.door:
        yield made
    made.topics.close()


@pytest.mark.parametrize("how", [nightly("password"), "certificate", nightly("token")])
def test_the_daemons_configuration_is_the_only_option(
    how: str, secured: Secured, spark: SparkSession, tmp_path: Path
) -> None:
    with Issuer(3600) as issuer:
        sinks = {
            "password": sink_by_password(secured.kafka, USER, tmp_path / "kafka"),
            "certificate": sink_by_certificate(secured.kafka, secured.kafka.folder / "first"),
            "token": sink_by_token(secured.kafka, issuer.url, tmp_path / "kafka"),
        }
        config = secured.configure(sinks[how])
        register(spark)
        raw = spark.read.format("cdcd").option("config", config).load()
        decoded = decode(raw, topic=secured.items.topic, connection=connection_from({"config": config}))
        assert sorted(row["id"] for row in decoded.select("after.id").collect()) == IDS


@pytest.mark.nightly
def test_the_mirror_needs_only_the_daemons_configuration(secured: Secured, target: Path) -> None:
    command = [sys.executable, "-m", "cdcd.spark", "mirror", "--config", secured.configure()]
    command += ["--target", str(target), "--available-now"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["id"] for row in rows_of(read_mirror(target), secured.items)] == IDS
    _assert_no_secret(target, done.stdout + done.stderr)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "option brokers is required, or config"),
        (["--brokers", "b:1", "--prefix", "shop"], "the connection has no source of schemas"),
        (["--config", "/nowhere/cdcd.yaml"], "/nowhere/cdcd.yaml: cannot be read"),
        (
            ["--brokers", "b:1", "--prefix", "p", "--option", "kafka.sasl.user=x"],
            "did you mean kafka.sasl.username",
        ),
        (
            ["--brokers", "b:1", "--prefix", "p", "--option", f"kafka.sasl.password={IN_CLEAR}"],
            "kafka.sasl.password is a secret in clear",
        ),
    ],
)
def test_a_mirror_that_cannot_connect_says_why_before_spark_starts(
    words: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    target: Path,
) -> None:
    monkeypatch.setattr(running, "submitted_or_local", None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert main(["mirror", *words, "--target", str(target)]) == EXIT_FAILURE
    assert expected in caplog.text
    assert IN_CLEAR not in caplog.text


@pytest.mark.nightly  # it starts Spark twice; the unit tests of connections and options have each place by itself
@pytest.mark.timeout(600)
def test_no_secret_is_in_anything_that_spark_shows(secured: Secured, tmp_path: Path) -> None:
    """Event log, plans, UI, checkpoint and errors. The event log has another option: it does show options."""
    config = secured.configure()
    options = {
        "config": config,
        "kafka.client.id": CONTROL,
        "kafka.sasl.password": "env:OF_KAFKA",
        "basic.auth.user.info": f"{USER}:file:{tmp_path}/registry",
        "schema.registry.ssl.key.password": f"config:{tmp_path}/clear.yaml#key",
    }
    (tmp_path / "clear.yaml").write_text("key: of the key\n")
    (tmp_path / "wrong").write_text(WRONG)
    refused = [
        {"config": config, "kafka.sasl.password": IN_CLEAR},
        {"config": config, "basic.auth.user.info": f"{USER}:{IN_CLEAR}"},
        {"config": config, "kafka.sasl.password": f"file:{tmp_path}/wrong"},
        {"config": config, "kafka.sasl.password": f"file:{tmp_path}/absent"},
    ]
    folder = tmp_path / "shown"
    folder.mkdir()
    task = {"options": options, "topic": secured.items.topic, "refused": refused}
    (folder / "task.json").write_text(json.dumps(task))
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.spark_output", str(folder)],
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        cwd=ROOT,
        env={**os.environ, "OF_KAFKA": KAFKA},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((folder / "result.json").read_text())
    assert result["ids"] == IDS
    for text, expected in zip(
        result["refused"],
        [
            "option kafka.sasl.password is a secret in clear",
            "option basic.auth.user.info is a secret in clear",
            SinkAuthorization.code,
            SecretUnreadable.code,
        ],
        strict=True,
    ):
        assert expected in text
    (folder / "task.json").unlink()
    events = "".join(path.read_text() for path in (folder / "events").rglob("events*"))
    assert f"kafka.client.id={CONTROL}" in events
    assert list(folder.glob("page*.html"))
    assert list((folder / "checkpoint").rglob("*"))
    _assert_no_secret(folder, done.stdout + done.stderr)


def _assert_no_secret(folder: Path, output: str) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    texts = {str(path): path.read_bytes() for path in files} | {"the output": output.encode()}
    secrets = [one.encode() for one in (KAFKA, REGISTRY, IN_CLEAR, WRONG, "of the key")]
    secrets += [base64.b64encode(f"{USER}:{REGISTRY}".encode())]
    assert [(name, secret) for name, text in texts.items() for secret in secrets if secret in text] == []


def test_driver_and_executors_read_the_secrets_themselves(secured: Secured, tmp_path: Path) -> None:
    """In the order of Spark's calls, with the reader as it is sent to an executor."""
    reader = CdcdReader(parse_options({"config": secured.configure()}))
    tasks = reader.partitions()
    sent = pickle.dumps(reader)
    assert KAFKA.encode() not in sent
    (tmp_path / "cdcd.yaml").unlink()
    on_executor = pickle.loads(sent)
    assert sum(batch.num_rows for task in tasks for batch in on_executor.read(task)) == len(IDS)
    (tmp_path / "kafka").unlink()
    for read in (lambda: list(on_executor.read(tasks[0])), lambda: list(reader.partitions())):
        with pytest.raises(SecretUnreadable, match=rf"file={tmp_path}/kafka .*host="):
            read()
    (tmp_path / "kafka").write_text(KAFKA)
    assert list(on_executor.read(tasks[0]))


def test_the_functions_that_spark_connect_sends_have_references_only(
    secured: Secured, tmp_path: Path
) -> None:
    """A client pickles them for the server: the function that folds in tasks, and that of decode."""
    access = access_of(connection_from({"config": secured.configure()}))
    options = {"access_key_id": "cdcd", "secret_access_key": f"file:{tmp_path}/kafka"}
    fold = partial(fold_group, plans={}, target=open_storage("s3://lake/shop", options), buckets=4)
    sent = cloudpickle.dumps((fold, decoding_of(access, [secured.items.topic]).decode))
    assert all(f"{tmp_path}/{name}".encode() in sent for name in ("kafka", "registry", "key"))
    assert [secret for secret in (KAFKA, REGISTRY, "of the key") if secret.encode() in sent] == []


@pytest.mark.parametrize(
    ("options", "error", "advice"),
    [
        ({"kafka.sasl.password": "file:{}/wrong"}, SinkAuthorization, "correct kafka.sasl.mechanism"),
        ({"kafka.sasl.mechanism": "SCRAM"}, ConfigError, "correct the option kafka.NAME"),
        nightly({"kafka.security.protocol": "SASL_SSL"}, CdcdError, "kafka.security.protocol"),
        ({"kafka.ssl.ca.location": "{}/absent"}, SecretUnreadable, "put it there"),
    ],
    ids=["wrong password", "no mechanism", "another protocol", "no certificate"],
)
def test_what_kafka_refuses_is_an_error_with_the_option(
    options: dict[str, str], error: type[CdcdError], advice: str, secured: Secured, tmp_path: Path
) -> None:
    (tmp_path / "wrong").write_text(WRONG)
    given = {name: value.format(tmp_path) for name, value in options.items()}
    reader = CdcdReader(parse_options({"config": secured.configure(), **given}))
    with pytest.raises(error) as caught:
        reader.partitions()
    assert advice in caught.value.advice
    assert WRONG not in str(caught.value)


@pytest.mark.nightly  # the certificate's case connects in the same way
def test_the_blocks_of_the_page_run(secured: Secured, spark: SparkSession, tmp_path: Path) -> None:
    pages = ("docs/spark/read.md", "docs/spark/connect.md", "docs/spark/decode.md", "README.md")
    page = [text for name in pages for text in python_blocks(name)]
    page = [text for text in page if 'format("kafka")' not in text]  # needs packages of the JVM
    here = {
        '"/etc/cdcd/cdcd.yaml"': f'"{secured.configure()}"',
        '"cdcd.yaml"': f'"{secured.configure()}"',
        "/etc/cdcd/secrets/kafka-password": f"{tmp_path}/kafka",
        "/etc/cdcd/tls/registry/ca.crt": f"{tmp_path}/ca.crt",
        "shop.public.orders": secured.items.topic,
        '"public.orders"': '"public.items"',
        '"shop"': f'"{secured.topics.prefix}"',
        "kafka-0.example.com:9093": f"127.0.0.1:{secured.kafka.sasl.port}",
        "SASL_SSL": "SASL_PLAINTEXT",
        "https://registry-0.example.com,https://registry-1.example.com": secured.door.url,
        "/data/": f"{tmp_path}/data/",
    }
    assert len(page) == 7
    for old in here:
        assert any(old in block for block in page), f"no block has {old}"
    found: dict[str, Any] = {"spark": spark}
    register(spark)  # Spark does not search an editable installation, as docs/spark/read.md says
    for block in page:
        text = block
        for old, new in here.items():
            text = text.replace(old, new)
        exec(text, found)
        if not found["changes"].isStreaming:
            assert found["changes"].count() == len(IDS)
            assert sorted(row["id"] for row in found["orders"].select("after.id").collect()) == IDS
    assert found["recent"].isStreaming
    assert found["recent"].select("after.*").columns == ["id", "name"]
    assert found["names"].columns == ["commit_lsn", "tx_seq", "id", "name"]
    found["query"].stop()
    assert run_to_end(found["stream"].trigger(availableNow=True).start) is None
    written = spark.read.parquet(f"{tmp_path}/data/orders").select("after.id").collect()
    assert {row["id"] for row in written} == set(IDS)
