"""Fault 15: up to two hundred streamed transactions open at once, with savepoints rolled back, against test_decoding.

Each writer takes random steps from a printed seed: up to five nested savepoints, released or rolled back, with rows
between them; some alter and truncate a table that only they use. The reference is PostgreSQL's test_decoding on a
second slot: the same transactions and changes in the same order, each once, with the same values and LSNs.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import STREAM_ONLY, await_confirmed, await_received
from tests.support.nightly import nightly
from tests.support.reader import Event, Reader, assert_each_once
from tests.support.stack import PostgresServers, run_script
from tests.support.waiting import eventually

ALTERING_WRITERS = 8
STEPS = 24
MOST_WRITERS = 200
ROLLED_BACK_SHARE = 10
DEEPEST = 5
STRIDE = 10_000
"""The number of ids reserved for each writer, so that no writer waits for another's lock."""
TABLES = ("t", *(f"own_{number}" for number in range(ALTERING_WRITERS)))
SLOT = "witness"
LINE = re.compile(r"table public\.(?P<table>\w+): (?P<verb>INSERT|UPDATE|DELETE|TRUNCATE): (?P<rest>.*)")
ROW = re.compile(r"id\[integer\]:(?P<id>\d+)(?: v\[text\]:'(?P<v>\w*)')?")
OPS = {"INSERT": "c", "UPDATE": "u", "DELETE": "d", "TRUNCATE": "t"}


class Change(NamedTuple):
    """One change. A delete and a truncate have no `v`, a truncate has no id either."""

    table: str
    op: str
    id: int | None
    v: str | None
    lsn: int


class Transaction(NamedTuple):
    """One committed transaction, its changes in order."""

    xid: int
    changes: list[Change]


class Writer:
    """One open transaction. `steps` counts the steps, so that each row identifies its writer and step."""

    def __init__(self, number: int, dsn: str, chance: random.Random) -> None:
        self.connection = psycopg2.connect(dsn)
        self._cursor = self.connection.cursor()
        self._chance = chance
        self._table = TABLES[number + 1] if number < ALTERING_WRITERS else "t"
        self._first_id = self._next_id = number * STRIDE
        self._depth = 0
        self._steps = 0
        self.insert()

    def next_step(self) -> Callable[[], None]:
        """Return a random next step."""
        self._steps += 1
        deeper, back = self._depth < DEEPEST, self._depth > 0
        wide = self._table != "t"
        ways = [self.insert, self.insert, self.insert, self.update, self.delete, self.move]
        ways += [self.savepoint] * 4 * deeper + [self.roll_back, self.release] * 2 * back
        ways += [self.alter, self.truncate] * (wide and back)
        return self._chance.choice(ways)

    def insert(self) -> None:
        """Insert some rows; an id is never reused, even after a rollback."""
        count = self._chance.randint(5, 25)
        first, self._next_id = self._next_id, self._next_id + count
        self._do(
            f"INSERT INTO {self._table} (id, v) SELECT g, repeat('i', 100) || %s || 'g' || g"
            " FROM generate_series(%s::int, %s) g",
            f"s{self._steps}",
            first,
            first + count - 1,
        )

    def update(self) -> None:
        """Update the values of some rows."""
        self._some(f"UPDATE {self._table} SET v = 'u' || %s || 'g' || id", f"s{self._steps}")

    def move(self) -> None:
        """Update the keys of some rows."""
        first, last, every = self._some_ids()
        shift = max(self._next_id, last + 1) - first
        self._next_id = last + shift + 1
        where = f"UPDATE {self._table} SET id = id + %s WHERE id BETWEEN %s AND %s AND id %% %s = 0"
        self._do(where, shift, first, last, every)

    def delete(self) -> None:
        """Delete some rows."""
        self._some(f"DELETE FROM {self._table}")

    def alter(self) -> None:
        """Add a column, and insert a row with a value in it."""
        column = f"w{self._steps}"
        self._do(f"ALTER TABLE {self._table} ADD COLUMN {column} text DEFAULT 'w'")
        self.insert()

    def truncate(self) -> None:
        """Truncate the table that only this writer uses."""
        self._do(f"TRUNCATE {self._table}")

    def savepoint(self) -> None:
        """Set a nested savepoint."""
        self._depth += 1
        self._do(f"SAVEPOINT s{self._depth}")

    def roll_back(self) -> None:
        """Roll back one level or several; sometimes the savepoint itself remains and is used again."""
        to = self._chance.randint(1, self._depth)
        self._do(f"ROLLBACK TO SAVEPOINT s{to}")
        self._depth = to
        if self._chance.random() < 0.7:
            self.release()

    def release(self) -> None:
        """Release the innermost savepoint."""
        self._do(f"RELEASE SAVEPOINT s{self._depth}")
        self._depth -= 1

    def end(self, *, commit: bool) -> None:
        """Commit or roll back the transaction."""
        (self.connection.commit if commit else self.connection.rollback)()
        self.connection.close()

    def _some(self, statement: str, *params: object) -> None:
        first, last, every = self._some_ids()
        self._do(f"{statement} WHERE id BETWEEN %s AND %s AND id %% %s = 0", *params, first, last, every)

    def _some_ids(self) -> tuple[int, int, int]:
        first = self._chance.randint(self._first_id, self._next_id)
        return first, first + self._chance.randint(0, 40), self._chance.randint(1, 5)

    def _do(self, statement: str, *params: object) -> None:
        self._cursor.execute(statement, params or None)


