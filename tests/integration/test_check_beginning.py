"""`cdcd check` fails exactly where the daemon halts: both use the same servers.

In: situations of slot, stored position, role and server.  The daemon is the judge: its state and its code.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg2
import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.ports import free_port
from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon
from tests.support.nightly import nightly
from tests.support.stack import PostgresServers, prepare, run_script, slot_is_active
from tests.support.topics import committed_values, create_topic, transactional_producer
from tests.support.waiting import eventually

Findings = dict[str, list[tuple[str, str, str]]]


def cdcd(daemon: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of cdcd with the daemon's own configuration."""
    return daemon.run(*words)


def check(daemon: Daemon) -> tuple[int, Findings]:
    """Return the exit status and, by subject, (level, message, hint); check that nothing else is printed."""
    ended = cdcd(daemon, "check", "--json")
    assert ended.stderr == ""
    found: Findings = {}
    for one in json.loads(ended.stdout):
        found.setdefault(one["subject"], []).append((one["level"], one["message"], one["hint"]))
    return ended.returncode, found


def failed(found: Findings) -> list[str]:
    """Return the subjects that fail."""
    return [subject for subject, all_of in found.items() if any(level == "fail" for level, _, _ in all_of)]


def halted_with(daemon: Daemon) -> str:
    """Return the code of the error with which the daemon halts."""
    daemon.start().wait_state("halted")
    code = str(daemon.events("halted")[-1]["code"])
    daemon.stop()
    return code


def run_once(daemon: Daemon) -> None:
    """Start, stream, stop: afterwards a position is stored and the slot is free."""
    daemon.start().wait_state("streaming")
    assert daemon.stop() == 0


def drop_slot(server: PostgresServer, daemon: Daemon) -> None:
    eventually(lambda: not slot_is_active(server, daemon.slot), "the slot is free")
    server.execute("SELECT pg_drop_replication_slot(%s)", daemon.slot)


def make_slot(server: PostgresServer, database: str, daemon: Daemon, *, two_phase: bool = False) -> None:
    server.execute(
        "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, %s)",
        daemon.slot,
        two_phase,
        dbname=database,
    )


Situation = Callable[[PostgresServer, str, Daemon], None]


def slot_dropped(server: PostgresServer, database: str, daemon: Daemon) -> None:
    run_once(daemon)
    drop_slot(server, daemon)


def slot_recreated(server: PostgresServer, database: str, daemon: Daemon) -> None:
    slot_dropped(server, database, daemon)
    server.execute("INSERT INTO t VALUES (1)", dbname=database)
    make_slot(server, database, daemon)


def slot_without_position(server: PostgresServer, database: str, daemon: Daemon) -> None:
    make_slot(server, database, daemon)


def slot_with_two_phase(server: PostgresServer, database: str, daemon: Daemon) -> None:
    daemon.config["snapshot"] = {"mode": "never"}
    make_slot(server, database, daemon, two_phase=True)


def slot_not_to_be_made(server: PostgresServer, database: str, daemon: Daemon) -> None:
    daemon.config["source"]["slot"] = {"create": False}


def publication_dropped(server: PostgresServer, database: str, daemon: Daemon) -> None:
    daemon.config["source"]["publication"] = {"create": True}
    server.execute(f"DROP PUBLICATION {daemon.slot}", dbname=database)


def schema_closed(server: PostgresServer, database: str, daemon: Daemon) -> None:
    run_script(
        server.dsn(database),
        "CREATE SCHEMA closed",
        "CREATE TABLE closed.c (id int PRIMARY KEY)",
        f"CREATE ROLE {daemon.slot} LOGIN REPLICATION",
        f"GRANT SELECT ON t, closed.c TO {daemon.slot}",
    )
    daemon.config["source"]["dsn"] = server.dsn(database, daemon.slot)


