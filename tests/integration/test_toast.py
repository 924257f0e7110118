"""F46: readers can distinguish a TOASTed value that was not sent, a NULL, and a present value.

For each replica identity, streamed while the transaction is open or sent after its commit, as text and in binary; the
rows are read by Confluent's deserializer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.nightly import nightly, nightly_except
from tests.support.reader import Event, Reader, assert_each_once
from tests.support.stack import PostgresServers, drop_database, in_one_transaction, new_database_name
from tests.support.waiting import eventually

LONG = "(SELECT string_agg(md5(n::text), '') FROM generate_series({0}, {0} + 299) n)"
"""9600 characters, stored outside the row and not compressed."""

TABLE = """
    CREATE TABLE {0} (id int PRIMARY KEY, code text NOT NULL UNIQUE, n int, big text, raw bytea);
    ALTER TABLE {0} ALTER big SET STORAGE EXTERNAL, ALTER raw SET STORAGE EXTERNAL
"""
IDENTITIES = {
    "by_default": "",
    "by_index": "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_code_key",
    "whole": "ALTER TABLE whole REPLICA IDENTITY FULL",
}
FILLER = "INSERT INTO filler SELECT n, repeat('f', 200) FROM generate_series(1, 2000) n"
CHANGES = (
    "UPDATE {0} SET n = 2",  # another column
    "UPDATE {0} SET big = NULL",
    "UPDATE {0} SET n = 3",  # NULL stays NULL, and is not a TOASTed value
    "UPDATE {0} SET id = 7, code = 'seven'",  # the key of every identity
    "UPDATE {0} SET big = " + LONG.format(5000),
    "UPDATE {0} SET raw = NULL, n = 4",
    "DELETE FROM {0}",
)


@dataclass(frozen=True)
class Place:
    """A database and the values of its tables."""

    server: PostgresServer
    dbname: str

    def execute(self, statement: str, *values: Any) -> Any:
        return self.server.execute(statement, *values, dbname=self.dbname)

    def long(self, first: int) -> str:
        """Return the server's own text of a long value."""
        return str(self.execute("SELECT " + LONG.format(first))[0][0])


@pytest.fixture(params=[nightly(14), 18])
def place(pg_server: PostgresServers, request: pytest.FixtureRequest) -> Iterator[Place]:
    server = pg_server(request.param)
    name = new_database_name()
    server.create_database(name)
    server.execute(f"ALTER DATABASE {name} SET logical_decoding_work_mem = '64kB'")
    place = Place(server, name)
    for table, identity in IDENTITIES.items():
        place.execute(TABLE.format(table))
        if identity:
            place.execute(identity)
    place.execute("CREATE TABLE filler (id int PRIMARY KEY, pad text)")
    yield place
    drop_database(server, name)


def story(events: list[Event]) -> list[Any]:
    """Return per record: op, key, before, after, unchanged; a tombstone as its key."""
    reported: list[Any] = []
    for event in events:
        if event.value is None:
            reported.append(event.key)
        else:
            value = event.value
            reported.append(
                (event.op, event.key, value["before"], value["after"], value["source"]["unchanged"])
            )
    return reported


def row(id_: int, code: str, n: int | None, big: str | None, raw: bytes | None) -> dict[str, Any]:
    return {"id": id_, "code": code, "n": n, "big": big, "raw": raw}


def key_only(**key: Any) -> dict[str, Any]:
    """Return an old row of which only the key was sent: the other columns are marked as not logged, not
    NULL (F45).
    """
    return {**dict.fromkeys(("id", "code", "n", "big", "raw")), **key}


def expected_with_key(
    one: dict[str, Any], seven: dict[str, Any], big: str, other: str, raw: bytes
) -> list[Any]:
    """Return the records of a table with an identity of key columns; a value that was not sent is None and named."""
    code, new = one.get("code", "one"), seven.get("code", "seven")
    return [
        ("c", one, None, row(1, code, 1, big, raw), []),
        ("u", one, None, row(1, code, 2, None, None), ["big", "raw"]),
        ("u", one, None, row(1, code, 2, None, None), ["raw"]),
        ("u", one, None, row(1, code, 3, None, None), ["raw"]),
        ("d", one, key_only(**one), None, []),
        one,
        ("c", seven, None, row(7, new, 3, None, None), ["raw"]),
        ("u", seven, None, row(7, new, 3, other, None), ["raw"]),
        ("u", seven, None, row(7, new, 4, None, None), ["big"]),
        ("d", seven, key_only(**seven), None, []),
        seven,
    ]


def expected_whole(big: str, other: str, raw: bytes) -> list[Any]:
    """Return the records with the complete old row, in which no value is missing."""
    rows = [
        row(1, "one", 1, big, raw),
        row(1, "one", 2, big, raw),
        row(1, "one", 2, None, raw),
        row(1, "one", 3, None, raw),
        row(7, "seven", 3, None, raw),
        row(7, "seven", 3, other, raw),
        row(7, "seven", 4, other, None),
    ]
    one, seven = {"id": 1}, {"id": 7}
    return [
        ("c", one, None, rows[0], []),
        *(("u", one, rows[n - 1], rows[n], []) for n in (1, 2, 3)),
        ("d", one, rows[3], None, []),
        one,
        ("c", seven, None, rows[4], []),
        *(("u", seven, rows[n - 1], rows[n], []) for n in (5, 6)),
        ("d", seven, rows[6], None, []),
        seven,
    ]


WAYS = [
    pytest.param("off", False, id="text"),
    pytest.param("on", True, id="streamed binary"),
    pytest.param("on", False, id="streamed text", marks=pytest.mark.long),
    pytest.param("off", True, id="binary", marks=pytest.mark.long),
]


