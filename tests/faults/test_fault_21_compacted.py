"""Fault 21: a compacted topic refuses records without a key, such as a TRUNCATE: a halt, and its resolution."""

from __future__ import annotations

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import await_confirmed
from tests.support.reader import Event, Reader, assert_each_once
from tests.support.stack import commit_behind, confirmed_position
from tests.support.topics import set_topic_config

COMPACTED = {"topics": {"properties": {"cleanup.policy": "compact"}}}


def keep_all(kafka: KafkaBroker, topic: str) -> None:
    """Switch compaction off."""
    set_topic_config(kafka.bootstrap, topic, "cleanup.policy", "delete")


def ops(events: list[Event]) -> list[str]:
    """Return the sorted operations of the events, without tombstones."""
    return sorted(event.op for event in events if event.op is not None)


def test_a_truncate_of_a_table_whose_topic_is_compacted(
    kafka: KafkaBroker, postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """Rows, deletes and tombstones are written; the refused record halts, and its transaction is not written."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    with new_daemon(postgres, database, sink=COMPACTED) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        postgres.execute("INSERT INTO t VALUES (1), (2)", dbname=database)
        postgres.execute("DELETE FROM t WHERE id = 1", dbname=database)
        await_confirmed(postgres, daemon)
        before = commit_behind(
            postgres, database, "INSERT INTO t VALUES (3); TRUNCATE t; INSERT INTO t VALUES (4)"
        )
        page = daemon.wait_state("halted")
        assert topic in page["reason"]
        assert "cleanup.policy=compact" in page["reason"]
        assert (confirmed_position(postgres, daemon.slot) or 0) <= before
        assert ops(reader.read(topic)) == ["c", "c", "d"]
        keep_all(kafka, topic)
        daemon.reload()
        await_confirmed(postgres, daemon)
        events = reader.read(topic)
        assert_each_once(events)
        assert ops(events) == ["c", "c", "c", "c", "d", "t", "t"]