@pytest.mark.parametrize(
    ("situation", "subject", "code"),
    [
        nightly(slot_dropped, "slot", "CDCD-SLOT-MISSING"),
        nightly(slot_recreated, "slot", "CDCD-SLOT-AHEAD"),
        nightly(slot_without_position, "slot", "CDCD-SLOT-UNUSABLE"),
        (slot_with_two_phase, "slot", "CDCD-SLOT-UNUSABLE"),
        nightly(slot_not_to_be_made, "slot", "CDCD-SLOT-MISSING"),
        nightly(publication_dropped, "publication", "CDCD-PUBLICATION-MISSING"),
        nightly(schema_closed, "schema closed", "CDCD-SOURCE-SETUP"),
    ],
)
def test_check_fails_where_the_daemon_halts(
    situation: Situation,
    subject: str,
    code: str,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
) -> None:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    daemon = new_daemon(postgres, database)
    situation(postgres, database, daemon)
    status, found = check(daemon)
    assert (status, failed(found)) == (1, [subject])
    ((_, message, hint),) = [one for one in found[subject] if one[0] == "fail"]
    if subject == "slot":
        assert code in message
    assert hint
    assert halted_with(daemon) == code
    # "topics" is about existing topics: the start may have created the progress topic.
    assert check(daemon)[1].keys() - {"topics"} == found.keys() - {"topics"}, "the halt changed nothing"
    if situation is publication_dropped:
        assert "cdcd init" in hint
        assert cdcd(daemon, "init").returncode == 0
        assert check(daemon)[0] == 0
    if situation is schema_closed:
        run_script(postgres.dsn(database), hint)
        assert check(daemon)[0] == 0
        run_once(daemon)
        run_script(postgres.dsn(database), f"DROP OWNED BY {daemon.slot}")
        postgres.execute(f"DROP ROLE {daemon.slot}")


@pytest.mark.nightly  # tests/hints has it
def test_check_fails_on_a_standby_and_the_daemon_waits_until_it_is_promoted(
    pg_server: PostgresServers, new_daemon: NewDaemon
) -> None:
    """F57, F59."""
    with pg_server.fresh(18) as server:
        daemon = new_daemon(server, "postgres")
        server.stop()
        (server.data_folder / "standby.signal").touch()
        server.start()
        status, found = check(daemon)
        assert (status, failed(found)) == (1, ["standby"])
        daemon.start().wait_state("backoff")
        assert "CDCD-SOURCE-STANDBY" in daemon.status()["reason"]
        server.execute("SELECT pg_promote()")
        daemon.wait_state("streaming")
        daemon.stop()


@pytest.mark.nightly  # the broken set-ups have it
def test_check_fails_on_another_server_than_the_position_is_of(
    postgres: PostgresServer, database: str, pg_server: PostgresServers, new_daemon: NewDaemon
) -> None:
    """F58, F62: the same slot name and publication, but not the server of the stored position."""
    daemon = new_daemon(postgres, database)
    run_once(daemon)
    with pg_server.fresh(18) as server:
        server.execute(f"CREATE PUBLICATION {daemon.slot} FOR ALL TABLES")
        daemon.config["source"]["dsn"] = server.dsn()
        status, found = check(daemon)
        assert (status, failed(found)) == (1, ["stored position"])
        assert halted_with(daemon) == "CDCD-SOURCE-IDENTITY"


