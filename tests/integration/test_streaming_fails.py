"""Transactions that PostgreSQL itself cannot stream are read again without streaming, automatically.

Found by experiments with 14 to 18: a walsender that streams a transaction and decodes the rows of a subtransaction
that changed a table and was rolled back meanwhile uses wrong catalog rows for the rest of the transaction, if the
transaction changes the table again. It fails every time, also after the commit; or it describes the table without its
key. Changes that another session committed meanwhile are lost in the same way: a table with another file cannot be
found, one with an added column is sent without it, and a newly published one is not sent, the last two without an
error. A walsender without streaming decodes the same transaction correctly, and sends no logical message of
rolled-back subtransactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import STREAM_ONLY
from tests.support.hints import apply, hint_of
from tests.support.nightly import nightly
from tests.support.reader import BEGINNING, Reader, assert_each_once, fold
from tests.support.stack import PostgresServers, drop_database, new_database_name
from tests.support.waiting import eventually

ROWS = 1000
INSERT = "INSERT INTO t (id, v) SELECT g, repeat('v', 200) FROM generate_series(%s::int, %s) g"


@pytest.fixture
def place(pg_server: PostgresServers, request: pytest.FixtureRequest) -> Iterator[tuple[PostgresServer, str]]:
    """Yield a server and a new database with two tables; transactions are streamed early."""
    server = pg_server(getattr(request, "param", 18))
    name = new_database_name()
    server.create_database(name)
    server.execute(f"ALTER DATABASE {name} SET logical_decoding_work_mem = '64kB'")
    for table in ("t", "other"):
        server.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)", dbname=name)
    yield server, name
    drop_database(server, name)


@pytest.mark.parametrize("place", [nightly(14), 18], indirect=True)
def test_a_server_that_cannot_stream_what_is_open_is_read_without_streaming(
    place: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """Others flow while it is open, and it arrives once, each row with its columns at that time."""
    server, dbname = place
    with new_daemon(server, dbname, snapshot=STREAM_ONLY) as daemon:
        topics = [f"{daemon.name}.public.{table}" for table in ("t", "other")]
        daemon.start().wait_state("streaming")
        assert daemon.stop() == 0
        with closing(psycopg2.connect(server.dsn(dbname))) as open_one, open_one.cursor() as cursor:
            cursor.execute(INSERT, (1, ROWS // 2))
            cursor.execute("SAVEPOINT s")
            cursor.execute("ALTER TABLE t ADD COLUMN w int")
            cursor.execute(INSERT, (ROWS + 1, 2 * ROWS))
            cursor.execute("ROLLBACK TO SAVEPOINT s")
            cursor.execute(INSERT, (ROWS // 2 + 1, ROWS))
            cursor.execute("ALTER TABLE t ADD COLUMN w int DEFAULT 7")
            cursor.execute("INSERT INTO t VALUES (0, 'wide')")
            server.execute("INSERT INTO other VALUES (1, 'x')", dbname=dbname)
            daemon.start()
            reader.wait(topics, lambda events: len(events) == 1)
            assert [line["code"] for line in daemon.events("retrying")] == ["CDCD-SOURCE-STREAMING"]
            assert [line["streaming"] != "off" for line in daemon.events("streaming")] == [True, True, False]
            assert daemon.stop() == 0
            hint = hint_of(daemon.events("retrying")[0]["error"])
            apply(daemon.config, hint, "source.protocol.streaming")
            daemon.start().wait_state("streaming")
            server.execute("INSERT INTO other VALUES (2, 'x')", dbname=dbname)
            reader.wait(topics, lambda events: len(events) == 2)
            assert len(daemon.events("retrying")) == 1, "the error does not recur"
            open_one.commit()
        events = reader.wait(topics, lambda events: len(events) >= ROWS + 3)
        assert daemon.stop() == 0
    assert_each_once(events)
    rows = {event.value["after"]["id"]: event.value["after"] for event in events if event.topic == topics[0]}
    assert set(rows) == set(range(ROWS + 1))
    assert rows[0] == {"id": 0, "v": "wide", "w": 7}
    assert all("w" not in rows[number] for number in range(1, ROWS + 1))


@pytest.mark.parametrize("incompatible", ["halt", nightly("new_topic")])
def test_a_table_that_is_streamed_without_its_key_is_read_again(
    incompatible: str, place: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """F45: all records of a topic have the same key columns, and no operator is needed."""
    server, dbname = place
    with new_daemon(server, dbname, registry={"incompatible": incompatible}) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        server.execute("INSERT INTO t VALUES (0, 'first')", dbname=dbname)
        reader.wait([topic], lambda events: len(events) == 1)
        assert daemon.stop() == 0
        with closing(psycopg2.connect(server.dsn(dbname))) as open_one, open_one.cursor() as cursor:
            cursor.execute("SAVEPOINT s")
            cursor.execute("DROP TABLE t")
            cursor.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
            cursor.execute(INSERT, (1, ROWS))
            cursor.execute("ROLLBACK TO SAVEPOINT s")
            cursor.execute(INSERT, (1, ROWS))
            cursor.execute("DROP TABLE t")
            server.execute("INSERT INTO other VALUES (1, 'x')", dbname=dbname)
            daemon.start()
            eventually(lambda: daemon.events("retrying"), "the streamed changes are not written")
            open_one.commit()
        events = reader.wait([topic], lambda events: len(events) > ROWS)
        assert [line["code"] for line in daemon.events("retrying")] == ["CDCD-SOURCE-STREAMING"]
        assert daemon.stop() == 0
    assert_each_once(events)
    assert [event.key for event in sorted(events, key=lambda event: event.sequence or BEGINNING)] == [
        {"id": number} for number in range(ROWS + 1)
    ]


@pytest.mark.parametrize("two_phase", [False, nightly(True)])
def test_a_logical_message_that_was_rolled_back_is_not_written(
    two_phase: bool, place: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """F26: streamed, the message cannot be distinguished from others."""
    server, dbname = place
    emit = "SELECT pg_logical_emit_message(true, 'outbox', %s)"
    with new_daemon(server, dbname, source={"protocol": {"two_phase": two_phase}}) as daemon:
        topics = [f"{daemon.name}.public.t", f"{daemon.name}.message"]
        daemon.start().wait_state("streaming")
        with closing(psycopg2.connect(server.dsn(dbname))) as open_one, open_one.cursor() as cursor:
            open_one.autocommit = True
            cursor.execute("BEGIN")
            cursor.execute(INSERT, (1, ROWS))
            cursor.execute(emit, ("before",))
            cursor.execute("SAVEPOINT s")
            cursor.execute(emit, ("rolled back",))
            cursor.execute(INSERT, (ROWS + 1, 2 * ROWS))
            cursor.execute("ROLLBACK TO SAVEPOINT s")
            cursor.execute(emit, ("after",))
            server.execute("INSERT INTO other VALUES (1, 'x')", dbname=dbname)
            eventually(lambda: daemon.events("retrying"), "the streamed changes are not written")
            if two_phase:
                cursor.execute("PREPARE TRANSACTION 'one'")
                cursor.execute("COMMIT PREPARED 'one'")
            else:
                cursor.execute("COMMIT")
        events = reader.wait(topics, lambda events: len(events) >= ROWS + 2)
        assert [line["code"] for line in daemon.events("retrying")] == ["CDCD-SOURCE-STREAMING"]
        assert daemon.stop() == 0
    assert_each_once(events)
    assert [event.value["content"] for event in events if event.op == "m"] == [b"before", b"after"]
    assert len(events) == ROWS + 2


CHANGES = {
    "another file": ("TRUNCATE t", "INSERT INTO t SELECT g, 'v' || g"),
    "a column more": ("ALTER TABLE t ADD extra text", "INSERT INTO t SELECT g, 'v' || g, 'extra'"),
    "newly published": ("ALTER PUBLICATION chosen ADD TABLE later", "INSERT INTO later SELECT g, 'v' || g"),
}
"""The change that another session commits meanwhile, and the later statements of the open transaction."""


ORIGIN = """
    SELECT pg_replication_origin_session_setup('elsewhere'), pg_replication_origin_xact_setup('0/10', '2099-01-01')
