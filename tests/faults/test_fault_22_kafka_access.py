"""Fault 22: Kafka does not let cdcd in, or takes a right away from it: named, tried again, and mended."""

from __future__ import annotations

from tests.faults.access import ByPassword
from tests.support.stack import confirmed_position
from tests.support.waiting import eventually


def test_a_wrong_password_is_named_and_heals_with_the_file(by_password: ByPassword) -> None:
    access = by_password("mistaken", "the right one", written="canary")
    daemon = access.daemon.start()
    eventually(lambda: "CDCD-SINK-AUTH" in daemon.status().get("reason", ""), "the refusal is named")
    assert daemon.status()["state"] == "backoff"
    assert daemon.get("/readyz")[0] == 503
    access.postgres.execute("INSERT INTO t VALUES (1)", dbname=access.database)
    access.secret.write_text("the right one")
    daemon.wait_state("streaming")
    with access.inserting(after=1) as rows:
        access.await_more_rows()
    access.assert_all_there(rows)
    assert "canary" not in daemon.log()


def test_a_right_that_is_taken_away_is_told_and_waited_for(by_password: ByPassword) -> None:
    """While it may not write nothing is confirmed; the moment it may again, what has come meanwhile is written."""
    access = by_password("forbidden", "one")
    secured, daemon, topic = access.secured, access.daemon, access.topic
    daemon.start().wait_state("streaming")
    with access.inserting() as rows:
        access.await_more_rows()
        secured.deny("User:forbidden", topic)
        eventually(lambda: "CDCD-SINK-AUTH" in daemon.status()["reason"], "the refusal is named")
        before = confirmed_position(access.postgres, daemon.slot)
        failed = 'cdcd_errors_total{class="retryable",component="sink"} 0.0'
        eventually(lambda: failed not in daemon.get("/metrics")[1], "it is counted")
        assert topic in daemon.log()
        assert confirmed_position(access.postgres, daemon.slot) == before
        secured.give_back("User:forbidden", topic)
        daemon.wait_state("streaming")
        access.await_more_rows()
    access.assert_all_there(rows)