@pytest.mark.nightly
def test_a_copy_of_the_file_that_names_another_server_leaves_the_right_daemon_alone(
    postgres: PostgresServer,
    database: str,
    pg_server: PostgresServers,
    new_daemon: NewDaemon,
    kafka: KafkaBroker,
) -> None:
    """F79: staging and production with one Kafka. The wrong daemon halts before it fences, and creates nothing."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    daemon = new_daemon(postgres, database)
    daemon.start().wait_state("streaming")
    topic = f"{daemon.name}.public.t"
    postgres.execute("INSERT INTO t VALUES (1)", dbname=database)
    eventually(lambda: committed_values(kafka.bootstrap, topic), "the row is in Kafka")
    with pg_server.fresh(18) as other:
        other.execute("CREATE TABLE t (id int PRIMARY KEY)")
        other.execute(f"CREATE PUBLICATION {daemon.slot} FOR ALL TABLES")
        wrong = new_daemon(other, "postgres")
        wrong.config |= {"name": daemon.name, "source": {"dsn": other.dsn()}}
        for _ in range(3):
            assert halted_with(wrong) == "CDCD-SOURCE-IDENTITY"
            postgres.execute("INSERT INTO t SELECT max(id) + 1 FROM t", dbname=database)
        for words in (["--accept-gap"], ["--accept-topic", topic]):
            ended = cdcd(wrong, "resume", *words)
            assert ended.returncode != 0
            assert "CDCD-SOURCE-IDENTITY" in ended.stderr
        postgres.execute("INSERT INTO t SELECT max(id) + 1 FROM t", dbname=database)
        assert other.execute("SELECT slot_name FROM pg_replication_slots") == []
    eventually(lambda: len(committed_values(kafka.bootstrap, topic)) == 5, "all rows are there")
    assert daemon.status()["state"] == "streaming"
    assert daemon.events("retrying") == daemon.events("exiting") == []
    assert daemon.stop() == 0


@pytest.mark.nightly
@pytest.mark.parametrize("times", [2, nightly(5)])
def test_check_during_a_running_daemon_has_no_complaint_and_fences_nobody(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, kafka: KafkaBroker, times: int
) -> None:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    daemon = new_daemon(postgres, database)
    assert "takes the snapshot" in check(daemon)[1]["start"][0][1]
    daemon.start().wait_state("streaming")
    for number in range(times):
        postgres.execute("INSERT INTO t VALUES (%s)", number, dbname=database)
        status, found = check(daemon)
        assert (status, failed(found)) == (0, [])
        ((level, detail, hint),) = found["slot"]
        assert (level, hint) == ("ok", ""), "no advice to end a working daemon"
        assert "a daemon of this name" in detail
        assert "the daemon of this configuration answers" in found["admin.port"][0][1]
        assert found["start"][0][1].startswith("continues from ")
    topic = f"{daemon.name}.public.t"
    eventually(lambda: len(committed_values(kafka.bootstrap, topic)) == times, "all rows are there")
    assert daemon.status()["state"] == "streaming"
    assert daemon.events("retrying") == []
    assert daemon.stop() == 0
    assert check(daemon)[0] == 0


def test_a_position_behind_somebodys_open_transaction_is_unknown_not_wrong(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, kafka: KafkaBroker
) -> None:
    """A daemon that was killed in a commit leaves such a transaction; the next start aborts it and would not fail."""
    daemon = new_daemon(postgres, database)
    progress = f"{daemon.name}.__progress"
    create_topic(kafka.bootstrap, progress, config={"cleanup.policy": "compact"})
    writer = transactional_producer(kafka.bootstrap, f"cdcd-{daemon.slot}")
    writer.begin_transaction()
    writer.produce(progress, b"{}", daemon.slot.encode())
    writer.flush(30)
    status, found = check(daemon)
    assert (status, failed(found)) == (0, [])
    ((level, message, hint),) = found["start"]
    assert (level, "the start position is not known yet" in message) == ("warn", True)
    assert "open transaction" in hint
    run_once(daemon)


@contextlib.contextmanager
def locked_by_a_session(dsn: str) -> Iterator[str]:
    """Lock t in a session; yield the holder's description."""
    with contextlib.closing(psycopg2.connect(dsn, application_name="migration")) as holder:
        with holder.cursor() as cursor:
            cursor.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        yield f"pid {holder.info.backend_pid} of postgres in database {holder.info.dbname} (migration)"


