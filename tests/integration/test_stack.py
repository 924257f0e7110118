"""The local stack itself: every server starts and behaves as the other tests assume."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from confluent_kafka.admin import AdminClient
from psycopg2.extras import LogicalReplicationConnection

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.class_archive import QUIET
from cdcd.demo.stack.kafka import KafkaBroker, KafkaCluster
from cdcd.demo.stack.packages import java, registry_java, run
from cdcd.demo.stack.postgres import PostgresServer, programs_from_wheel
from cdcd.demo.stack.registry import SchemaRegistry
from tests.support.doors import KafkaDoors
from tests.support.nightly import nightly, nightly_except
from tests.support.stack import POSTGRES_MAJORS, SLOT_OWNER, PostgresServers, confirmed_position, wal_position
from tests.support.topics import (
    committed_values,
    create_topic,
    new_name,
    produce_all,
    transactional_producer,
)
from tests.support.waiting import eventually

TEXT = {"type": "record", "name": "Row", "fields": [{"name": "a", "type": "string"}]}
TEXT_AND_MORE = {"type": "record", "name": "Row", "fields": [*TEXT["fields"], {"name": "b", "type": "int"}]}


@pytest.mark.parametrize("major", nightly_except(POSTGRES_MAJORS, POSTGRES_MAJORS[-1]))
def test_each_postgres_major_decodes_logically(pg_server: PostgresServers, major: int) -> None:
    server = pg_server(major)
    assert int(server.execute("SHOW server_version_num")[0][0]) // 10000 == major
    assert server.execute("SHOW wal_level") == [("logical",)]
    server.execute("SELECT pg_create_logical_replication_slot('starts', 'pgoutput')")
    assert confirmed_position(server, "starts") <= wal_position(server)
    server.execute("SELECT pg_drop_replication_slot('starts')")


@pytest.mark.parametrize("major", [nightly(16), 18])
def test_the_wheels_postgres_starts(stack_folder: Path, major: int) -> None:
    with PostgresServer(major, programs_from_wheel(major), stack_folder / f"wheel-{major}") as server:
        assert int(server.execute("SHOW server_version_num")[0][0]) // 10000 == major


@pytest.mark.nightly  # tests of the daemon stop and kill servers
def test_postgres_keeps_port_and_data_over_stop_and_kill(pg_server: PostgresServers) -> None:
    with pg_server.fresh(17) as server:
        server.execute("CREATE TABLE kept AS SELECT 1 AS n")
        server.execute("CHECKPOINT")
        address = server.dsn()
        server.restart("immediate")
        server.kill()
        server.start()
        assert server.dsn() == address
        assert server.execute("SELECT n FROM kept") == [(1,)]


def test_a_role_may_replicate_and_needs_its_password(pg_server: PostgresServers) -> None:
    with pg_server.fresh(18, authentication="scram-sha-256") as server:
        server.create_role("streamer", "right")
        psycopg2.connect(server.dsn(user="streamer", password="right")).close()
        with pytest.raises(psycopg2.OperationalError, match="password authentication failed"):
            psycopg2.connect(server.dsn(user="streamer", password="wrong"))
        assert server.execute("SELECT rolreplication FROM pg_roles WHERE rolname = 'streamer'") == [(True,)]


def test_a_database_is_dropped_with_its_slots(postgres: PostgresServer, database: str) -> None:
    statement = "SELECT pg_create_logical_replication_slot(current_database()::text, 'pgoutput')"
    postgres.execute(statement, dbname=database)
    postgres.drop_database(database)
    assert confirmed_position(postgres, database) is None


def test_a_database_is_dropped_when_a_slots_owner_has_released_it(
    postgres: PostgresServer, database: str
) -> None:
    """A walsender ends some time after its termination; in this test it is stopped meanwhile."""
    statement = "SELECT pg_create_logical_replication_slot(current_database()::text, 'test_decoding')"
    postgres.execute(statement, dbname=database)
    owner = psycopg2.connect(postgres.dsn(database), connection_factory=LogicalReplicationConnection)
    with closing(owner), owner.cursor() as cursor:
        cursor.start_replication(slot_name=database)
        ((pid,),) = eventually(lambda: postgres.execute(SLOT_OWNER, database), "the slot has an owner")
        os.kill(pid, signal.SIGSTOP)
        goes_on = threading.Timer(1, os.kill, (pid, signal.SIGCONT))
        goes_on.start()
        try:
            postgres.drop_database(database)
        finally:
            goes_on.join()
    assert confirmed_position(postgres, database) is None


@pytest.mark.nightly
def test_a_broker_whose_ports_are_taken_takes_others_also_behind_its_proxy(
    artefacts: Cache, tmp_path: Path
) -> None:
    """Another process can be faster; in this test it has the port of the listener behind the proxy."""
    broker = KafkaBroker(tmp_path / "kafka", cache=artefacts)
    with KafkaDoors(broker) as doors:
        (proxy,) = doors.proxies
        with socket.create_server(proxy.target), broker:
            found = AdminClient({"bootstrap.servers": doors.bootstrap}).list_topics(timeout=30)
    (only,) = found.brokers.values()
    assert only.port == proxy.port


@pytest.mark.nightly
def test_a_broker_does_not_take_another_one_at_its_port_for_itself(
    kafka: KafkaBroker, artefacts: Cache, tmp_path: Path
) -> None:
    broker = KafkaBroker(tmp_path / "kafka", cache=artefacts)
    broker.port = kafka.port
    with broker:
        assert broker.port != kafka.port
        found = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30)
    assert found.cluster_id == broker.cluster_id


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [KafkaBroker, SchemaRegistry])
def test_a_server_starts_from_the_archive_of_its_classes_and_its_log_says_nothing_about_it(
    artefacts: Cache, tmp_path: Path, kind: type[KafkaBroker | SchemaRegistry]
) -> None:
    with kind(tmp_path / "server", cache=artefacts) as server:
        mapped = Path(f"/proc/{server.pid}/maps").read_text()
        (log,) = (tmp_path / "server").glob("*.log")
    assert f"{artefacts.root}/" in "".join(line for line in mapped.splitlines() if ".classes-" in line)
    assert "cds" not in log.read_text()


@pytest.mark.parametrize("java", [java(), registry_java()], ids=["the machine's", "the registry's"])
@pytest.mark.parametrize(
    "content", [nightly(None), nightly(b""), b"not an archive" * 1000], ids=["absent", "empty", "other"]
)
def test_a_java_that_refuses_an_archive_runs_and_says_nothing_about_it(
    tmp_path: Path, java: str, content: bytes | None
) -> None:
    archive = tmp_path / "server.jsa"
    if content is not None:
        archive.write_bytes(content)
    assert run([java, f"-XX:SharedArchiveFile={archive}", *QUIET, "-version"], "Java ended") == run(
        [java, "-Xshare:off", "-version"], "Java ended"
    ).replace(", sharing", "")


def test_only_committed_transactions_are_read(kafka: KafkaBroker) -> None:
    topic = new_name()
    create_topic(kafka.bootstrap, topic)
    producer = transactional_producer(kafka.bootstrap, new_name("producer"))
    producer.begin_transaction()
    produce_all(producer, topic, [b"aborted"])
    producer.abort_transaction(30)
    producer.begin_transaction()
    produce_all(producer, topic, [b"first", b"second"])
    assert committed_values(kafka.bootstrap, topic) == []
    producer.commit_transaction(30)
    assert committed_values(kafka.bootstrap, topic, at_least=2) == [b"first", b"second"]


@pytest.mark.nightly  # fault 18 kills brokers, too
@pytest.mark.own_broker
def test_a_killed_broker_comes_back_with_its_records(kafka: KafkaBroker) -> None:
    topic = new_name()
    create_topic(kafka.bootstrap, topic)
    producer = transactional_producer(kafka.bootstrap, new_name("producer"))
    producer.begin_transaction()
    produce_all(producer, topic, [b"kept"])
    producer.commit_transaction(30)
    assert committed_values(kafka.bootstrap, topic, at_least=1) == [b"kept"]  # see KafkaBroker.kill
    address = kafka.bootstrap
    kafka.kill()
    kafka.start()
    assert kafka.bootstrap == address
    assert committed_values(kafka.bootstrap, topic, at_least=1) == [b"kept"]


@pytest.mark.nightly  # fault 18 kills brokers, too
def test_three_brokers_survive_the_loss_of_one(kafka_cluster: KafkaCluster) -> None:
    topic = new_name()
    create_topic(kafka_cluster.bootstrap, topic, copies=3)
    producer = transactional_producer(kafka_cluster.bootstrap, new_name("producer"))
    kafka_cluster.brokers[0].kill()
    producer.begin_transaction()
    produce_all(producer, topic, [b"written with two brokers"])
    producer.commit_transaction(60)
    kafka_cluster.brokers[0].start()
    assert committed_values(kafka_cluster.bootstrap, topic, at_least=1) == [b"written with two brokers"]


def test_the_registry_refuses_an_incompatible_schema(registry: SchemaRegistry) -> None:
    subject = new_name("subject")
    status, answer = registered(registry, subject, TEXT)
    assert status == 200
    assert answer["id"] > 0
    assert ask(registry, "PUT", f"/config/{subject}", {"compatibility": "BACKWARD"})[0] == 200
    assert registered(registry, subject, TEXT) == (200, answer)
    assert registered(registry, subject, TEXT_AND_MORE)[0] == 409
    assert ask(registry, "GET", f"/subjects/{new_name('unknown')}/versions/latest")[0] == 404


def test_servers_die_with_the_process_that_started_them() -> None:
    started = subprocess.Popen(
        [sys.executable, "-m", "cdcd.demo.stack", "--only", "postgres"], stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    servers = json.loads(started.stdout.readline())
    started.send_signal(signal.SIGKILL)
    started.wait()
    eventually(lambda: not is_alive(servers["pids"]["postgres"]), "the end of PostgreSQL")


def registered(
    registry: SchemaRegistry, subject: str, schema: dict[str, object]
) -> tuple[int, dict[str, object]]:
    return ask(registry, "POST", f"/subjects/{subject}/versions", {"schema": json.dumps(schema)})


def ask(
    registry: SchemaRegistry, method: str, path: str, body: object = None
) -> tuple[int, dict[str, object]]:
    request = urllib.request.Request(
        registry.url + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.load(refusal)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie that its new parent has not reaped yet counts as dead.
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