"""
"""The rollbacks of a transaction with an origin carry the origin's time, from another clock, too."""


@pytest.mark.parametrize(
    ("place", "streaming", "two_phase", "change", "is_of_origin"),
    [
        nightly(14, "auto", False, "another file", False),
        pytest.param(14, "on", False, "a column more", False, marks=pytest.mark.long),
        pytest.param(16, "auto", False, "newly published", False, marks=pytest.mark.long),
        nightly(16, "auto", False, "a column more", True),
        pytest.param(18, "auto", False, "a column more", False, marks=pytest.mark.long),
        nightly(18, "parallel", True, "newly published", False),
        pytest.param(18, "auto", True, "another file", False, marks=pytest.mark.long),
        (18, "auto", False, "newly published", True),
    ],
    indirect=["place"],
)
def test_a_change_that_another_session_committed_meanwhile_is_not_missed(
    streaming: str,
    two_phase: bool,
    change: str,
    is_of_origin: bool,
    place: tuple[PostgresServer, str],
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    """Judged by the tables. `other` must be new to the walsender when it decodes the rolled-back rows."""
    server, dbname = place
    meanwhile, insert = CHANGES[change]
    server.execute("CREATE TABLE later (id int PRIMARY KEY, v text)", dbname=dbname)
    server.execute("CREATE PUBLICATION chosen FOR TABLE t, other", dbname=dbname)
    protocol = {"streaming": streaming, "two_phase": two_phase}
    source = {"publication": {"names": ["chosen"]}, "protocol": protocol}
    with new_daemon(server, dbname, source=source) as daemon:
        topics = {table: f"{daemon.name}.public.{table}" for table in ("t", "other", "later")}
        daemon.start().wait_state("streaming")
        assert daemon.stop() == 0
        server.execute("INSERT INTO t VALUES (0, 'before')", dbname=dbname)
        with closing(psycopg2.connect(server.dsn(dbname))) as open_one, open_one.cursor() as cursor:
            if is_of_origin:
                server.execute("SELECT pg_replication_origin_create('elsewhere')")
                cursor.execute(ORIGIN)
            cursor.execute("SAVEPOINT s")
            cursor.execute("INSERT INTO other VALUES (1, 'rolled back')")
            server.execute(meanwhile, dbname=dbname)
            cursor.execute("INSERT INTO other SELECT g, repeat('v', 200) FROM generate_series(2, 1000) g")
            cursor.execute("ROLLBACK TO SAVEPOINT s")
            cursor.execute(f"{insert} FROM generate_series(1, 2000) g")
            open_one.commit()
            if is_of_origin:
                cursor.execute("SELECT pg_replication_origin_session_reset()")
                cursor.execute("SELECT pg_replication_origin_drop('elsewhere')")
                open_one.commit()
        server.execute("INSERT INTO other VALUES (-1, 'after')", dbname=dbname)
        daemon.start()
        reader.wait([topics["other"]], lambda events: any(event.key == {"id": -1} for event in events))
        assert [line["code"] for line in daemon.events("retrying")] == ["CDCD-SOURCE-STREAMING"]
        assert daemon.stop() == 0
    creates = 0
    for table, topic in topics.items():
        events = reader.read(topic)
        assert_each_once(events)
        creates += len([event for event in events if event.op == "c"])
        rows = fold(events, lambda row: row["id"])
        reported = {key: {name: v for name, v in row.items() if v is not None} for key, row in rows.items()}
        found = server.execute(f"SELECT id, jsonb_strip_nulls(to_jsonb(x)) FROM {table} x", dbname=dbname)
        assert reported == dict(found)
    assert creates == 1 + 2000 + 1


@pytest.mark.parametrize(
    ("place", "two_phase"),
    [
        nightly(14, False),
        pytest.param(16, False, marks=pytest.mark.long),
        (18, False),
        pytest.param(18, True, marks=pytest.mark.long),
    ],
    indirect=["place"],
)
def test_a_rollback_that_the_server_does_not_tell_of_is_noticed(
    two_phase: bool, place: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """F26: more than 4096 changes, spilled on the server, are streamed and rolled back, and no Stream Abort comes."""
    server, dbname = place

    def insert_other(number: int) -> None:
        server.execute("INSERT INTO other VALUES (%s, 'x')", number, dbname=dbname)
        reader.wait(topics[1:], lambda events: len(events) == number)

    with new_daemon(server, dbname, source={"protocol": {"two_phase": two_phase}}) as daemon:
        topics = [f"{daemon.name}.public.{table}" for table in ("t", "other")]
        daemon.start().wait_state("streaming")
        with closing(psycopg2.connect(server.dsn(dbname))) as open_one, open_one.cursor() as cursor:
            open_one.autocommit = True
            cursor.execute("BEGIN")
            cursor.execute("INSERT INTO t VALUES (0, 'kept')")
            cursor.execute("SAVEPOINT s")
            cursor.execute("INSERT INTO t SELECT g, 'gone' FROM generate_series(1, 6000) g")
            insert_other(1)
            assert daemon.stop() == 0
            daemon.start().wait_state("streaming")  # the server decodes the earlier changes to its disk
            more = iter(range(2, 20))
            while "cdcd_open_transactions 1.0" not in daemon.get("/metrics")[1]:  # streamed once, no more
                cursor.execute(
                    "INSERT INTO t SELECT max(id) + g, 'gone' FROM t, generate_series(1, 50) g GROUP BY g"
                )
                insert_other(next(more))
            cursor.execute("ROLLBACK TO SAVEPOINT s")
            cursor.execute("INSERT INTO t VALUES (-1, 'kept')")
            if two_phase:
                cursor.execute("PREPARE TRANSACTION 'one'")
                cursor.execute("COMMIT PREPARED 'one'")
            else:
                cursor.execute("COMMIT")
        insert_other(next(more))
        events = reader.read(topics[0])
        assert daemon.stop() == 0
        assert sorted(event.key["id"] for event in events) == [-1, 0]
        assert [line["code"] for line in daemon.events("retrying")] == ["CDCD-SOURCE-STREAMING"]
    assert_each_once(events)
