"""Fault 31: a Kafka password changes, on the broker and on disk, while rows are inserted all the time.

librdkafka reads passwords and certificates when a client is created: cdcd recreates its clients between two Kafka
transactions, without ending the session with PostgreSQL.
"""

from __future__ import annotations

import pytest

from tests.faults.access import ByPassword
from tests.support.waiting import eventually


def test_a_password_is_changed_under_load(by_password: ByPassword) -> None:
    """There is one session from start to end; after the change it can connect with the new password only."""
    access = by_password("rotated", "canary one").hasty()
    daemon, secured = access.daemon, access.secured
    daemon.start().wait_state("streaming")
    with access.inserting() as rows:
        access.await_more_rows()
        secured.set_password("rotated", "canary two")
        access.secret.write_text("canary two")
        eventually(lambda: daemon.events("producer_rebuilt"), "the new password is used")
        access.await_more_rows()
        secured.sasl.cut()
        access.await_more_rows()
    access.assert_all_there(rows)
    (rebuilt,) = daemon.events("producer_rebuilt")
    assert rebuilt["files"] == [str(access.secret)]
    assert 'cdcd_producer_rebuilds_total{reason="files"} 1.0' in daemon.get("/metrics")[1]
    assert len(daemon.events("streaming")) == 1
    assert not daemon.events("retrying")
    assert daemon.stop() == 0
    assert "canary" not in daemon.log()


@pytest.mark.nightly  # fault 22 has a wrong password
def test_a_password_that_the_broker_does_not_know_yet_is_waited_for(by_password: ByPassword) -> None:
    """The file changes before the broker: the new password is refused, cdcd retries, and each row is there once."""
    access = by_password("early", "one").hasty()
    daemon = access.daemon.start()
    daemon.wait_state("streaming")
    with access.inserting() as rows:
        access.await_more_rows()
        access.secret.write_text("two")
        eventually(lambda: "CDCD-SINK-AUTH" in daemon.status()["reason"], "the new password is refused")
        access.secured.set_password("early", "two")
        daemon.wait_state("streaming")
        access.await_more_rows()
    access.assert_all_there(rows)
