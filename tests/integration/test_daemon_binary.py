"""Values requested in binary give the same records; cdcd requests text if binary has no exact reading (F53)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon
from tests.support.nightly import nightly
from tests.support.reader import BEGINNING, Reader, assert_each_once
from tests.support.stack import PostgresServers, drop_database, in_one_transaction, new_database_name

BINARY = {"protocol": {"binary": True}}
EXACT = "id int PRIMARY KEY, shape box, ranges int4range, squares int[], by_text aclitem"
"""A grid in `squares`; aclitem has no send function, so it is sent as text among binary values."""


@pytest.fixture(params=[nightly(14), 18])
def major(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def place(pg_server: PostgresServers, major: int) -> Iterator[tuple[PostgresServer, str]]:
    server = pg_server(major)
    name = new_database_name()
    server.create_database(name)
    server.execute(f"CREATE TABLE t ({EXACT})", dbname=name)
    yield server, name
    drop_database(server, name)


INSERT = "INSERT INTO t VALUES (%s, '(2,1e22),(0,-0)', '[1,5)', '{{1,2},{3,NULL}}', '=r/postgres')"


def insert(server: PostgresServer, dbname: str, number: int) -> None:
    server.execute(INSERT, number, dbname=dbname)


def assert_row(value: dict[str, object]) -> None:
    after = value["after"]
    assert isinstance(after, dict)
    assert {name: after[name] for name in ("shape", "ranges", "squares", "by_text")} == {
        "shape": "(2,1e+22),(0,-0)",
        "ranges": "[1,5)",
        "squares": None,
        "by_text": "=r/postgres",
    }
    source = value["source"]
    assert isinstance(source, dict)
    assert source["special"] == {"after.squares": "{{1,2},{3,NULL}}"}


def check(daemon: Daemon) -> str:
    """Return the output of `cdcd check`."""
    return daemon.run("check").stdout


def forms(daemon: Daemon) -> list[bool]:
    """Return, for each session so far, whether it requested binary."""
    return [line["binary"] for line in daemon.events("streaming")]


def test_readable_types_are_requested_in_binary(
    place: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """A type without a send function does not prevent binary."""
    server, dbname = place
    with new_daemon(server, dbname, source=BINARY) as daemon:
        assert "cannot be read exactly" not in check(daemon)
        topic = f"{daemon.name}.public.t"
        insert(server, dbname, 1)  # by the snapshot
        daemon.start().wait_state("streaming")
        insert(server, dbname, 2)
        events = reader.wait([topic], lambda events: len(events) == 2)
        assert daemon.stop() == 0
        assert forms(daemon) == [True]
        assert not daemon.events("option_disabled")
    for event in events:
        assert_row(event.value)


def test_a_column_that_binary_has_no_reading_of_leaves_binary_out(
    place: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """The start and `cdcd check` report these columns, and no others."""
    server, dbname = place
    server.execute(
        "CREATE TABLE u (id int PRIMARY KEY, class regclass, price money, kind regtype, rights aclitem[])",
        dbname=dbname,
    )
    with new_daemon(server, dbname, source=BINARY) as daemon:
        daemon.start().wait_state("streaming")
        server.execute(
            "INSERT INTO u VALUES (1, 't', '1.5', NULL, '{=r/postgres,postgres=w/postgres}')", dbname=dbname
        )
        (event,) = reader.wait([f"{daemon.name}.public.u"], lambda events: len(events) == 1)
        assert daemon.stop() == 0
        (left_out,) = daemon.events("option_disabled")
        found = check(daemon)
    assert event.value["after"]["class"] == "public.t"
    assert event.value["after"]["rights"] == ["=r/postgres", "postgres=w/postgres"]
    assert forms(daemon) == [False]
    assert left_out["option"] == "source.protocol.binary"
    named = "public.u.class (regclass), public.u.kind (regtype), public.u.rights (aclitem[])"
    assert left_out["reason"].endswith(named)
    (line,) = [line for line in found.splitlines() if "cannot be read exactly" in line]
    assert line.startswith("warn  source.protocol.binary")
    assert line.endswith(named)


@pytest.mark.parametrize(
    ("change", "value", "shown"),
    [
        nightly("class regclass", "'pg_class'", "pg_class"),
        ("rights aclitem[]", "'{=r/postgres}'", ["=r/postgres"]),  # the server itself refuses to send it
        nightly("row_of held", "'(1,=r/postgres)'", {"a": 1, "b": "=r/postgres"}),
    ],
)
@pytest.mark.parametrize("new_table", [True, nightly(False)], ids=["new table", "new column"])
def test_a_column_that_comes_later_ends_binary_and_loses_nothing(
    new_table: bool,
    change: str,
    value: str,
    shown: object,
    place: tuple[PostgresServer, str],
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    """Nothing of a transaction that began in binary is written twice or left out."""
    server, dbname = place
    server.execute("CREATE TYPE held AS (a int, b aclitem)", dbname=dbname)
    with new_daemon(server, dbname, source=BINARY) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        insert(server, dbname, 1)
        reader.wait([topic], lambda events: len(events) == 1)
        table = "u" if new_table else "t"
        ddl = (
            f"CREATE TABLE u (id int PRIMARY KEY, {change})"
            if new_table
            else f"ALTER TABLE t ADD COLUMN {change}"
        )
        column = change.split()[0]
        changed = (
            ddl,
            INSERT % 2,
            f"INSERT INTO {table} (id, {column}) VALUES (3, {value})",
            "DELETE FROM t WHERE id = 1",
        )
        in_one_transaction(server.dsn(dbname), *changed)
        server.execute("INSERT INTO t (id) VALUES (4)", dbname=dbname)
        topics = [topic, f"{daemon.name}.public.{table}"]
        wanted = 5 + 1  # four changes, a tombstone, and the one later
        events = reader.wait(dict.fromkeys(topics), lambda events: len(events) >= wanted)
        assert daemon.stop() == 0
        assert {line["code"] for line in daemon.events("retrying")} == {"CDCD-SOURCE-BINARY"}
        assert forms(daemon) == [True, False]
    assert len(events) == wanted
    assert_each_once(events)
    in_order = sorted(
        (event for event in events if event.sequence), key=lambda event: event.sequence or BEGINNING
    )
    assert [(event.op, event.key["id"]) for event in in_order] == [
        ("c", 1),
        ("c", 2),
        ("c", 3),
        ("d", 1),
        ("c", 4),
    ]
    assert_row(in_order[0].value)
    assert_row(in_order[1].value)
    assert in_order[2].value["after"][column] == shown


@pytest.mark.parametrize("major", [nightly(16), 18])
def test_a_value_that_binary_has_no_reading_of_is_read_as_text(
    place: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """The text of a "char" above 127 depends on the version: before 16 it was invalid UTF-8, which cannot
    be written.
    """
    server, dbname = place
    server.execute('ALTER TABLE t ADD COLUMN c "char"', dbname=dbname)
    with new_daemon(server, dbname, source=BINARY) as daemon:
        daemon.start().wait_state("streaming")
        server.execute("INSERT INTO t (id, c) VALUES (1, 'x'), (2, '\\351')", dbname=dbname)
        events = reader.wait([f"{daemon.name}.public.t"], lambda events: len(events) == 2)
        assert daemon.stop() == 0
        assert forms(daemon) == [True, False]
    assert_each_once(events)
    assert sorted((event.key["id"], event.value["after"]["c"]) for event in events) == [
        (1, "x"),
        (2, "\\351"),
    ]
