"""No batch ends inside a snapshot, with a real daemon that is killed in the middle of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.errors import SnapshotIncomplete
from cdcd.failpoints import EXIT_STATUS, VARIABLE
from cdcd.spark.data_source import CdcdReader, CdcdStreamReader
from cdcd.spark.source.cuts import Offsets, loading_of, without_start
from cdcd.spark.source.source_options import parse_options
from tests.support.daemon import Daemon, await_confirmed
from tests.support.forked import Forks
from tests.support.reader import BEGINNING, Event, Reader
from tests.support.stack import run

ROWS = 2000
BOTH = "UPDATE a SET n = n + 1 WHERE id <= 50; UPDATE b SET n = n + 1 WHERE id <= 50"


@pytest.fixture
def daemon(
    tmp_path: Path,
    postgres: PostgresServer,
    database: str,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
    forks: Forks,
) -> Iterator[Daemon]:
    """Yield a daemon of two tables, which takes a new snapshot at each start."""
    for table in "ab":
        run(
            postgres,
            database,
            f"CREATE TABLE {table} (id int PRIMARY KEY, n int, body text)",
            f"INSERT INTO {table} SELECT id, 0, repeat('x', 900) FROM generate_series(1, {ROWS}) id",
        )
    name = f"cuts{database}"
    run(postgres, database, f"CREATE PUBLICATION cdcd_{name} FOR ALL TABLES")
    made = Daemon(
        tmp_path / "cdcd",
        name,
        dsn=postgres.dsn(database),
        bootstrap=kafka.bootstrap,
        registry_url=registry.url,
        snapshot={"mode": "always", "order": "name", "workers": 1},
        sink={"commit": {"max_rows": 100}},
    )
    made.spawn, made.run_command = forks.spawn, forks.run
    yield made
    made.__exit__()


def _cuts(daemon: Daemon, kafka: KafkaBroker, start: Offsets | None = None, **options: str) -> list[Offsets]:
    """Return the batch ends of a query with the smallest batches; the first one may be empty."""
    options = {"brokers": kafka.bootstrap, "prefix": daemon.name, "maxRows": "1", **options}
    reader = CdcdStreamReader(parse_options(options))
    try:
        reached, found = reader.initialOffset() if start is None else start, []
        while (end := reader.latestOffset(reached, reader.getDefaultReadLimit())) != reached:
            found += [end] if without_start(end) != reached else []
            reached = end
        return found
    finally:
        reader.stop()


def _tables(events: list[Event], cut: Offsets) -> list[dict[int, int]]:
    """Return `n` by `id` of both tables as of a cut."""
    tables: dict[str, dict[int, int]] = {"a": {}, "b": {}}
    for event in sorted(events, key=lambda one: one.sequence or BEGINNING):
        if event.offset >= cut.get(event.topic, {}).get(str(event.partition), 0) or event.value is None:
            continue
        rows = tables[event.topic.rpartition(".")[2]]
        if event.op == "t":
            rows.clear()
        elif event.op != "g":
            after: dict[str, Any] = event.value["after"]
            rows[after["id"]] = after["n"]
    return [tables["a"], tables["b"]]


def test_each_batch_ends_where_all_tables_are_complete_and_equal(
    daemon: Daemon, postgres: PostgresServer, database: str, kafka: KafkaBroker, registry: SchemaRegistry
) -> None:
    """Both tables are always changed in one transaction, so at each cut they have the same rows.

    The first snapshot is killed in table b, which a later snapshot copies; then a second one takes place.
    """
    batch = CdcdReader(parse_options({"brokers": kafka.bootstrap, "prefix": daemon.name}))
    daemon.environment[VARIABLE] = "committed:12"
    assert daemon.start().wait_exit() == EXIT_STATUS
    del daemon.environment[VARIABLE]
    assert _cuts(daemon, kafka) == []
    with pytest.raises(SnapshotIncomplete):
        batch.partitions()
    marked = _cuts(daemon, kafka, loading="true")
    assert len(marked) > 3
    assert all(loading_of(cut) for cut in marked)

    for _ in range(3):
        run(postgres, database, BOTH)
    daemon.start().wait_state("streaming")
    run(postgres, database, BOTH)
    await_confirmed(postgres, daemon)
    first = _cuts(daemon, kafka)
    assert batch.partitions()
    assert daemon.stop() == 0
    run(postgres, database, BOTH)
    daemon.start().wait_state("streaming")
    before = "SELECT pg_current_wal_lsn()::text, clock_timestamp()::timestamptz(6)"
    lsn, moment = postgres.execute(before, dbname=database)[0]
    run(postgres, database, BOTH)
    await_confirmed(postgres, daemon)
    assert daemon.stop() == 0
    for position in ({"startingLsn": lsn}, {"startingTimestamp": moment.isoformat()}):
        options = {"brokers": kafka.bootstrap, "prefix": daemon.name, **position}
        after = CdcdReader(parse_options(options))
        rows = sum(rows.num_rows for part in after.partitions() for rows in after.read(part))
        assert rows == 100, "the changes after the position that PostgreSQL returned"
    second = _cuts(daemon, kafka, first[-1])
    assert _cuts(daemon, kafka)[: len(first)] == first
    assert loading_of(_cuts(daemon, kafka, loading="true")[-1]) == frozenset()

    events = Reader(kafka.bootstrap, registry.url).read(*(f"{daemon.name}.public.{table}" for table in "ab"))
    assert {event.op for event in events} == {"r", "u", "t", "g"}
    for cut in [*first, *second]:
        a, b = _tables(events, cut)
        assert (len(a), a) == (ROWS, b)
    assert [_tables(events, cut)[0][1] for cut in (first[-1], second[0], second[-1])] == [4, 5, 6]
