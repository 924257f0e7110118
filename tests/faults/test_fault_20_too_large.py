"""Fault 20: a record that is larger than somebody takes. A halt that says where; nothing is passed over.

F65: the producer's limit refuses at once, the topic's (or the broker's) when the record is delivered.
"""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.reader import Reader, assert_each_once
from tests.support.stack import confirmed_position, wal_position

LARGE = (
    "INSERT INTO t SELECT g, CASE g WHEN 2 THEN repeat('secret', 100000) ELSE 'small' END"
    " FROM generate_series(1, 3) g"
)
"""One row of 600 kB between two small ones."""
LIMITS: dict[str, dict[str, Any]] = {
    "the producer's": {"properties": {"message.max.bytes": "100000"}},
    "the topic's": {"topics": {"properties": {"max.message.bytes": "100000"}}},
}


def let_in(kafka: KafkaBroker, topic: str) -> None:
    """Raise the topic's limit."""
    entry = ConfigEntry(
        "max.message.bytes",
        "2000000",
        source=ConfigSource.DYNAMIC_TOPIC_CONFIG,
        incremental_operation=AlterConfigOpType.SET,
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)


@pytest.mark.parametrize("whose", LIMITS)
def test_a_halt_that_says_where_until_somebody_raises_the_limit(
    whose: str,
    kafka: KafkaBroker,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, note text)", dbname=database)
    with new_daemon(postgres, database, sink=LIMITS[whose]) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        before = wal_position(postgres)
        postgres.execute(LARGE, dbname=database)
        page = daemon.wait_state("halted")
        assert "CDCD-RECORD-TOO-LARGE" in page["reason"]
        assert topic in page["reason"]
        assert "max.message.bytes" in page["reason"]
        assert "secretsecret" not in daemon.log()
        assert reader.read(topic) == []
        assert (confirmed_position(postgres, daemon.slot) or 0) <= before
        if whose == "the topic's":
            let_in(kafka, topic)
            daemon.reload()
        else:
            assert daemon.stop() == 0
            del daemon.config["sink"]["properties"]
            daemon.start()
        events = reader.wait([topic], lambda events: len(events) >= 3)
        assert_each_once(events)
        assert sorted(len(event.value["after"]["note"]) for event in events) == [5, 5, 600_000]
