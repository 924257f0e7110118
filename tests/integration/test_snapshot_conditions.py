"""A condition of a copy names the columns of a partitioned table by the table's name, in each kind of copy."""

from __future__ import annotations

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.reader import Reader
from tests.support.snapshot_commands import await_copied, command, start
from tests.support.stack import run_script

TABLES = (
    "CREATE TABLE orders (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)",
    "CREATE TABLE orders_low PARTITION OF orders FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE orders_high PARTITION OF orders FOR VALUES FROM (100) TO (1000)",
    "INSERT INTO orders SELECT g, g FROM generate_series(1, 200) g",
    "CREATE TABLE plain (id int PRIMARY KEY)",
    "INSERT INTO plain SELECT generate_series(1, 20)",
)
ORDERS = "public.orders"


def via_root(daemon: Daemon, server: PostgresServer, database: str) -> Daemon:
    server.execute(
        f"ALTER PUBLICATION cdcd_{daemon.name} SET (publish_via_partition_root = true)", dbname=database
    )
    daemon.config["source"]["publication"] = {"names": [f"cdcd_{daemon.name}"]}
    return daemon


def copied_ids(reader: Reader, topic: str) -> list[int]:
    return sorted(event.value["after"]["id"] for event in reader.read(topic) if event.op == "r")


def test_a_condition_qualifies_its_columns_in_each_kind_of_copy(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    run_script(postgres.dsn(database), *TABLES)
    overrides = [
        {"table": ORDERS, "where": "orders.id > 80 AND orders.id <= 120"},
        {"table": "public.plain", "where": "public.plain.id > 15"},
    ]
    daemon = new_daemon(postgres, database, snapshot={"overrides": overrides})
    with via_root(daemon, postgres, database):
        topic = f"{daemon.name}.{ORDERS}"
        assert daemon.run("check").returncode == 0
        assert daemon.start().wait_state("streaming", "halted")["state"] == "streaming"
        assert copied_ids(reader, topic) == [*range(81, 121)]
        assert copied_ids(reader, f"{daemon.name}.public.plain") == [*range(16, 21)]
        start(daemon, ORDERS, blocking=True, where="orders.id > 199 OR orders.id < 2")
        await_copied(daemon)
        assert copied_ids(reader, topic) == [1, *range(81, 121), 200]
        start(daemon, ORDERS, where="orders.id IN (2, 199)")
        await_copied(daemon)
        await_confirmed(postgres, daemon)
        assert copied_ids(reader, topic) == [1, 2, *range(81, 121), 199, 200]
        for blocking in (False, True):  # a partition is not read under the schema's name
            status, body = command(daemon, "start", ORDERS, blocking=blocking, where="public.orders.id > 1")
            assert (status, "does not accept the condition" in body["message"]) == (422, True)


def test_a_condition_with_the_schema_of_a_partitioned_table_is_refused_before_a_start(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """F79: the server would refuse it for each partition."""
    run_script(postgres.dsn(database), *TABLES)
    daemon = new_daemon(
        postgres, database, snapshot={"overrides": [{"table": ORDERS, "where": "public.orders.id > 80"}]}
    )
    with via_root(daemon, postgres, database):
        checked = daemon.run("check")
        (line,) = [line for line in checked.stdout.splitlines() if "snapshot.overrides" in line]
        assert (checked.returncode == 0, ORDERS in line) == (False, True)
        assert "CDCD-SOURCE-SETUP" in daemon.start().wait_state("halted")["reason"]
