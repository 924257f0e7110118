"""Fault 37: the standby from which the tables are copied is lost in the middle of the copy."""

from __future__ import annotations

import pytest

from cdcd.errors import StandbyUnavailable
from tests.integration.conftest import NewDaemon
from tests.support.gate import gate
from tests.support.nightly import nightly
from tests.support.proxy import Proxy
from tests.support.reader import Reader
from tests.support.stack import PostgresServers
from tests.support.standby_snapshot import FIRST, Pair, changed, copied, filled, finish, gated
from tests.support.waiting import eventually


@pytest.mark.parametrize("fault", ["killed", nightly("cut off")])
def test_a_standby_that_is_lost_in_the_copy_is_waited_for_and_never_replaced_by_the_primary(
    pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader, fault: str
) -> None:
    """F60: the tables that are complete are not copied again, and no table of the primary is read."""
    pair = Pair(pg_server.fresh(18), pg_server.fresh(18))
    try:
        pair.start()
        with (
            filled(pair) as database,
            Proxy(pair.standby.port) as link,
            gate(pair.primary, database, pair.standby) as closed,
            new_daemon(pair.primary, database, snapshot=gated(pair, database)) as daemon,
        ):
            options = daemon.config["snapshot"]
            options["from"] = options["from"].replace(f":{pair.standby.port}/", f":{link.port}/")
            options["workers"] = 1
            daemon.start()
            closed.wait()
            eventually(lambda: daemon.status()["rows_written"] > FIRST, "a_first is durable")
            if fault == "killed":
                pair.standby.kill()
            else:
                link.refuse()
            eventually(lambda: daemon.waits_for("snapshot_standby"), "the daemon waits for the standby")
            assert {line["code"] for line in daemon.events("retrying")} == {StandbyUnavailable.code}
            changed(pair, database)
            if fault == "killed":
                pair.standby.start()
            else:
                closed.open()
                link.accept()
            events = finish(pair, database, daemon, reader)
            assert copied(events["a_first"]) == FIRST
            assert not any(event.op == "t" for event in events["a_first"])
            assert [line["tables"] for line in daemon.events("snapshot_started")] == [2, 1]
    finally:
        pair.stop()