def streamed(place: Place, slot: str) -> int:
    """Return the number of transactions that the slot streamed before their commit."""
    counted = "SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = %s"
    ((transactions,),) = place.execute(counted, slot)
    return int(transactions)


@pytest.mark.parametrize(("streaming", "binary"), WAYS)
def test_a_value_that_was_not_sent_is_never_null(
    streaming: str, binary: bool, place: Place, new_daemon: NewDaemon, reader: Reader
) -> None:
    protocol = {"binary": binary, "streaming": streaming}
    # one partition each, so that the records of a table are in the order of their changes
    with new_daemon(
        place.server, place.dbname, source={"protocol": protocol}, sink={"topics": {"partitions": 1}}
    ) as daemon:
        daemon.start().wait_state("streaming")
        values = f"(1, 'one', 1, {LONG.format(1)}, decode({LONG.format(1000)}, 'hex'))"
        for table in IDENTITIES:
            place.execute(f"INSERT INTO {table} VALUES {values}")
        changes = [change.format(table) for change in CHANGES for table in IDENTITIES]
        in_one_transaction(place.server.dsn(place.dbname), changes[0], FILLER, *changes[1:])
        topics = {table: f"{daemon.name}.public.{table}" for table in IDENTITIES}
        events = reader.wait(topics.values(), lambda events: len(events) >= 33)
        assert daemon.stop() == 0
        assert [(line["binary"], line["streaming"]) for line in daemon.events("streaming")] == [
            (binary, streaming)
        ]
        if streaming == "on":  # up to PostgreSQL 14 another process collects the statistics, some time later
            eventually(
                lambda: streamed(place, daemon.slot) > 0, "the server has counted the streamed transaction"
            )
        assert (streamed(place, daemon.slot) > 0) == (streaming == "on")
    assert_each_once(events)
    reported = {
        table: story([event for event in events if event.topic == topic]) for table, topic in topics.items()
    }
    big, other, raw = place.long(1), place.long(5000), bytes.fromhex(place.long(1000))
    assert reported["by_default"] == expected_with_key({"id": 1}, {"id": 7}, big, other, raw)
    by_code = expected_with_key({"code": "one"}, {"code": "seven"}, big, other, raw)
    assert reported["by_index"] == by_code
    assert reported["whole"] == expected_whole(big, other, raw)


@pytest.mark.parametrize(("streaming", "binary"), nightly_except(WAYS, "streamed binary"))
def test_a_placeholder_stands_in_string_and_bytes_columns(
    streaming: str, binary: bool, place: Place, new_daemon: NewDaemon, reader: Reader
) -> None:
    protocol = {"binary": binary, "streaming": streaming}
    with new_daemon(
        place.server,
        place.dbname,
        source={"protocol": protocol},
        sink={"topics": {"partitions": 1}},
        format={"placeholder": "unsent ☕"},
    ) as daemon:
        daemon.start().wait_state("streaming")
        place.execute(
            f"INSERT INTO by_default VALUES (1, 'one', 1, {LONG.format(1)}, decode({LONG.format(1000)}, 'hex'))"
        )
        in_one_transaction(
            place.server.dsn(place.dbname),
            FILLER,
            "UPDATE by_default SET n = 2",
            "UPDATE by_default SET big = NULL",
            "UPDATE by_default SET raw = NULL",
        )
        events = reader.wait([f"{daemon.name}.public.by_default"], lambda events: len(events) >= 4)
        assert daemon.stop() == 0
    afters = [(event.value["after"], event.value["source"]["unchanged"]) for event in events]
    unsent = "unsent ☕"
    assert afters == [
        (row(1, "one", 1, place.long(1), bytes.fromhex(place.long(1000))), []),
        (row(1, "one", 2, unsent, unsent.encode()), ["big", "raw"]),
        (row(1, "one", 2, None, unsent.encode()), ["raw"]),
        (row(1, "one", 2, None, None), []),
    ]


@pytest.mark.parametrize(("streaming", "binary"), nightly_except(WAYS, "streamed binary"))
def test_a_key_that_is_toasted_itself_is_always_there(
    streaming: str, binary: bool, place: Place, new_daemon: NewDaemon, reader: Reader
) -> None:
    """The server sends the old key if the new tuple omits it."""
    key = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 80) n)"  # 2560, which an index still accepts
    place.execute(
        "CREATE TABLE keyed (k text PRIMARY KEY, n int, big text);"
        "ALTER TABLE keyed ALTER k SET STORAGE EXTERNAL, ALTER big SET STORAGE EXTERNAL"
    )
    protocol = {"binary": binary, "streaming": streaming}
    with new_daemon(
        place.server, place.dbname, source={"protocol": protocol}, sink={"topics": {"partitions": 1}}
    ) as daemon:
        daemon.start().wait_state("streaming")
        place.execute(f"INSERT INTO keyed VALUES ({key}, 1, {LONG.format(1)})")
        in_one_transaction(
            place.server.dsn(place.dbname), FILLER, "UPDATE keyed SET n = 2", "UPDATE keyed SET big = NULL"
        )
        events = reader.wait([f"{daemon.name}.public.keyed"], lambda events: len(events) >= 3)
        assert daemon.stop() == 0
    ((sent,),) = place.execute(f"SELECT {key}")
    assert [event.key for event in events] == [{"k": sent}] * 3
    afters = [(event.value["after"], event.value["source"]["unchanged"]) for event in events]
    assert afters == [
        ({"k": sent, "n": 1, "big": place.long(1)}, []),
        ({"k": sent, "n": 2, "big": None}, ["big"]),
        ({"k": sent, "n": 2, "big": None}, []),
    ]
