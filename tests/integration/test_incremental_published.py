"""An incremental snapshot has the rows and columns that the stream has, or is refused with the reason."""

from __future__ import annotations

from typing import Any

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import await_confirmed
from tests.support.folded import folded
from tests.support.reader import Reader
from tests.support.snapshot_commands import await_copied, command, start
from tests.support.stack import run_script

ROLE = "cdcd_copies"
TABLES = (
    "CREATE TABLE part (id int PRIMARY KEY, n int, secret text)",
    "CREATE TABLE made (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED)",
    "CREATE TABLE hidden (id int PRIMARY KEY, n int)",
    "CREATE TABLE loose (id int UNIQUE, n int)",
    "ALTER TABLE loose REPLICA IDENTITY FULL",
    "CREATE TABLE whole (id int UNIQUE NOT NULL, n int)",
    "ALTER TABLE whole REPLICA IDENTITY FULL",
    *(
        f"INSERT INTO {table} (id, n) SELECT g, g % 10 FROM generate_series(1, 3000) g"
        for table in ("part", "made", "hidden", "loose", "whole")
    ),
    "INSERT INTO loose VALUES (NULL, 1), (NULL, 2)",
    "ALTER TABLE hidden ENABLE ROW LEVEL SECURITY",
    "CREATE POLICY own ON hidden USING (n = 1)",
)


def test_the_publication_and_the_role_decide(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    run_script(postgres.dsn(database), *TABLES)
    override = [
        {"table": r"public\.loose", "key_columns": ["id"]},
        {"table": r"public\.whole", "key_columns": ["id"]},
    ]
    daemon = new_daemon(postgres, database, snapshot={"mode": "never"}, format={"overrides": override})
    pub = f"cdcd_{daemon.name}"
    run_script(
        postgres.dsn(database),
        f"DROP PUBLICATION {pub}",
        f"CREATE PUBLICATION {pub} FOR TABLE part (id, n) WHERE (id % 3 = 0), made, hidden, loose, whole"
        " WITH (publish_generated_columns = stored)",
        f"DROP ROLE IF EXISTS {ROLE}",
        f"CREATE ROLE {ROLE} LOGIN REPLICATION",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {ROLE}",
        f"REVOKE SELECT ON whole FROM {ROLE}",
    )
    daemon.config["source"]["dsn"] = postgres.dsn(database).replace("postgres@", f"{ROLE}@")
    with daemon:
        daemon.start().wait_state("streaming")
        status, body = command(daemon, "start", "public.loose")
        assert status == 422
        assert "no key" in body["message"]
        for table, reason, needed in (
            ("public.hidden", "row-level security", "BYPASSRLS"),
            ("public.whole", "permission denied", "GRANT"),
        ):
            status, body = command(daemon, "start", table)
            assert status == 422
            assert reason in body["message"]
            assert needed in body["hint"]
        start(daemon, "public.part", "public.made")
        postgres.execute("UPDATE made SET n = n + 1 WHERE id % 7 = 0", dbname=database)
        postgres.execute("UPDATE part SET id = -id WHERE id % 7 = 0", dbname=database)
        run_script(postgres.dsn(database), f"GRANT SELECT ON whole TO {ROLE}", f"ALTER ROLE {ROLE} BYPASSRLS")
        start(daemon, "public.hidden", "public.whole")
        await_copied(daemon)
        await_confirmed(postgres, daemon)
        for table, query in (
            ("part", "SELECT id, n FROM part WHERE id % 3 = 0"),
            ("made", "SELECT * FROM made"),
            ("hidden", "SELECT * FROM hidden"),
            ("whole", "SELECT * FROM whole"),
        ):
            rows: list[dict[str, Any]] = [
                row for (row,) in postgres.execute(f"SELECT to_json(t) FROM ({query}) t", dbname=database)
            ]
            found = list(folded(reader.read(f"{daemon.name}.public.{table}")).values())
            assert sorted(found, key=lambda row: row["id"]) == sorted(rows, key=lambda row: row["id"]), table
    run_script(postgres.dsn(database), f"DROP OWNED BY {ROLE}", f"DROP ROLE {ROLE}")
