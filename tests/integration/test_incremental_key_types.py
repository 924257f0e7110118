"""Types of keys that the role may not name, or that a value does not satisfy: no row is missing for readers."""

from __future__ import annotations

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import await_confirmed
from tests.support.folded import folded
from tests.support.reader import Reader
from tests.support.snapshot_commands import await_copied, command, start
from tests.support.stack import run_script

ROLE = "cdcd_key_types"
ROWS = 3000
"""More than the first chunk has: later ones name the type."""


def test_the_values_of_a_key_violate_a_constraint_of_its_domain(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    run_script(
        postgres.dsn(database),
        "CREATE DOMAIN code AS int",
        "CREATE DOMAIN inner_code AS code",
        "CREATE TABLE t (id inner_code PRIMARY KEY)",
        f"INSERT INTO t SELECT g FROM generate_series(1, {ROWS}) g",
        f"ALTER DOMAIN code ADD CONSTRAINT later CHECK (value > {ROWS}) NOT VALID",
    )
    with new_daemon(postgres, database, snapshot={"mode": "never"}) as daemon:
        daemon.start().wait_state("streaming")
        start(daemon, "public.t")
        await_copied(daemon)
        await_confirmed(postgres, daemon)
        assert len(folded(reader.read(f"{daemon.name}.public.t"))) == ROWS


def test_a_key_whose_type_is_in_a_schema_that_the_role_may_not_use(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """Reading the table does not need the right, comparing its key does. A recopy must not empty the table first."""
    run_script(
        postgres.dsn(database),
        "CREATE SCHEMA ext",
        "CREATE TYPE ext.mood AS ENUM ('ok')",
        "CREATE TABLE t (id int, mood ext.mood, PRIMARY KEY (id, mood))",
        f"INSERT INTO t SELECT g, 'ok' FROM generate_series(1, {ROWS}) g",
        f"DROP ROLE IF EXISTS {ROLE}",
        f"CREATE ROLE {ROLE} LOGIN REPLICATION",
        f"GRANT SELECT ON t TO {ROLE}",
    )
    daemon = new_daemon(postgres, database)
    daemon.config["source"]["dsn"] = postgres.dsn(database).replace("postgres@", f"{ROLE}@")
    with daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        status, body = command(daemon, "start", "public.t", recopy=True)
        assert (status, "schema ext" in body["message"], "key's types" in body["hint"]) == (422, True, True)
        await_confirmed(postgres, daemon)
        assert len(folded(reader.read(topic))) == ROWS
        postgres.execute(f"GRANT USAGE ON SCHEMA ext TO {ROLE}", dbname=database)
        start(daemon, "public.t", recopy=True)
        await_copied(daemon)
        await_confirmed(postgres, daemon)
        assert len(folded(reader.read(topic))) == ROWS
    postgres.execute(f"DROP OWNED BY {ROLE}", dbname=database)
    postgres.execute(f"DROP ROLE {ROLE}", dbname=database)
