"""Fault 2: COPY of very many rows while the daemon is stopped and killed repeatedly: each row is there once.

F75: rows of one multi-insert WAL record share their LSN: a restart from an LSN within a transaction would lose rows.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import closing

import psycopg2
import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.proxy import Proxy
from tests.support.reader import Reader
from tests.support.stack import run
from tests.support.waiting import eventually

ROW_BYTES = 40
"""A lower bound of the bytes received for each row."""


LONG = (pytest.mark.long, pytest.mark.timeout(1200))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("rows", "transactions", "restarts"),
    [
        (20_000, 1, 2),
        pytest.param(600_000, 1, 8, marks=LONG),
        pytest.param(600_000, 100, 8, marks=LONG),
    ],
)
def test_each_row_of_a_copy_is_there_once(
    rows: int,
    transactions: int,
    restarts: int,
    postgres: PostgresServer,
    database: str,
    kafka: KafkaBroker,
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    """F4, F64, F69, F75: SIGTERM and SIGKILL in turn, over a slow link, lose and repeat no row."""
    run(postgres, database, "CREATE TABLE t (id int PRIMARY KEY, note text)")
    with Proxy(postgres.port) as link, new_daemon(postgres, database) as daemon:
        link.slow(bytes_per_s=rows * ROW_BYTES / (2 if transactions == 1 else 40))
        daemon.config["source"]["dsn"] = daemon.config["source"]["dsn"].replace(
            str(postgres.port), str(link.port)
        )
        daemon.start().wait_state("streaming")
        assert daemon.stop() == 0
        copy(postgres.dsn(database), rows, transactions)
        # A single transaction is sent from its start each time. Of several only the rest is sent, and a stop writes
        # the complete ones.
        share = rows * ROW_BYTES // (restarts + 2 if transactions == 1 else 5 * restarts)
        daemon.start()
        for restart in range(restarts):
            enough = share * (restart + 1 if transactions == 1 else 1)
            eventually(lambda enough=enough: received_bytes(daemon) >= enough, "enough is received", 120)  # type: ignore[misc]
            assert unconfirmed(postgres, daemon), "all rows were confirmed before the last restart"
            end(daemon, is_kill=restart % 2 == 1)
            daemon.start()
        await_confirmed(postgres, daemon, 600)
        daemon.wait_state("streaming")
        assert daemon.stop() == 0
        counts = counted(reader, f"{daemon.name}.public.t")
    assert counts == (rows, rows, transactions)
    print(
        f"\nCOPY of {rows} rows in {transactions}: {restarts} restarts, {counts[0]} rows, {counts[1]} different"
    )


def end(daemon: Daemon, *, is_kill: bool) -> None:
    """End the daemon by SIGKILL, or by SIGTERM with status 0."""
    if is_kill:
        daemon.kill()
    else:
        assert daemon.stop() == 0


def copy(dsn: str, rows: int, transactions: int) -> None:
    """COPY the rows in `transactions` transactions."""
    each = rows // transactions
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        for first in range(0, rows, each):
            lines = "".join(f"{number}\trow {number}\n" for number in range(first, first + each))
            cursor.copy_expert("COPY t FROM STDIN", io.StringIO(lines))
            connection.commit()


def received_bytes(daemon: Daemon) -> int:
    """Return the number of bytes that this process has received from PostgreSQL."""
    lines = daemon.get("/metrics")[1].splitlines()
    found = [line for line in lines if line.startswith("cdcd_source_bytes_total ")]
    return int(float(found[0].split()[1])) if found else 0


def unconfirmed(server: PostgresServer, daemon: Daemon) -> bool:
    """Whether the slot has not confirmed all WAL."""
    query = "SELECT confirmed_flush_lsn < pg_current_wal_lsn() FROM pg_replication_slots WHERE slot_name = %s"
    return bool(server.execute(query, daemon.slot)[0][0])


def counted(reader: Reader, topic: str) -> tuple[int, int, int]:
    """Return the numbers of rows, distinct rows and transactions that an independent consumer reads."""
    ids: set[int] = set()
    commits: set[int] = set()
    rows = 0
    for row, commit_lsn in inserts(reader, topic):
        rows += 1
        ids.add(row)
        commits.add(commit_lsn)
    return rows, len(ids), len(commits)


def inserts(reader: Reader, topic: str) -> Iterator[tuple[int, int]]:
    """Yield the key of each row and the commit LSN of its transaction."""
    for event in reader.each(topic):
        assert event.op == "c"
        yield event.value["after"]["id"], event.source["commit_lsn"]
