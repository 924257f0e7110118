"""An initial snapshot has the rows and columns that the stream has, or stops with the reason."""

from __future__ import annotations

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import await_confirmed
from tests.support.folded import folded
from tests.support.reader import Reader, assert_each_once
from tests.support.stack import run_script

ROLE = "cdcd_copies_first"
ROWS = 1_000
TABLES = (
    "CREATE TABLE part (id int PRIMARY KEY, n int, secret text, twice int GENERATED ALWAYS AS (n * 2) STORED)",
    "CREATE TABLE hidden (id int PRIMARY KEY, n int)",
    *(
        f"INSERT INTO {table} (id, n) SELECT g, g % 10 FROM generate_series(1, {ROWS}) g"
        for table in ("part", "hidden")
    ),
    "ALTER TABLE hidden ENABLE ROW LEVEL SECURITY",
    "CREATE POLICY own ON hidden USING (n = 1)",
)
LATER = (
    "INSERT INTO part (id, n) SELECT g, g % 10 FROM generate_series(2001, 2100) g",
    "UPDATE part SET n = n + 1 WHERE id % 7 = 0",
    "DELETE FROM part WHERE id % 11 = 0",
    "INSERT INTO hidden VALUES (5000, 2)",
)


def test_a_column_list_a_filter_a_generated_column_and_row_level_security(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    run_script(postgres.dsn(database), *TABLES)
    daemon = new_daemon(postgres, database)
    pub = f"cdcd_{daemon.name}"
    run_script(
        postgres.dsn(database),
        f"DROP PUBLICATION {pub}",
        f"CREATE PUBLICATION {pub} FOR TABLE part (id, n, twice) WHERE (id % 3 = 0), hidden",
        f"DROP ROLE IF EXISTS {ROLE}",
        f"CREATE ROLE {ROLE} LOGIN REPLICATION",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {ROLE}",
    )
    daemon.config["source"]["dsn"] = postgres.dsn(database).replace("postgres@", f"{ROLE}@")
    try:
        with daemon:
            daemon.start().wait_state("halted")
            assert "row-level security" in daemon.events("halted")[-1]["error"]
            run_script(postgres.dsn(database), f"ALTER ROLE {ROLE} BYPASSRLS")
            assert daemon.stop() == 0
            daemon.start().wait_state("streaming")
            run_script(postgres.dsn(database), *LATER)
            await_confirmed(postgres, daemon)
            for table, query in (
                ("part", "SELECT id, n, twice FROM part WHERE id % 3 = 0"),
                ("hidden", "SELECT * FROM hidden"),
            ):
                events = reader.read(f"{daemon.name}.public.{table}")
                assert_each_once(events)
                assert {event.op for event in events} >= {"r", "c"}
                rows = [
                    row for (row,) in postgres.execute(f"SELECT to_json(t) FROM ({query}) t", dbname=database)
                ]
                found = list(folded(events).values())
                assert sorted(found, key=lambda row: row["id"]) == sorted(rows, key=lambda row: row["id"])
    finally:
        run_script(postgres.dsn(database), f"DROP OWNED BY {ROLE}", f"DROP ROLE {ROLE}")
