"""An interrupted snapshot under a changed configuration: no row is missing, whatever the next start continues.

F37, F40: a table of which ranges are complete is continued only by a start that streams, with the same condition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.integration.test_snapshot_ranges import with_small_units
from tests.integration.test_snapshot_rest import started_until
from tests.support.daemon import Daemon, await_confirmed
from tests.support.folded import folded
from tests.support.reader import Reader
from tests.support.snapshot_commands import await_copied
from tests.support.stack import PostgresServers, filled_database, run

BIG = 12_000
TABLES = (
    "CREATE TABLE big (id int PRIMARY KEY, note text, body text)",
    "INSERT INTO big SELECT g, CASE g WHEN 9000 THEN 'secret' ELSE g::text END, repeat('x', 300)"
    f" FROM generate_series(1, {BIG}) g",
    "CREATE TABLE log (at int, what text)",
    "INSERT INTO log SELECT g, repeat('l', 300) FROM generate_series(1, 3000) g",
)
SINK = {"commit": {"max_rows": 500}}


@pytest.fixture
def source(pg_server: PostgresServers) -> Iterator[tuple[PostgresServer, str]]:
    """Yield a server and a database with the tables."""
    with filled_database(pg_server, 18, TABLES) as found:
        yield found


def ids_in_topic(reader: Reader, daemon: Daemon) -> set[int]:
    """Return the keys of the rows that a reader of the topic has."""
    return {row["id"] for row in folded(reader.read(f"{daemon.name}.public.big")).values()}


def ids_in_table(source: tuple[PostgresServer, str], condition: str = "true") -> set[int]:
    server, database = source
    return {row for (row,) in server.execute(f"SELECT id FROM big WHERE {condition}", dbname=database)}


def copied(daemon: Daemon, source: tuple[PostgresServer, str]) -> None:
    """Start the daemon, wait until everything is copied and written, and stop it."""
    server, _ = source
    daemon.start().wait_state("streaming")
    await_copied(daemon)
    await_confirmed(server, daemon)
    assert daemon.stop() == 0


def test_a_table_that_was_to_be_continued_is_copied_by_a_start_without_a_stream(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """The second attempt has left the table to an incremental snapshot, which with `initial_only` never comes."""
    server, database = source
    with with_small_units(new_daemon(server, database, snapshot={"workers": 1}, sink=SINK)) as daemon:
        started_until(daemon, "committed:10")  # within big
        run(server, database, "DELETE FROM big WHERE id % 7 = 0")
        started_until(daemon, "committed:3")  # within log, which is copied first now
        daemon.config["snapshot"]["mode"] = "initial_only"
        assert daemon.start().wait_exit() == 0
        assert ids_in_topic(reader, daemon) == ids_in_table(source)
        assert daemon.start().wait_exit() == 0
        assert len(daemon.events("snapshot_started")) == 3, "a complete snapshot is taken again"


def test_a_corrected_condition_applies_to_the_interrupted_table(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """The rows that were written under the former condition are removed."""
    server, database = source
    rule: dict[str, Any] = {"table": "public.big", "where": "note::int > 100"}
    options = {"workers": 1, "overrides": [rule]}
    with with_small_units(new_daemon(server, database, snapshot=options, sink=SINK)) as daemon:
        reason = daemon.start().wait_state("halted")["reason"]
        assert re.match(r"CDCD-SOURCE-SETUP: the condition `where` .* fails for a row", reason), reason
        assert "snapshot.overrides" in reason
        assert "public.big" in reason
        assert "secret" not in daemon.log()
        assert daemon.stop() == 0
        assert ids_in_topic(reader, daemon), "no range is complete"
        rule["where"] = "id > 1000"
        copied(daemon, source)
        assert [event["table"] for event in daemon.events("table_copied_again")] == ["public.big"]
        assert not daemon.events("snapshot_continues_while_streaming")
        assert ids_in_topic(reader, daemon) == ids_in_table(source, "id > 1000")


def test_an_interrupted_table_that_is_excluded_is_only_streamed(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    with with_small_units(new_daemon(server, database, snapshot={"workers": 1}, sink=SINK)) as daemon:
        started_until(daemon, "committed:10")
        before = ids_in_topic(reader, daemon)
        assert len(before) < BIG
        daemon.config["snapshot"]["overrides"] = [{"table": "public.big", "include": False}]
        run(server, database, "INSERT INTO big VALUES (20000, 'new', '')", "DELETE FROM big WHERE id = 1")
        copied(daemon, source)
        assert not daemon.events("snapshot_continues_while_streaming")
        assert ids_in_topic(reader, daemon) == before - {1} | {20000}