@contextlib.contextmanager
def locked_by_a_prepared_transaction(dsn: str) -> Iterator[str]:
    """Lock t by a prepared transaction, which has no process."""
    prepare(dsn, "migrating", "LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
    yield "prepared transaction 'migrating'"
    run_script(dsn, "ROLLBACK PREPARED 'migrating'")


@contextlib.contextmanager
def locked_by_a_queue(dsn: str) -> Iterator[str]:
    """Lock t by a queue: a reader alone blocks nobody, but later readers wait behind the session that
    waits for it.
    """
    with (
        contextlib.closing(psycopg2.connect(dsn, application_name="report")) as reader,
        contextlib.closing(psycopg2.connect(dsn, application_name="migration")) as waiting,
        contextlib.closing(psycopg2.connect(dsn)) as observer,
    ):
        reader.cursor().execute("SELECT FROM t")
        alter = threading.Thread(target=waiting.cursor().execute, args=("ALTER TABLE t ADD v int",))
        observer.autocommit = True
        alter.start()
        try:
            eventually(lambda: waits(observer, waiting.info.backend_pid), "the ALTER TABLE waits")
            yield f"pid {reader.info.backend_pid} of postgres in database {reader.info.dbname} (report)"
        finally:
            reader.rollback()
            alter.join(60)


def waits(connection: Any, pid: int) -> bool:
    """Return whether that session waits for a lock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM pg_locks WHERE pid = %s AND NOT granted", (pid,))
        return bool(cursor.rowcount)


@pytest.mark.parametrize(
    "locked", [nightly(locked_by_a_session), nightly(locked_by_a_prepared_transaction), locked_by_a_queue]
)
def test_a_table_that_somebody_has_locked_is_named_with_the_holder_and_no_line_is_missing(
    locked: Callable[[str], contextlib.AbstractContextManager[str]],
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
) -> None:
    """A query that could not be run is a failure, and neither check nor init waits until the holder ends."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    daemon = new_daemon(postgres, database)
    before = check(daemon)[1].keys()
    with locked(postgres.dsn(database)) as holder:
        status, found = check(daemon)
        assert (status, failed(found)) == (1, [])
        ((level, message, hint),) = found["tables"]
        assert level == "unknown"
        assert re.search("(holds|waits for) AccessExclusiveLock on public.t, since 20", message)
        assert holder in message
        assert hint
        assert found.keys() >= {one for one in before if not one.startswith("topic")}
        for words in (("init",), ("init", "--dry-run"))[: 1 if locked is locked_by_a_queue else 2]:
            ended = cdcd(daemon, *words)
            assert ended.returncode == 1
            assert holder in ended.stdout + ended.stderr, words
    assert check(daemon)[0] == 0


# --- init ---


@pytest.mark.parametrize("mode", ["initial", nightly("never")])
def test_what_init_leaves_is_what_the_daemon_starts_from(
    mode: str, postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    daemon = new_daemon(postgres, database, snapshot={"mode": mode})
    assert cdcd(daemon, "init").returncode == 0
    status, found = check(daemon)
    assert (status, failed(found)) == (0, [])
    run_once(daemon)


@pytest.mark.parametrize("mode", ["initial", nightly("never")])
def test_init_makes_no_slot_in_the_place_of_one_that_was_read_from(
    mode: str, postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """F10: the new slot would lack the changes in between."""
    daemon = new_daemon(postgres, database, snapshot={"mode": mode})
    run_once(daemon)
    drop_slot(postgres, daemon)
    plan = cdcd(daemon, "init", "--dry-run")
    assert "pg_create_logical_replication_slot" not in plan.stdout
    assert "does not exist any more" in plan.stdout
    ended = cdcd(daemon, "init")
    assert ended.returncode == 1
    assert "CDCD-SLOT-MISSING" in ended.stdout
    assert postgres.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", daemon.slot) == []


@pytest.mark.nightly
def test_init_promises_no_slot_that_the_daemon_may_not_make(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    daemon = new_daemon(postgres, database)
    daemon.config["source"]["slot"] = {"create": False}
    for words in (["init"], ["init", "--dry-run"]):
        assert "set source.slot.create: true" in cdcd(daemon, *words).stdout
    assert cdcd(daemon, "init").returncode == 1


# --- tables without a key ---


def test_check_and_log_name_the_same_keyless_tables(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, kafka: KafkaBroker
) -> None:
    run_script(
        postgres.dsn(database),
        "CREATE TABLE keyed (id int PRIMARY KEY)",
        "CREATE TABLE keyless (v text)",
        "CREATE TABLE whole (v text)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        "CREATE TABLE whole_keyed (id int PRIMARY KEY)",
        "ALTER TABLE whole_keyed REPLICA IDENTITY FULL",
    )
    daemon = new_daemon(postgres, database)
    status, found = check(daemon)
    assert status == 0
    warned = {subject for subject, all_of in found.items() if subject.startswith("table ") for _ in all_of}
    assert warned == {"table public.keyless", "table public.whole"}
    daemon.start().wait_state("streaming")
    postgres.execute("ALTER TABLE whole ADD COLUMN w int", dbname=database)  # a plan of its own
    postgres.execute("INSERT INTO whole VALUES ('canary', 1)", dbname=database)
    topic = f"{daemon.name}.public.whole"
    eventually(lambda: committed_values(kafka.bootstrap, topic), "the row is there")
    assert daemon.stop() == 0
    lines: list[dict[str, Any]] = daemon.events("relation_without_key")
    assert sorted(line["table"] for line in lines) == ["public.keyless", "public.whole"]
    assert {line["level"] for line in lines} == {"warning"}
    assert any(line["topic"] == topic for line in lines)
    assert all("primary key" in line["hint"] for line in lines)
    assert "canary" not in daemon.log()


# --- everything at once ---


@pytest.fixture
def stopped_broker(kafka: KafkaBroker) -> Iterator[str]:
    """Yield the address of a broker that is stopped while the test runs."""
    kafka.stop()
    yield kafka.bootstrap
    kafka.start()


@pytest.mark.own_broker
@pytest.mark.nightly  # test_check_and_init has them, too
def test_independent_failures_are_all_named_at_once(
    pg_server: PostgresServers, new_daemon: NewDaemon, stopped_broker: str
) -> None:
    with pg_server.fresh(18, settings={"wal_level": "replica"}) as server:
        daemon = new_daemon(server, "postgres")
        run_script(
            server.dsn(),
            f"DROP PUBLICATION {daemon.slot}",
            "CREATE TABLE public.keyless (v text)",
            "CREATE PUBLICATION there FOR TABLE public.keyless",
        )
        daemon.config["source"]["publication"] = {"names": ["there", "gone"]}
        daemon.config["sink"]["bootstrap_servers"] = stopped_broker
        status, found = check(daemon)
        text = cdcd(daemon, "check")
    assert status == text.returncode == 1
    assert failed(found) == ["publication", "kafka", "wal_level"]
    assert any("gone" in message for _, message, _ in found["publication"])
    ((level, message, hint),) = found["table public.keyless"]
    assert level == "warn"
    assert "UPDATE and DELETE fail" in message
    assert "null key" in message
    assert "ADD PRIMARY KEY" in hint
    for subject in ("wal_level", "publication", "kafka", "table public.keyless"):
        assert subject in text.stdout
    assert text.stderr == ""


@pytest.mark.own_broker
@pytest.mark.nightly  # test_check_and_init has both
def test_a_wrong_password_does_not_hide_a_stopped_broker(
    pg_server: PostgresServers, new_daemon: NewDaemon, stopped_broker: str
) -> None:
    with pg_server.fresh(18, authentication="scram-sha-256") as server:
        server.create_role("cdcd", "right-canary")
        daemon = new_daemon(server, "postgres")
        daemon.config["source"] = {
            "dsn": server.dsn("postgres", "cdcd"),
            "password": "wrong-canary",
        }
        daemon.config["sink"]["bootstrap_servers"] = stopped_broker
        status, found = check(daemon)
    assert (status, failed(found)) == (1, ["source password", "kafka"])
    assert "canary" not in str(found)


@pytest.mark.nightly
def test_the_clients_own_log_is_not_printed_with_the_findings(
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    kafka: KafkaBroker,
) -> None:
    """Some bootstrap servers are down: Kafka answers after the client has tried the others too."""
    daemon = new_daemon(postgres, database)
    servers = [f"127.0.0.1:{free_port()}" for _ in range(5)]
    daemon.config["sink"]["bootstrap_servers"] = ",".join([*servers, kafka.bootstrap])
    status, found = check(daemon)  # it asserts that stderr is empty
    assert (status, failed(found)) == (0, [])
