"""`cdcd wait` and GET /wait: read your own writes, through a real daemon. The judge is a read_committed consumer."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import psycopg2
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.ports import free_port
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.lsn import end_of_commits, parse_lsn
from tests.bench.latency import id_of_key
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed, environment_without_cdcd
from tests.support.proxy import Proxy
from tests.support.stack import PostgresServers
from tests.support.waiting import eventually

WAITERS = 1_000
UNSEEN = "are durable in Kafka, but consumers with read_committed do not get them yet"
WRITE_TXN_MARKERS = (27).to_bytes(2)
"""The API key of the request with which a coordinator has the markers written; it is after the request's size."""


class Writes:
    """A session that writes, and knows where its commits end."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg2.connect(dsn)
        self._connection.autocommit = True

    def run(self, statement: str, *values: Any) -> str:
        """Run a transaction; return the LSN after it."""
        with self._connection.cursor() as cursor:
            cursor.execute(statement, values)
            cursor.execute("SELECT pg_current_wal_insert_lsn()::text")
            row = cursor.fetchone()
            assert row is not None
            return str(row[0])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@pytest.fixture
def writes(postgres: PostgresServer, database: str) -> Iterator[Writes]:
    with closing(Writes(postgres.dsn(database))) as one:
        yield one


@pytest.fixture
def daemon(postgres: PostgresServer, database: str, new_daemon: NewDaemon) -> Daemon:
    postgres.execute("CREATE TABLE notes (id int PRIMARY KEY, body text)", dbname=database)
    made = new_daemon(postgres, database)
    made.start().wait_state("streaming")
    return made


def asked(daemon: Daemon, lsn: str, timeout_ms: int = 60_000) -> tuple[int, dict[str, Any]]:
    code, body = daemon.get(f"/wait?lsn={lsn}&timeout_ms={timeout_ms}", within_s=90)
    return code, json.loads(body)


class Reader:
    """Reads what a read_committed consumer has at this moment."""

    def __init__(self, kafka: KafkaBroker, topic: str) -> None:
        self._topic = topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "group.id": "unused",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 10,  # other requests wait for the answer
            }
        )
        self._partitions = list(self._consumer.list_topics(topic, 30).topics[topic].partitions)
        self.places: dict[int, int] = {}

    def ends(self) -> dict[int, int]:
        """Return the last stable offset of each partition."""
        return {
            number: self._consumer.get_watermark_offsets(TopicPartition(self._topic, number), 30)[1]
            for number in self._partitions
        }

    def read(self) -> list[bytes]:
        """Read up to the present ends; return the keys of the records, without markers."""
        ends = self.ends()
        self._consumer.assign([TopicPartition(self._topic, one, self.places.get(one, 0)) for one in ends])
        keys, deadline_s = [], time.monotonic() + 60
        while any(self.places.get(one, 0) < end for one, end in ends.items()):
            assert time.monotonic() < deadline_s
            for message in self._consumer.consume(10_000, 0.05):
                assert message.error() is None, message.error()
                keys.append(message.key())
            for place in self._consumer.position(list(map(self._place, ends))):
                self.places[place.partition] = max(place.offset, self.places.get(place.partition, 0))
        return keys

    def _place(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topic, partition)


def test_a_commit_is_durable_when_the_answer_comes(
    daemon: Daemon, writes: Writes, postgres: PostgresServer, kafka: KafkaBroker
) -> None:
    """Also one of another database, whose position has no record of its own."""
    reader, topic = None, f"{daemon.name}.public.notes"
    elsewhere = "SELECT pg_logical_emit_message(true, 'other', 'database')"
    others = Writes(postgres.dsn("postgres"))
    system = postgres.execute("SELECT system_identifier::text FROM pg_control_system()")[0][0]
    for number in range(6):
        lsn = writes.run("INSERT INTO notes VALUES (%s, 'a')", number)
        code, page = asked(daemon, lsn)
        assert code == 200, page
        assert parse_lsn(page["durable_lsn"]) >= parse_lsn(lsn)
        assert page["timeline"] == 1
        assert page["system_identifier"] == system
        reader = reader or Reader(kafka, topic)
        assert len(reader.read()) == 1, "the row is readable when the answer has come"
        assert asked(daemon, others.run(elsewhere))[0] == 200
    others.close()


def test_what_is_not_durable_is_said_after_the_time(daemon: Daemon, writes: Writes) -> None:
    lsn = writes.run("INSERT INTO notes VALUES (1, 'a')")
    assert asked(daemon, lsn)[0] == 200
    code, page = asked(daemon, "FFFFFFFF/0", timeout_ms=50)
    assert code == 504
    assert page["state"] == "streaming"
    assert parse_lsn(page["durable_lsn"]) >= end_of_commits(parse_lsn(lsn))


def test_a_commit_whose_markers_are_late_is_not_answered(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, tmp_path: Path, artefacts: Cache
) -> None:
    """A broker answers a commit before its markers are written: here the link to the leader of the rows is held.

    The row is durable then, and the slot confirmed, but no reader of committed records gets it.
    """
    broker = KafkaBroker(
        tmp_path / "kafka", cache=artefacts, settings={"inter.broker.listener.name": "PEERS"}
    )
    port = free_port()
    with Proxy(port) as link:
        broker.add_listener("PEERS", port, advertised_port=link.port, moved=link.point_to)
        with broker, closing(Writes(postgres.dsn(database))) as writes:
            writes.run("CREATE TABLE notes (id int PRIMARY KEY, body text)")
            daemon = new_daemon(postgres, database)
            daemon.config["sink"]["bootstrap_servers"] = broker.bootstrap
            daemon.start().wait_state("streaming")
            assert asked(daemon, writes.run("INSERT INTO notes VALUES (1, 'a')"))[0] == 200
            reader = Reader(broker, f"{daemon.name}.public.notes")
            assert len(reader.read()) == 1
            link.hold_when(lambda way, data: way == "up" and data[4:6] == WRITE_TXN_MARKERS)
            lsn = writes.run("INSERT INTO notes VALUES (2, 'a')")
            await_confirmed(postgres, daemon)
            code, page = asked(daemon, lsn, timeout_ms=50)
            assert code == 504
            assert UNSEEN in page["message"]
            assert parse_lsn(page["durable_lsn"]) >= end_of_commits(parse_lsn(lsn))
            assert reader.read() == []
            link.heal()
            assert asked(daemon, lsn)[0] == 200
            assert len(reader.read()) == 1


REFUSED = (
    "",
    "lsn=",
    "lsn=7",
    "lsn=0/0/0",
    "lsn=1/1&timeout_ms=-1",
    "lsn=1/1&timeout_ms=9999999999",
    "lsn=1/1&n=2",
)


def test_an_argument_that_is_none_is_refused(daemon: Daemon) -> None:
    for query in REFUSED:
        code, body = daemon.get(f"/wait?{query}")
        assert (code, set(json.loads(body))) == (400, {"message"}), query


def test_another_daemons_name_is_refused(daemon: Daemon) -> None:
    assert daemon.get("/wait?lsn=1/1&name=another")[0] == 409


def test_a_thousand_wait_and_the_probes_are_answered(daemon: Daemon, writes: Writes) -> None:
    """All of them are answered by the commit that they wait for, and none before."""
    before = parse_lsn(writes.run("INSERT INTO notes VALUES (1, 'a')"))
    assert asked(daemon, writes.run("INSERT INTO notes VALUES (2, 'a')"))[0] == 200
    lsn = f"{(before >> 32):X}/{(before & 0xFFFFFFFF) + (1 << 20):X}"  # a megabyte later

    async def scenario() -> list[int]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            url = f"http://127.0.0.1:{daemon.port}/wait?lsn={lsn}&timeout_ms=120000"

            async def one() -> int:
                async with session.get(url) as answer:
                    return answer.status

            tasks: list[asyncio.Task[int]] = []
            while len(tasks) < WAITERS:
                tasks += [asyncio.ensure_future(one()) for _ in range(100)]
                await asyncio.to_thread(_await_waiters, daemon, len(tasks))
                assert await asyncio.to_thread(daemon.get, "/livez") == (200, "streaming\n")
            assert not any(task.done() for task in tasks)
            rows = "INSERT INTO notes SELECT n, repeat('a', 900) FROM generate_series(3, 2000) n"
            await asyncio.to_thread(writes.run, rows)
            return await asyncio.gather(*tasks)

    assert asyncio.run(scenario()) == [200] * WAITERS


def _await_waiters(daemon: Daemon, count: int) -> None:
    eventually(lambda: daemon.status().get("waiters") == count, f"{count} wait")


def test_the_command_goes_on_while_the_daemon_starts_again(daemon: Daemon, writes: Writes) -> None:
    daemon.kill()
    lsn = writes.run("INSERT INTO notes VALUES (1, 'a')")
    with _waiting(daemon, lsn, "--timeout", "120") as command:
        daemon.start().wait_state("streaming")
        output, _ = command.communicate(timeout=120)
    assert command.returncode == 0, output
    assert output.startswith("durable in Kafka: all commits below ")


def test_the_command_ends_with_an_error_when_its_time_is_over(daemon: Daemon, writes: Writes) -> None:
    with _waiting(daemon, "FFFFFFFF/0", "--timeout", "0.1") as command:
        output, _ = command.communicate(timeout=120)
    assert command.returncode == 1
    assert "CDCD-NOT-DURABLE: not all commits below the LSN are durable in Kafka" in output
    assert "state=streaming" in output
    daemon.kill()
    with _waiting(daemon, "FFFFFFFF/0", "--timeout", "0.1") as command:
        output, _ = command.communicate(timeout=120)
    assert "no cdcd answers on this machine's admin port" in output


def _waiting(daemon: Daemon, lsn: str, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cdcd", "wait", lsn, *options, "--config", str(daemon.config_path)]
    environment = environment_without_cdcd()
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_ten_thousand_answers_are_never_early(
    postgres: PostgresServer, database: str, daemon: Daemon, kafka: KafkaBroker
) -> None:
    """Four sessions write and ask; after each answer a consumer has the row. The daemon is killed now and then."""
    each, sessions = 2_500, 4
    topic, checked, failures = f"{daemon.name}.public.notes", [0] * sessions, []
    over = threading.Event()

    def session(number: int) -> None:
        seen: set[int] = set()
        reader = Reader(kafka, topic)
        with closing(Writes(postgres.dsn(database))) as writes:
            for place in range(each):
                row = number * each + place
                lsn = writes.run("INSERT INTO notes VALUES (%s, 'a')", row)
                while not _is_durable(daemon, lsn):
                    assert not over.is_set()
                seen |= set(map(id_of_key, reader.read()))
                if row not in seen:
                    failures.append((row, lsn))
                checked[number] += 1

    writes = Writes(postgres.dsn(database))
    assert asked(daemon, writes.run("INSERT INTO notes VALUES (-1, 'a')"))[0] == 200
    threads = [threading.Thread(target=session, args=(number,)) for number in range(sessions)]
    for thread in threads:
        thread.start()
    kills = 0
    while any(thread.is_alive() for thread in threads):
        done = sum(checked)
        eventually(
            lambda: sum(checked) > done + 2_000 or not any(one.is_alive() for one in threads),  # noqa: B023
            "the sessions go on",
            600,
        )
        if any(thread.is_alive() for thread in threads):
            daemon.kill()
            daemon.start()
            kills += 1
    writes.close()
    assert failures == []
    assert sum(checked) == each * sessions
    assert kills >= 3


def _is_durable(daemon: Daemon, lsn: str) -> bool:
    """Return whether the answer is that the LSN is durable; a daemon that restarts does not answer."""
    return daemon.get(f"/wait?lsn={lsn}&timeout_ms=30000", within_s=60)[0] == 200


def test_an_lsn_behind_the_header_of_a_page_that_is_not_written_yet_is_reached(
    pg_server: PostgresServers, new_daemon: NewDaemon
) -> None:
    """On an idle server the stream stays at the start of the page, and the insert position is behind its header."""
    with pg_server.fresh(18) as server:
        server.create_database("idle")
        server.execute("CREATE TABLE notes (id int PRIMARY KEY)", dbname="idle")
        with new_daemon(server, "idle") as daemon:
            daemon.start().wait_state("streaming")
            for _ in range(5):  # the server may write WAL of its own in between
                server.execute("SELECT pg_switch_wal()", dbname="idle")
                lsn = str(server.execute("SELECT pg_current_wal_insert_lsn()::text", dbname="idle")[0][0])
                code, body = asked(daemon, lsn)
                assert code == 200
                if end_of_commits(parse_lsn(lsn)) < parse_lsn(lsn) == parse_lsn(body["durable_lsn"]):
                    return  # no record ends in the header
    pytest.fail("the stream was never between the end of the last record and the insert position")


def test_a_commit_that_a_transaction_of_another_producer_hides_is_not_answered(
    postgres: PostgresServer, daemon: Daemon, writes: Writes, kafka: KafkaBroker
) -> None:
    assert asked(daemon, writes.run("INSERT INTO notes VALUES (1, 'a')"))[0] == 200
    topic = f"{daemon.name}.public.notes"
    other = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{daemon.name}-other"})
    other.init_transactions(60)
    other.begin_transaction()
    for partition in Reader(kafka, topic).ends():
        other.produce(topic, b"", b"", partition)
    assert other.flush(60) == 0
    lsn = writes.run("INSERT INTO notes VALUES (2, 'a')")
    await_confirmed(postgres, daemon)
    code, page = asked(daemon, lsn, timeout_ms=300)
    assert (code, UNSEEN in page["message"]) == (504, True), page
    assert parse_lsn(page["durable_lsn"]) >= end_of_commits(parse_lsn(lsn))
    with _waiting(daemon, lsn, "--timeout", "0.5") as command:
        output, _ = command.communicate(timeout=120)
    assert (command.returncode, UNSEEN in output) == (1, True), output
    other.abort_transaction(60)
    assert asked(daemon, lsn)[0] == 200
    assert sorted(map(id_of_key, Reader(kafka, topic).read())) == [1, 2]
