"""No registry: schemas in a topic, written with their first records, and served to unmodified registry clients.

The judges are Confluent's own client and deserializer, fastavro, Avro's Java library, and a plain consumer.
"""

from __future__ import annotations

import base64
import io
import json
import struct
import subprocess
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import fastavro
import pyspark
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.schema_registry import (
    Schema,
    SchemaRegistryClient,
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.packages import java
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.spark.clients.connection import RegistryAccess
from cdcd.spark.decoding.schemas import schema_by_id
from tests.integration.conftest import NewDaemon
from tests.support.daemon import STREAM_ONLY, Daemon, await_confirmed
from tests.support.nightly import nightly
from tests.support.reader import Reader, assert_each_once
from tests.support.stack import run
from tests.support.topics import committed_records
from tests.support.waiting import eventually

NONE: dict[str, Any] = {"registry": "none", "snapshot": STREAM_ONLY}


def url_of(daemon: Daemon) -> str:
    return f"http://127.0.0.1:{daemon.port}"


def client_of(daemon: Daemon) -> SchemaRegistryClient:
    """Return Confluent's own client, as its users create it."""
    return SchemaRegistryClient({"url": url_of(daemon)})


def answer(daemon: Daemon, path: str) -> tuple[int, Any]:
    code, body = daemon.get(path)
    return code, json.loads(body)


def schemas_in_topic(kafka: KafkaBroker, daemon: Daemon) -> list[dict[str, Any]]:
    """Return the schemas that a plain read_committed consumer finds in the topic."""
    records = committed_records(kafka.bootstrap, f"{daemon.name}.__schemas")
    return [json.loads(record.value()) for record in records]


def decoded_by_topic(kafka: KafkaBroker, daemon: Daemon, topic: str) -> list[Any]:
    """Return the values of a topic, decoded by fastavro with only the schemas of the schema topic."""
    schemas = {one["id"]: json.loads(one["schema"]) for one in schemas_in_topic(kafka, daemon)}
    values = []
    for record in committed_records(kafka.bootstrap, topic):
        raw = record.value()
        (number,) = struct.unpack_from(">I", raw, 1)
        values.append(fastavro.schemaless_reader(io.BytesIO(raw[5:]), schemas[number]))
    return values


TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"


@pytest.mark.parametrize("delivery", ["exactly_once", nightly("at_least_once")])
def test_unmodified_clients_read_what_the_daemon_serves(
    delivery: str, postgres: PostgresServer, database: str, kafka: KafkaBroker, new_daemon: NewDaemon
) -> None:
    run(postgres, database, TABLE, "INSERT INTO t SELECT g, 'v' FROM generate_series(1, 5) g")
    with new_daemon(postgres, database, sink={"delivery": delivery}, **NONE) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        run(
            postgres,
            database,
            "UPDATE t SET v = 'w'",
            "ALTER TABLE t ADD n int DEFAULT 7",
            "INSERT INTO t VALUES (6, 'x', 8)",
            "SELECT pg_logical_emit_message(true, 'p', 'c')",
        )
        reader = Reader(kafka.bootstrap, url_of(daemon))
        events = reader.wait([topic], lambda events: len(events) == 11)
        assert_each_once(events)
        assert [event.op for event in events].count("u") == 5
        assert [e.value["after"] for e in events if e.key == {"id": 6}] == [{"id": 6, "v": "x", "n": 8}]
        # With the deserializer's own defaults, which request associations first.
        default = AvroDeserializer(client_of(daemon))
        for record in committed_records(kafka.bootstrap, topic):
            context = SerializationContext(topic, MessageField.VALUE)
            assert default(record.value(), context)["source"]["table"] == "t"
        assert len(decoded_by_topic(kafka, daemon, topic)) == 11
        (message,) = reader.wait([f"{daemon.name}.message"], lambda events: len(events) == 1)
        assert message.value["content"] == b"c"


def test_the_read_end_points_of_the_registry_api(
    postgres: PostgresServer, database: str, kafka: KafkaBroker, new_daemon: NewDaemon
) -> None:
    """The requests of an unmodified client, and Confluent's own error codes for missing objects."""
    run(postgres, database, TABLE, "INSERT INTO t VALUES (1, 'v')")
    with new_daemon(postgres, database, **NONE) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        run(postgres, database, "ALTER TABLE t ADD n int", "INSERT INTO t VALUES (2, 'w', 3)")
        await_confirmed(postgres, daemon)
        client = client_of(daemon)
        assert client.get_subjects() == [f"{topic}-key", f"{topic}-value"]
        assert client.get_versions(f"{topic}-value") == [1, 2]
        latest = client.get_latest_version(f"{topic}-value")
        assert latest.version == 2
        by_id = client.get_schema(latest.schema_id)
        assert by_id.schema_str == latest.schema.schema_str
        assert client.get_version(f"{topic}-value", 1).schema_id != latest.schema_id
        again = client_of(daemon).lookup_schema(f"{topic}-value", Schema(latest.schema.schema_str, "AVRO"))
        assert (again.schema_id, again.version) == (latest.schema_id, 2)
        spaced = json.dumps(json.loads(latest.schema.schema_str), indent=2, sort_keys=True)
        assert client.lookup_schema(f"{topic}-value", Schema(spaced, "AVRO")).version == 2
        assert client.get_compatibility() == "BACKWARD_TRANSITIVE"
        assert client.get_compatibility(f"{topic}-value") == "BACKWARD_TRANSITIVE"
        assert client.get_contexts() == ["."]
        places = [{"subject": f"{topic}-value", "version": 2}]
        assert answer(daemon, f"/schemas/ids/{latest.schema_id}/versions") == (200, places)
        assert answer(daemon, f"/schemas/ids/{latest.schema_id}/subjects") == (200, [f"{topic}-value"])
        assert answer(daemon, f"/schemas/ids/{latest.schema_id}/schema")[1]["type"] == "record"
        assert answer(daemon, f"/subjects/{topic}-value/versions/latest/schema")[1]["type"] == "record"
        assert answer(daemon, "/schemas/types") == (200, ["AVRO"])
        assert answer(daemon, f"/subjects?subjectPrefix={topic}-k") == (200, [f"{topic}-key"])
        for path, status, code in (
            ("/schemas/ids/1", 404, 40403),
            ("/schemas/ids/x", 404, 40403),
            ("/subjects/nothing/versions", 404, 40401),
            ("/subjects/nothing/versions/latest", 404, 40401),
            (f"/subjects/{topic}-value/versions/3", 404, 40402),
            (f"/subjects/{topic}-value/versions/x", 422, 42202),
            ("/config/nothing", 404, 40408),
        ):
            found, body = answer(daemon, path)
            assert (path, found, body["error_code"]) == (path, status, code)
        for ask, status, code in (
            (lambda: client.lookup_schema("nothing", Schema('"int"', "AVRO")), 404, 40401),
            (lambda: client.lookup_schema(f"{topic}-value", Schema('"int"', "AVRO")), 404, 40403),
            (lambda: client.register_schema(f"{topic}-value", Schema('"int"', "AVRO")), 422, 42205),
        ):
            with pytest.raises(SchemaRegistryError) as caught:
                ask()
            assert (caught.value.http_status_code, caught.value.error_code) == (status, code)


def test_after_a_restart_the_topic_answers_before_anything_flows(
    postgres: PostgresServer, database: str, kafka: KafkaBroker, new_daemon: NewDaemon
) -> None:
    run(postgres, database, TABLE, "INSERT INTO t VALUES (1, 'v')")
    with new_daemon(postgres, database, **NONE) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        before = schemas_in_topic(kafka, daemon)
        daemon.kill()
        daemon.config["source"]["publication"] = {"names": ["not_there"]}
        daemon.start()
        daemon.wait_state("halted")
        assert client_of(daemon).get_latest_version(f"{topic}-value").version == 1
        daemon.kill()
        del daemon.config["source"]["publication"]
        daemon.start().wait_state("streaming")
        run(postgres, database, "INSERT INTO t VALUES (2, 'w')")
        await_confirmed(postgres, daemon)
        assert schemas_in_topic(kafka, daemon) == before
        assert len(Reader(kafka.bootstrap, url_of(daemon)).read(topic)) == 2


@pytest.mark.nightly
def test_two_daemons_of_one_prefix_share_the_topic(
    postgres: PostgresServer, database: str, kafka: KafkaBroker, new_daemon: NewDaemon
) -> None:
    """Each serves the schemas that the other has written, and the same schema has the same id in both."""
    run(postgres, database, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    one, two = new_daemon(postgres, database, **NONE), new_daemon(postgres, database, **NONE)
    for daemon, table in ((one, "a"), (two, "b")):
        run(
            postgres,
            database,
            f"DROP PUBLICATION cdcd_{daemon.name}",
            f"CREATE PUBLICATION cdcd_{daemon.name} FOR TABLE {table}",
        )
    two.config["name"] = one.name
    two.config["source"] |= {
        "protocol": {"messages": False},  # messages belong to the database: each slot would write them
        "slot": {"name": two.slot},
        "publication": {"names": [f"cdcd_{two.name}"]},
    }
    with one, two:
        one.start()
        two.start()
        for daemon in (one, two):
            daemon.wait_state("streaming")
        run(
            postgres,
            database,
            "INSERT INTO a VALUES (1)",
            "INSERT INTO b VALUES (1)",
            "SELECT pg_logical_emit_message(true, 'p', 'c')",
        )
        names = [f"{one.name}.public.{table}-{part}" for table in "ab" for part in ("key", "value")]
        names += [f"{one.name}.message-{part}" for part in ("key", "value")]
        for daemon in (one, two):
            for name in names:
                assert client_of(daemon).get_latest_version(name).version == 1
        found = schemas_in_topic(kafka, one)
        assert len({one["id"] for one in found}) == len({one["schema"] for one in found}) == 6
        for daemon in (one, two):
            events = Reader(kafka.bootstrap, url_of(daemon)).read(*(f"{one.name}.public.{t}" for t in "ab"))
            assert len(events) == 2


@pytest.mark.nightly  # test_evolution has the halt
def test_an_incompatible_change_halts_with_the_difference(
    postgres: PostgresServer, database: str, kafka: KafkaBroker, new_daemon: NewDaemon
) -> None:
    run(postgres, database, TABLE, "INSERT INTO t VALUES (1, '7')")
    with new_daemon(postgres, database, **NONE) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        run(postgres, database, "ALTER TABLE t ALTER v TYPE int USING v::int", "INSERT INTO t VALUES (2, 8)")
        page = daemon.wait_state("halted")
        assert "CDCD-SCHEMA-INCOMPATIBLE" in page["reason"]
        assert "before.v: string cannot be read as" in page["reason"]
        assert len(committed_records(kafka.bootstrap, topic)) == 1
        assert client_of(daemon).get_versions(f"{topic}-value") == [1]
        # The resolution that the error names.
        assert daemon.stop() == 0
        daemon.config["registry"] = {"url": "none", "incompatible": "register_with_none"}
        daemon.start()
        await_confirmed(postgres, daemon)
        assert daemon.stop() == 0
        daemon.config["registry"] = "none"
        daemon.start()
        run(postgres, database, "ALTER TABLE t ADD w int", "INSERT INTO t VALUES (3, 9, 9)")
        await_confirmed(postgres, daemon)
        events = Reader(kafka.bootstrap, url_of(daemon)).read(topic)
        assert {event.key["id"]: event.value["after"]["v"] for event in events} == {1: "7", 2: 8, 3: 9}
        assert client_of(daemon).get_versions(f"{topic}-value") == [1, 2, 3]


def test_nothing_of_an_aborted_transaction_is_served(
    postgres: PostgresServer, database: str, kafka: KafkaBroker, new_daemon: NewDaemon
) -> None:
    """The new schema is in the log, but its transaction is undecided: neither plain readers nor clients see it."""
    run(postgres, database, TABLE)
    with new_daemon(postgres, database, **NONE) as daemon:
        daemon.config["sink"]["commit"] = {"max_wait_ms": 10000}  # the transaction stays undecided so long
        daemon.start().wait_state("streaming")
        postgres.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(1, 300) g", dbname=database)
        name = f"{daemon.name}.__schemas"
        eventually(lambda: uncommitted(kafka, name), "the schema is in the log")
        daemon.kill()
        assert schemas_in_topic_now(kafka, name) == []
        del daemon.config["sink"]["commit"]
        daemon.start().wait_state("streaming")
        await_confirmed(postgres, daemon, within_s=120)
        events = Reader(kafka.bootstrap, url_of(daemon)).read(f"{daemon.name}.public.t")
        assert len(events) == 300
        found = schemas_in_topic(kafka, daemon)
        assert sorted(one["subject"].rsplit("-")[-1] for one in found) == ["key", "value"]
        assert [one["version"] for one in found] == [1, 1]


def uncommitted(kafka: KafkaBroker, topic: str) -> int:
    return sum(1 for _ in _read(kafka, topic, "read_uncommitted"))


def schemas_in_topic_now(kafka: KafkaBroker, topic: str) -> list[Any]:
    return [json.loads(value) for value in _read(kafka, topic, "read_committed")]


def _read(kafka: KafkaBroker, topic: str, level: str) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "looker",
            "isolation.level": level,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    values = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while (message := consumer.poll(20)) is not None:
            if message.error() is not None:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                return values
            values.append(message.value())
    finally:
        consumer.close()
    raise AssertionError("no end")


def test_before_the_topic_was_read_nothing_is_denied(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """503, which clients retry: a 404 would mean that the id does not exist."""
    with new_daemon(postgres, database, sink={"bootstrap_servers": "127.0.0.1:1"}, **NONE) as daemon:
        daemon.start()
        eventually(lambda: daemon.get("/livez")[0] == 200, "the port is open")
        request = urllib.request.Request(f"{url_of(daemon)}/schemas/ids/7")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=10)
        assert caught.value.code == 503


@pytest.mark.nightly
def test_a_reader_that_asks_during_a_restart_waits_for_it(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, kafka: KafkaBroker
) -> None:
    """The mirror does so too: the port is away for a moment, which is no error."""
    run(postgres, database, TABLE, "INSERT INTO t VALUES (1, 'v')")
    with new_daemon(postgres, database, **NONE) as daemon:
        daemon.start().wait_state("streaming")
        number = schemas_in_topic(kafka, daemon)[0]["id"]
        daemon.kill()
        found: list[Any] = []
        requesting = threading.Thread(
            target=lambda: found.append(schema_by_id(RegistryAccess(url_of(daemon)), number))
        )
        requesting.start()
        daemon.start()
        requesting.join(60)
        assert found
        assert found[0]["type"] == "record"


@pytest.mark.nightly  # two other clients read it at each change
def test_avros_java_library_reads_what_the_daemon_serves(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, kafka: KafkaBroker
) -> None:
    """A Java client: the JDK's HTTP, Avro's own decoder."""
    run(
        postgres,
        database,
        "CREATE TABLE t (id int PRIMARY KEY, v text, a int[], at date)",
        "INSERT INTO t VALUES (1, 'ünï', '{1,NULL,3}', '2026-11-21')",
    )
    with new_daemon(postgres, database, **NONE) as daemon:
        daemon.start().wait_state("streaming")
        run(postgres, database, "ALTER TABLE t ADD n bigint", "UPDATE t SET n = 4611686018427387904")
        await_confirmed(postgres, daemon)
        records = committed_records(kafka.bootstrap, f"{daemon.name}.public.t", at_least=2)
        lines = "".join(base64.b64encode(record.value()).decode() + "\n" for record in records)
        jars = Path(pyspark.__file__).parent / "jars"
        program = Path(__file__).parents[1] / "support" / "AvroReader.java"
        command = [java(), "-cp", f"{jars}/*", str(program), url_of(daemon)]
        read = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120, check=True)
        rows = [json.loads(line)["after"] for line in read.stdout.splitlines()]
        assert rows[0] == {"id": 1, "v": "ünï", "a": [1, None, 3], "at": 20778}
        assert rows[1] == {**rows[0], "n": 4611686018427387904}


@pytest.mark.nightly  # tests/unit/registry has the names
@pytest.mark.parametrize(
    ("subjects", "judge"),
    [
        ("record_name", record_subject_name_strategy),
        ("topic_record_name", topic_record_subject_name_strategy),
    ],
)
def test_subjects_are_named_as_confluents_own_strategies_name_them(
    subjects: str,
    judge: Any,
    postgres: PostgresServer,
    database: str,
    kafka: KafkaBroker,
    new_daemon: NewDaemon,
) -> None:
    """A key's columns stay those of the registered key, which is found under such a name as well."""
    run(
        postgres, database, "CREATE TABLE t (a int, b int, PRIMARY KEY (b, a))", "INSERT INTO t VALUES (1, 2)"
    )
    over = {"registry": {"url": "none", "subjects": subjects}}
    with new_daemon(postgres, database, **over) as daemon:
        daemon.start().wait_state("streaming")
        topic = f"{daemon.name}.public.t"
        records = {"key": f"{topic}.Key", "value": f"{topic}.Envelope"}
        wanted = [judge(SerializationContext(topic, part), name) for part, name in records.items()]
        assert client_of(daemon).get_subjects() == sorted(wanted)
        assert daemon.stop() == 0
        run(postgres, database, "UPDATE t SET a = 3", "DROP TABLE t")
        daemon.start().wait_state("streaming")
        reader = Reader(kafka.bootstrap, url_of(daemon))
        events = reader.wait([topic], lambda events: len(events) == 4)
        assert {tuple(event.key) for event in events} == {("b", "a")}
