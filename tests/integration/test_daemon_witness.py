"""The complete shop workload, with a kill in its middle, compared with PostgreSQL's own account of the commits."""

from __future__ import annotations

import pytest

from cdcd.demo import load, plan
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.demo.workload import Workload
from tests.integration.conftest import NewDaemon
from tests.support.daemon import await_confirmed
from tests.support.nightly import nightly
from tests.support.reader import (
    Reader,
    assert_each_once,
    assert_metadata_counts,
    assert_tombstones_follow_deletes,
)
from tests.support.stack import PostgresServers
from tests.support.waiting import eventually
from tests.support.witness import Witness, assert_same_changes, changes_of

SEED, ROWS, SECONDS = 5, 1500, 8.0


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("in_flight", [20_000, nightly(100_000)])
def test_every_change_of_every_transaction_is_read_once_across_a_kill(
    in_flight: int,
    pg_server: PostgresServers,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
    new_daemon: NewDaemon,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F4, F63, F64: one kill among small transactions, one while many rows of one transaction are in flight."""
    monkeypatch.setattr(plan, "BULK_CHANGES", in_flight)
    monkeypatch.setattr(plan, "_BULK_CHUNK", in_flight // 20)
    server = pg_server.fresh(17)
    server.start()
    try:
        server.create_database("shop")
        dsn = server.dsn("shop")
        load.create_shop(dsn)
        loaded = load.load(dsn, ROWS, SEED)
        with new_daemon(server, "shop") as daemon:
            daemon.config["source"]["publication"] = {"names": [load.PUBLICATION]}
            daemon.config["format"] = {"transactions": True}
            reader = Reader(kafka.bootstrap, registry.url, [f"{daemon.name}.public.type_zoo"])
            daemon.start().wait_state("streaming")
            witness = Witness(dsn)
            workload = Workload(dsn, loaded, SEED, SECONDS)
            workload.start()
            for moment in (
                lambda: workload.counters.transactions > 50,
                lambda: workload.counters.is_bulk_committed,
            ):
                eventually(moment, "the moment of a kill")
                daemon.kill()
                daemon.start()
            workload.wait(60)
            await_confirmed(server, daemon, 120)
            events = reader.read(*reader.topics(daemon.name))
            assert_each_once(events)
            assert_tombstones_follow_deletes(events)
            assert_metadata_counts(events, f"{daemon.name}.transaction")
            topics = f"{daemon.name}.public"
            assert_same_changes(
                witness.read(), changes_of(events, witness.from_lsn, topics, f"{daemon.name}.message")
            )
    finally:
        server.stop("immediate")
