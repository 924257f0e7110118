"""Changes of a table's definition in the middle of its incremental snapshot: afterwards readers have its rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import STREAMED, NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.folded import folded
from tests.support.gate import gate, stand_after_a_chunk
from tests.support.nightly import nightly
from tests.support.reader import Reader
from tests.support.snapshot_commands import await_copied, command, reports
from tests.support.stack import run_script
from tests.support.waiting import eventually

ROWS = 5000


class Case(NamedTuple):
    """A change. `rows`: the rows that readers have to have, as a query; `topic`: where, if not in the first one."""

    change: str
    rows: str = "SELECT * FROM {table}"
    topic: str = ""


CASES = {
    "add_column": Case("ALTER TABLE add_column ADD c int; UPDATE add_column SET c = 1 WHERE id % 2 = 0"),
    "drop_column": Case("ALTER TABLE drop_column DROP n", "SELECT id, other FROM {table}"),
    "new_key": Case("ALTER TABLE new_key DROP CONSTRAINT new_key_pkey, ADD PRIMARY KEY (other)", topic=".v2"),
    "wider_key": Case(
        "ALTER TABLE wider_key DROP CONSTRAINT wider_key_pkey, ADD PRIMARY KEY (n, id)", topic=".v2"
    ),
    "text_key": Case("ALTER TABLE text_key ALTER id TYPE text", topic=".v2"),
    "bigint_key": Case("ALTER TABLE bigint_key ALTER id TYPE bigint"),
    "renamed": Case("ALTER TABLE renamed RENAME TO renamed_now", "SELECT * FROM renamed_now", topic="_now"),
    "swapped": Case(
        "ALTER TABLE swapped RENAME TO swapped_old; CREATE TABLE swapped (LIKE swapped_old INCLUDING ALL);"
        "INSERT INTO swapped SELECT id, 7, -id FROM generate_series(1, 4000) id",
        "SELECT * FROM swapped_old",
        topic="_old",
    ),
    "identity_full": Case(
        "ALTER TABLE identity_full REPLICA IDENTITY FULL; UPDATE identity_full SET n = 2 WHERE id % 3 = 0"
    ),
    "truncated": Case(
        "TRUNCATE truncated; INSERT INTO truncated SELECT g, 9, -g FROM generate_series(1, 10) g"
    ),
    "vacuumed": Case("VACUUM FULL vacuumed"),
    "clustered": Case("CLUSTER clustered USING clustered_pkey"),
    "rewritten": Case(
        "ALTER TABLE rewritten ALTER n TYPE bigint; UPDATE rewritten SET n = 3 WHERE id % 3 = 0"
    ),
}
FEW = ("add_column", "drop_column", "new_key", "renamed", "truncated", "rewritten")
DROPPED = "dropped"
REFUSED = {
    "no_key": ("ALTER TABLE no_key DROP CONSTRAINT no_key_pkey, REPLICA IDENTITY FULL", "no key"),
}


def assert_rows(server: PostgresServer, database: str, daemon: Daemon, reader: Reader, table: str) -> None:
    """Assert that the topic of a case has the rows."""
    case = CASES[table]
    query = f"SELECT to_json(t) FROM ({case.rows.format(table=table)}) t"
    rows: list[dict[str, Any]] = [row for (row,) in server.execute(query, dbname=database)]
    events = reader.read(f"{daemon.name}.public.{table}{case.topic}")
    found = [{name: row.get(name) for name in rows[0]} for row in folded(events).values()]
    assert sorted(found, key=lambda row: row["other"]) == sorted(rows, key=lambda row: row["other"]), table


@pytest.mark.parametrize(
    ("streaming", "changes"),
    [("on", FEW), nightly("on", tuple(CASES)), nightly("off", tuple(CASES))],
    ids=["few", "streamed", "plain"],
)
def test_a_table_is_altered_in_the_middle(
    streaming: str,
    changes: tuple[str, ...],
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    server, tables = postgres, [*changes, *REFUSED, DROPPED]
    for table in tables:
        run_script(
            server.dsn(database),
            f"CREATE TABLE {table} (id int PRIMARY KEY, n int NOT NULL, other int NOT NULL)",
            f"INSERT INTO {table} SELECT g, 0, -g FROM generate_series(1, {ROWS}) g",
        )
    daemon = new_daemon(server, database, snapshot={"mode": "never"}, registry={"incompatible": "new_topic"})
    may_be_refused: set[str] = set()
    if streaming == "off":
        daemon.config["source"]["protocol"] = {"streaming": "off"}
    else:  # while cdcd reads open transactions, it does not change to a new topic
        daemon.config["source"]["dsn"] += f"?{STREAMED}"
        may_be_refused = {table for table in changes if CASES[table].topic == ".v2"}
    with daemon, gate(server, database) as closed:
        daemon.start().wait_state("streaming")
        for table in tables:
            stand_after_a_chunk(daemon, closed, f"public.{table}")
        closed.open()
        for table in tables:
            if table != DROPPED:
                change = CASES[table].change if table in CASES else REFUSED[table][0]
                run_script(server.dsn(database), *change.split(";"))
        run_script(server.dsn(database), f"DROP TABLE {DROPPED}")
        assert command(daemon, "resume")[0] == 200
        eventually(lambda: {one["state"] for one in reports(daemon)} == {"failed"}, "all others are copied")
        reasons = {one["table"].removeprefix("public."): one["reason"] for one in reports(daemon)}
        assert REFUSED.keys() <= reasons.keys() <= REFUSED.keys() | may_be_refused, reasons
        ended = [line["error"] for line in daemon.events("table_not_copied") if DROPPED in line["table"]]
        assert [error for error in ended if "was dropped" in error] == ended != [], "its copy is not left"
        if streaming == "off":
            assert all(reason in reasons[table] for table, (_, reason) in REFUSED.items())
        assert command(daemon, "stop")[0] == 200
        await_copied(daemon)
        await_confirmed(server, daemon)
        for table in set(changes) - reasons.keys():
            assert_rows(server, database, daemon, reader, table)