@pytest.fixture
def server(pg_server: PostgresServers, request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A server with enough connections for all writers."""
    server = pg_server.fresh(request.param, settings={"max_connections": str(MOST_WRITERS + 30)})
    server.start()
    yield server
    server.stop("immediate")


@pytest.mark.parametrize(
    ("server", "streaming", "setting"),
    [
        pytest.param(18, "parallel", "logical_decoding_work_mem = '64kB'", marks=pytest.mark.long),
        (18, "parallel", "debug_logical_replication_streaming = 'immediate'"),
        pytest.param(16, "parallel", "logical_decoding_work_mem = '64kB'", marks=pytest.mark.long),
    ],
    indirect=["server"],
)
@pytest.mark.parametrize("count", [25, nightly(60), nightly(MOST_WRITERS)])
def test_interleaved_streams_equal_the_witness(
    count: int,
    server: PostgresServer,
    streaming: str,
    setting: str,
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    """F26, F28, F29: changes are in commit order and there once, rolled back changes are missing."""
    seed = 4
    print(f"seed {seed}")
    chance = random.Random(seed)
    server.create_database("crowd")
    dsn = server.dsn("crowd")
    run_script(
        dsn,
        f"ALTER DATABASE crowd SET {setting}",
        *(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)" for table in TABLES),
    )
    source = {"protocol": {"streaming": streaming}}
    with new_daemon(server, "crowd", source=source, snapshot=STREAM_ONLY) as daemon:
        daemon.start().wait_state("streaming")
        make_witness(dsn)
        writers = [Writer(number, dsn, chance) for number in range(count)]
        for _ in range(STEPS):
            steps = [(writer, writer.next_step()) for writer in writers]
            for writer, step in steps:
                if step != writer.roll_back:
                    step()
            # After a rollback before its decoding, cdcd would read again without streaming.
            await_received(server, daemon)
            for writer, step in steps:
                if step == writer.roll_back:
                    step()
        eventually(
            lambda: f"cdcd_open_transactions {float(count)}\n" in daemon.get("/metrics")[1],
            f"{count} streams are open at once",
        )
        assert reader.read(*topics_of(daemon.name)) == [], "rows are visible before they are committed"
        end_all(writers, chance)
        await_confirmed(server, daemon)
        events = reader.read(*topics_of(daemon.name))
        assert daemon.stop() == 0
        assert [line["streaming"] for line in daemon.events("streaming")] == [streaming]
    assert_each_once(events)
    seen = witnessed(dsn)
    print(f"{len(seen)} transactions, {sum(len(one.changes) for one in seen)} changes")
    assert_equal(transactions_of(events), seen)


def end_all(writers: list[Writer], chance: random.Random) -> None:
    """End the transactions in random order, while the open ones continue."""
    fates = [number % ROLLED_BACK_SHARE != 0 for number in range(len(writers))]
    chance.shuffle(writers)
    chance.shuffle(fates)
    while writers:
        writers.pop().end(commit=fates.pop())
        for writer in chance.sample(writers, min(2, len(writers))):
            writer.insert()


def topics_of(name: str) -> list[str]:
    """Return the tables' topics."""
    return [f"{name}.public.{table}" for table in TABLES]


def transactions_of(events: list[Event]) -> list[Transaction]:
    """Return the transactions read, in commit order; a truncate counts once. `tx_seq` starts at 1 in each of them."""
    found = {event.sequence: event for event in events if event.sequence is not None}
    transactions: dict[int, Transaction] = {}
    for sequence in sorted(found):
        event = found[sequence]
        _, commit_lsn, tx_seq = sequence
        one = transactions.setdefault(commit_lsn, Transaction(event.source["txId"], []))
        assert (event.source["txId"], tx_seq) == (one.xid, len(one.changes) + 1)
        one.changes.append(change_of(event))
    return list(transactions.values())


def change_of(event: Event) -> Change:
    """Return the change of an event."""
    row = event.value["before" if event.op == "d" else "after"] or {"id": None, "v": None}
    assert event.op is not None
    value = None if event.op == "d" else row["v"]
    return Change(event.source["table"], event.op, row["id"], value, event.source["lsn"])


def make_witness(dsn: str) -> None:
    """Create the reference slot, which sees the commits from now on."""
    run_script(dsn, f"SELECT pg_create_logical_replication_slot('{SLOT}', 'test_decoding')")


def witnessed(dsn: str) -> list[Transaction]:
    """Return the transactions in test_decoding's output, except those without changes."""
    query = f"SELECT lsn - '0/0'::pg_lsn, data FROM pg_logical_slot_get_changes('{SLOT}', NULL, NULL)"
    transactions: list[Transaction] = []
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        for lsn, line in cursor:
            if line.startswith("BEGIN "):
                transactions.append(Transaction(int(line.split()[1]), []))
            elif not line.startswith("COMMIT "):
                transactions[-1].changes.extend(changes_of_line(line, int(lsn)))
    return [one for one in transactions if one.changes]


def changes_of_line(line: str, lsn: int) -> list[Change]:
    """Return the changes of one line; an update of a key gives two."""
    found = LINE.fullmatch(line)
    assert found is not None, "a line in an unknown format"
    table, op = found["table"], OPS[found["verb"]]
    if op == "t":
        return [Change(table, op, None, None, lsn)]
    rows = [(int(row["id"]), row["v"]) for row in ROW.finditer(found["rest"])]
    if len(rows) == 1:
        return [Change(table, op, *rows[0], lsn)]
    (old_id, _), (new_id, value) = rows
    return [Change(table, "d", old_id, None, lsn), Change(table, "c", new_id, value, lsn)]


def assert_equal(read: list[Transaction], seen: list[Transaction]) -> None:
    """Assert that the transactions are equal; the message names the first difference."""
    assert seen, "test_decoding has no transactions"
    assert [one.xid for one in read] == [one.xid for one in seen]
    for mine, theirs in zip(read, seen, strict=True):
        for number, pair in enumerate(zip(mine.changes, theirs.changes, strict=False), 1):
            assert pair[0] == pair[1], f"transaction {mine.xid}, change {number}"
        assert len(mine.changes) == len(theirs.changes), f"transaction {mine.xid}"
