"""Every metric, field of /status and probe, in every situation: an unknown value is absent or null, never 0.

`METRICS`, `FIELDS` and `PROBES` give, for each name and each of `SITUATIONS`, the daemon's value there:

    -  absent, or null       0  zero                  +  more than zero, or any text
    ^  grows between reads   k  known, any value      ?  known or not: it becomes known at some time
    e  an empty text

A name that is not in its table fails the walk, and so does a name of the tables that never has a value. The lag is
compared with the commits that are not durable in Kafka, which are read from PostgreSQL alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.monitoring.server_monitor import SCRAPE_INTERVAL_S, SCRAPE_TIMEOUT_S
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed, await_received
from tests.support.proxy import Proxy
from tests.support.resolutions import command
from tests.support.snapshot_commands import await_copied
from tests.support.snapshot_commands import start as start_copy
from tests.support.stack import SLOT_OWNER, PostgresServers, confirmed_position, prepare, run, wal_position
from tests.support.standby import make_standby
from tests.support.waiting import eventually

SITUATIONS = (
    "first",  # the first start, and the source refuses connections: no value is known
    "copy",  # the snapshot runs; its server process is stopped, and other sessions commit
    "rest",  # streaming, and everything is durable
    "stalled",  # the walsender is stopped, and other sessions commit
    "held",  # Kafka does not answer, and other sessions commit
    "lost",  # the source refuses connections, and other sessions commit
    "restarted",  # a new process, and the source refuses connections
    "again",  # that process streams, and there was no later commit
    "halted",  # an operator has to decide, and other sessions commit
    "all",  # another daemon with options that are off by default: two_phase (a prepared transaction), heartbeats
    "all lost",  # that daemon, and the source refuses connections
    "bare",  # a third daemon, without a registry, a snapshot and exactly once, idle
)
COUNTER = "k k k k k k k k k k k k"
BY_SLOT = "- k k k k - - k k k - k"

METRICS = {
    # the lag; the server writes WAL of its own at any time
    "cdcd_replication_lag_seconds": "- ^ 0 ^ ^ ^ ? 0 ^ 0 ^ 0",
    "cdcd_replication_lag_bytes": "- + k + + - - k + k - k",
    "cdcd_received_lag_bytes": "- + k + k - - k + k - k",
    "cdcd_last_commit_timestamp_seconds": "- - + + + + ? + + + + +",
    "cdcd_kafka_last_commit_timestamp_seconds": "- ? + + + + - ? + + + +",
    "cdcd_event_latency_seconds": "0 0 + + + + 0 0 ? + + +",
    # state
    "cdcd_build_info": "+ + + + + + + + + + + +",
    "cdcd_pipeline_state": "+ + + + + + + + + + + +",
    "cdcd_halted_reason_info": "- - - - - - - - + - - -",
    "cdcd_source_connected": "0 0 + + + 0 0 + 0 + 0 +",
    "cdcd_sink_connected": "0 + + + + 0 0 + 0 + 0 +",
    "cdcd_event_loop_last_iteration_timestamp_seconds": "+ + + + + + + + + + + +",
    # throughput, since the process started
    "cdcd_source_bytes_total": "0 k + + + + 0 k k + + +",
    "cdcd_events_total": "- k + + + + - ? ? + + +",
    "cdcd_transactions_total": "0 0 + + + + 0 k k + + +",
    "cdcd_encoded_in_python_columns_total": COUNTER,
    "cdcd_encoded_in_python_rows_total": COUNTER,
    "cdcd_kafka_transactions_total": "0 k + + + + 0 k k + + +",
    "cdcd_kafka_transaction_duration_seconds": "0 k + + + + 0 k k + + +",
    "cdcd_dead_letters_total": "- 0 0 0 0 0 - ? ? 0 0 0",
    "cdcd_duplicates_suppressed_total": COUNTER,
    "cdcd_status_updates_total": "0 0 + + + + 0 + + + + +",
    "cdcd_registry_requests_total": "0 + + + + + 0 k k + + 0",
    "cdcd_schema_registrations_total": "0 + + + + + 0 0 0 + + 0",
    # open transactions
    "cdcd_open_transactions": "- - 0 0 k - - 0 - 0 - 0",
    "cdcd_prepared_transactions": "- - - - - - - - - + - -",
    "cdcd_prepared_oldest_age_seconds": "- - - - - - - - - ^ - -",
    "cdcd_buffer_bytes": "- k 0 0 k 0 - 0 0 k 0 0",
    "cdcd_spill_bytes": "- 0 0 0 0 0 - 0 0 0 0 0",
    "cdcd_spill_limit_bytes": "- + + + + + - + + + + +",
    "cdcd_spill_files": "- 0 0 0 0 0 - 0 0 0 0 0",
    "cdcd_spilled_transactions_total": COUNTER,
    "cdcd_spilled_bytes_total": COUNTER,
    "cdcd_backpressure_active": "0 k 0 0 k 0 0 0 0 0 0 0",
    "cdcd_backpressure_seconds_total": COUNTER,
    # reliability
    "cdcd_wait_seconds": "? k 0 k k ? ? ? 0 k ? 0",  # from three seconds on
    "cdcd_wait_blocker_info": "? ? - ? ? ? ? ? - ? ? -",
    "cdcd_reconnects_total": "+ k k k k + + k k k + 0",
    "cdcd_errors_total": "+ k k k k + + k + k + 0",
    "cdcd_producer_rebuilds_total": COUNTER,
    # the slot, while it can be read
    "cdcd_slot_active": "- 0 + + + - - + 0 + - +",
    "cdcd_slot_retained_wal_bytes": "- + + + + - - + + + - +",
    "cdcd_slot_confirmed_flush_lag_bytes": "- + k + + - - k + k - k",
    "cdcd_slot_safe_wal_bytes": "- - - - - - - - - - - -",  # without max_slot_wal_keep_size there is no limit
    "cdcd_slot_restart_lsn": "- + + + + - - + + + - +",
    "cdcd_slot_confirmed_flush_lsn": "- + + + + - - + + + - +",
    "cdcd_slot_catalog_xmin_age": BY_SLOT,
    "cdcd_slot_server_spilled_bytes": "- ? ? ? ? - - ? ? ? - ?",  # the server's statistics come late
    "cdcd_slot_server_streamed_bytes": "- ? ? ? ? - - ? ? ? - ?",
    "cdcd_slot_wal_status": "- + + + + - - + + + - +",
    "cdcd_wal_guard_level": "- ? 0 0 0 - - ? ? ? - ?",
    "cdcd_wal_guard_slots_dropped_total": COUNTER,
    # the monitors
    "cdcd_publication_changes_total": COUNTER,
    "cdcd_unpublished_tables_with_topic": "- ? 0 0 0 - - ? ? ? - ?",
    "cdcd_heartbeats_sent_total": "0 0 0 0 0 0 0 0 0 + + 0",
    "cdcd_heartbeat_last_roundtrip_timestamp_seconds": "- - - - - - - - - + + -",
    # the snapshot
    "cdcd_new_snapshots_total": "0 0 0 0 0 0 0 0 0 0 0 0",
    "cdcd_snapshot_running": "0 + 0 0 0 0 0 0 0 0 0 0",
    "cdcd_snapshot_tables": "- + + + + + - - - + + -",
    "cdcd_snapshot_tables_remaining": "- + 0 0 0 0 - 0 0 0 0 0",
    "cdcd_snapshot_chunks_remaining": "- + 0 0 0 0 - 0 0 0 0 0",
    "cdcd_snapshot_rows_total": "- ? + + + + - - - + + -",
    "cdcd_snapshot_rows_estimated": "- + - - - - - - - - - -",
    "cdcd_snapshot_duration_seconds": "- - + + + + - - - + + -",
    "cdcd_snapshot_last_completed_timestamp_seconds": "- - + + + + - - - + + -",
    "cdcd_incremental_snapshot_tables": "- - 0 0 0 0 - 0 0 0 0 0",
    "cdcd_incremental_snapshot_last_completed_timestamp_seconds": "- - + + + + - - - - - -",
}
ELSEWHERE = {"cdcd_slot_safe_wal_bytes", "cdcd_wait_blocker_info"}
"""Names that no situation here produces: a limit of the server, a blocker of cdcd."""
BEFORE_ANY_REQUEST = {"cdcd_event_loop_last_iteration_timestamp_seconds"}
"""Names that are absent only before the daemon answers."""
OF_LIBRARIES = ("process_", "python_")
"""Metrics of prometheus_client: the current values of the process and the interpreter."""

FIELDS = {
    "name": "+ + + + + + + + + + + +",
    "version": "+ + + + + + + + + + + +",
    "slot": "+ + + + + + + + + + + +",
    "state": "+ + + + + + + + + + + +",
    "reason": "+ e e e e + + e + e + e",
    "last_error": "+ + + + + + + + + e + e",
    "waiting_for": "? ? e ? ? ? ? ? e ? ? e",
    "uptime_s": "^ ^ ^ ^ ^ ^ ^ ^ ^ ^ ^ ^",
    "waiters": "0 0 0 0 0 0 0 0 0 0 0 0",
    "server_version_num": "- - + + + + - + + + + +",
    "protocol_version": "- - + + + + - + + + + +",
    "streaming": "- - + + + + - + + + + +",
    "received_lsn": "- - + + + + ? + + + + +",
    "confirmed_lsn": "- - + + + + - + + + + +",
    "durable": "- ? + + + + ? + + + + +",
    "durable.phase": "- ? + + + + ? + + + + +",
    "durable.commit_lsn": "- ? + + + + ? + + + + +",
    "durable.end_lsn": "- ? + + + + ? + + + + +",
    "prepared": "- - - - - - - - - + - -",
    "prepared.transactions": "- - - - - - - - - + - -",
    "prepared.oldest_lsn": "- - - - - - - - - + - -",
    "prepared.oldest_age_s": "- - - - - - - - - ^ - -",
    "prepared.may_be_lost": "- - - - - - - - - 0 - -",
    "wal_guard": "- ? + + + - - ? ? ? - ?",
    "wal_guard.level": "- ? + + + - - ? ? ? - ?",
    "wal_guard.reason": "- ? e e e - - ? ? ? - ?",
    "wal_guard.held_by": "- ? e e e - - ? ? ? - ?",
    "rows_written": "0 k + + + + 0 0 k + + +",
    "transactions_written": "0 0 + + + + 0 0 k + + +",
    "dead_letters": "0 0 0 0 0 0 0 0 0 0 0 0",
    "snapshot_tables_remaining": "- + 0 0 0 0 - 0 0 0 0 0",
    "new_snapshot": "- - - - - - - - - - - -",
    "incremental_snapshots": "- - e e e e - e e e e e",
    "incomplete_topics": "- - e e e e - e e e e e",
    "snapshot": "- + - - - - - - - - - -",
    "snapshot.read_from": "- + - - - - - - - - - -",
    "snapshot.tables": "- + - - - - - - - - - -",
    "snapshot.tables_remaining": "- + - - - - - - - - - -",
    "snapshot.rows": "- k - - - - - - - - - -",
    "snapshot.rows_estimated": "- + - - - - - - - - - -",
    "snapshot.rows_per_second": "- ? - - - - - - - - - -",
    "snapshot.seconds_left": "- ? - - - - - - - - - -",
    "snapshot.retained_wal_bytes": "- + - - - - - - - - - -",
    "snapshot.safe_wal_bytes": "- - - - - - - - - - - -",  # without max_slot_wal_keep_size there is no limit
    "snapshot.ends_before_wal_limit": "- - - - - - - - - - - -",
    "snapshot.in_progress": "- k - - - - - - - - - -",
}
PROBES = {  # whether the probe passes
    "/startupz": "+ + + + + + + + + + + +",
    "/livez": "+ + + + + + + + + + + +",
    "/readyz": "0 + + + + ? 0 + 0 + ? +",  # a back-off of up to 30 s leaves the daemon ready
}

BY_LOOKS = {
    name
    for name, row in METRICS.items()
    if row.split()[SITUATIONS.index("lost")] == "-" and row.split()[SITUATIONS.index("stalled")] != "-"
} - {"cdcd_open_transactions"}
"""Values from queries of the server, not from the stream."""

DOCS = Path(__file__).parents[2] / "docs"

Values = dict[str, float | str | None]


def samples(daemon: Daemon) -> Values:
    """Return each metric by its name: the sum of its series, the count of a histogram."""
    code, text = daemon.get("/metrics")
    assert code == 200
    found: Values = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        values = [
            sample.value
            for sample in family.samples
            if family.type != "histogram" or sample.name == f"{name}_count"
        ]
        if values and not name.startswith(OF_LIBRARIES):
            found[name] = sum(values)
    return found


def fields(daemon: Daemon) -> Values:
    """Return each field of /status, those of a mapping as `field.inner`."""
    found: Values = {}
    for name, value in daemon.status().items():
        found[name] = str(value or "") if isinstance(value, (dict, list)) else value
        if isinstance(value, dict):
            found |= {f"{name}.{inner}": one for inner, one in value.items()}
    return found


def probes(daemon: Daemon) -> Values:
    """Return whether each probe passes."""
    return {path: float(daemon.get(path)[0] == 200) for path in PROBES}


PAGES = (("metric", METRICS, samples), ("field", FIELDS, fields), ("probe", PROBES, probes))


@dataclass
class Walk:
    """Compares a daemon's values with the tables; `finish` reports the differences and the names without
    any value.
    """

    findings: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    def look(self, situation: str, daemon: Daemon) -> None:
        """Read the values twice, a second of the daemon's lifetime apart, and compare them."""
        column = SITUATIONS.index(situation)
        await_life(daemon, SCRAPE_INTERVAL_S)  # values measured before are not shown any more
        before = [read(daemon) for _, _, read in PAGES]
        await_life(daemon, 1)
        after = [read(daemon) for _, _, read in PAGES]
        for (kind, table, _), first, second in zip(PAGES, before, after, strict=True):
            for name in sorted({*table, *first, *second}):
                if name not in table:
                    self.findings.append(f"{situation}: {kind} {name} is in no table of this test: add it")
                    continue
                self.seen |= {name} & second.keys()
                code = table[name].split()[column]
                if not fits(code, first.get(name), second.get(name)):
                    was, now = first.get(name), second.get(name)
                    self.findings.append(
                        f"{situation}: {kind} {name} should be {code}, is {was!r}, then {now!r}"
                    )

    def finish(self) -> None:
        """Fail with all differences."""
        never = {name for _, table, _ in PAGES for name in table} - self.seen - ELSEWHERE
        self.findings += [f"{name} is in a table and never has a value" for name in sorted(never)]
        assert not self.findings, "\n".join(self.findings)


def await_life(daemon: Daemon, for_s: float) -> None:
    """Wait until the daemon has run for this many more seconds."""
    uptime_s = daemon.status()["uptime_s"]
    eventually(lambda: daemon.status()["uptime_s"] > uptime_s + for_s, "the daemon runs")


def fits(code: str, was: float | str | None, now: float | str | None) -> bool:
    """Return whether two reads of a value agree with the code."""
    both = (was, now)
    if code == "^":
        return isinstance(was, (int, float)) and isinstance(now, (int, float)) and now > was
    return {
        "-": both == (None, None),
        "0": both == (0, 0),
        "+": all(one is not None and one not in (0, "") for one in both),
        "k": None not in both,
        "e": both == ("", ""),
        "?": True,
    }[code]


def test_each_name_has_a_code_for_each_situation() -> None:
    rows = [(name, row.split()) for _, table, _ in PAGES for name, row in table.items()]
    assert len({name for name, _ in rows}) == len(rows)
    assert [name for name, codes in rows if len(codes) != len(SITUATIONS)] == []
    assert [(name, codes) for name, codes in rows if not set(codes) <= {*"-0+^k?e"}] == []


def test_the_page_has_each_metric_and_when_it_is_absent() -> None:
    """A metric that is absent in some situation is not one that is never absent, and the reverse."""
    listed = (DOCS / "metrics.md").read_text()
    found = re.findall(r"^\| `(cdcd_\w+)` \|.*\| ([^|]+) \|$", listed, re.M)
    rows = [row for row in found if not row[0].startswith("cdcd_mirror_")]  # those of a mirror's own port
    assert len(rows) == len(METRICS)
    assert {name: absent != "never" for name, absent in rows} == {
        name: "-" in row.split() or name in BEFORE_ANY_REQUEST for name, row in METRICS.items()
    }


def test_no_page_alerts_on_a_metric_that_is_not_there() -> None:
    assert set(re.findall(r"cdcd_\w+", (DOCS / "monitoring.md").read_text())) <= METRICS.keys()


@dataclass
class Truth:
    """Commits of this test, and their true positions and times."""

    server: PostgresServer
    database: str
    slot: str
    committed_s: float | None = None
    """A time by which the first commit that is not durable was certainly made."""

    def commit(self, rows: int = 1) -> None:
        """Commit rows of some hundred bytes each."""
        text = "INSERT INTO t (v) SELECT repeat('x', 300) FROM generate_series(1, %s)"
        self.server.execute(text, rows, dbname=self.database)
        if self.committed_s is None:
            self.committed_s = time.time()

    def positions(self) -> tuple[int, int, int]:
        """Return the flushed, inserted and confirmed positions."""
        lsn = "SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn, pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
        flushed_lsn, inserted_lsn = map(int, self.server.execute(lsn)[0])
        return flushed_lsn, inserted_lsn, confirmed_position(self.server, self.slot) or 0

    def compare(self, daemon: Daemon, known_s: float) -> None:
        """Check that the lag is at least the age of the first commit not durable, and has grown since `known_s`."""
        assert self.committed_s is not None
        before_s, before = time.time(), self.positions()

        def looked_since() -> dict[str, Any] | None:
            """A scrape soon after another one returns the same measurement, and the server writes WAL of its own."""
            shown = samples(daemon)
            lag_bytes = shown.get("cdcd_replication_lag_bytes")
            is_older = isinstance(lag_bytes, float) and lag_bytes < before[0] - self.positions()[2]
            return None if is_older else shown

        shown = eventually(looked_since, "a lag measured after the commits")
        after_s, after = time.time(), self.positions()
        lag_s, lag_bytes = shown.get("cdcd_replication_lag_seconds"), shown.get("cdcd_replication_lag_bytes")
        assert isinstance(lag_s, float)
        assert before_s - self.committed_s <= lag_s <= after_s - known_s
        if isinstance(lag_bytes, float):
            assert lag_bytes <= after[1] - before[2]
            assert lag_bytes >= 2_000_000


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a server process for the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def refused(link: Proxy) -> Iterator[None]:
    """Refuse connections to the source, and reset existing ones."""
    link.refuse()
    try:
        yield
    finally:
        link.accept()


def caught_up(server: PostgresServer, daemon: Daemon) -> float:
    """Wait until everything is durable and the lag 0; return a time before the measurement that shows it."""
    daemon.wait_state("streaming")
    await_confirmed(server, daemon)
    return is_0(daemon)


def is_0(daemon: Daemon) -> float:
    """Wait until the lag is 0; return a time before the measurement that shows it."""
    known_s = 0.0

    def says_so() -> bool:
        nonlocal known_s
        known_s = time.time() - SCRAPE_INTERVAL_S
        return samples(daemon).get("cdcd_replication_lag_seconds") == 0

    eventually(says_so, "the lag is 0", 60)
    return known_s


def copying(server: PostgresServer, database: str) -> int:
    """Return the pid of a server process that copies rows for the snapshot: there is one for each worker."""
    asked = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND query LIKE 'COPY%%' AND state = 'active'"
    rows = eventually(lambda: server.execute(asked, database), "a table is being copied", pause_s=0.005)
    return int(rows[0][0])


@pytest.mark.nightly
def test_what_is_not_known_is_absent_and_the_lag_is_true(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, kafka_door: Proxy
) -> None:
    run(
        postgres,
        database,
        "CREATE TABLE a (id int PRIMARY KEY, v text)",
        "INSERT INTO a SELECT g, repeat('x', 500) FROM generate_series(1, 60000) g",
        "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)",
        "ANALYZE a, t",
    )
    walk = Walk()
    with Proxy(postgres.port, postgres.host) as link:
        dsn = postgres.dsn(database).replace(f":{postgres.port}/", f":{link.port}/")
        plain = new_daemon(postgres, database, source={"dsn": dsn})
        plain.config["sink"]["bootstrap_servers"] = f"127.0.0.1:{kafka_door.port}"
        walk_plain(walk, postgres, database, plain, link, kafka_door)
        run(postgres, database, "DROP TABLE a")
        everything: Mapping[str, Any] = {
            "dsn": dsn,
            "protocol": {"two_phase": True},
            "heartbeat_interval_ms": 1000,
        }
        walk_everything(walk, postgres, database, new_daemon(postgres, database, source=everything), link)
    little: Mapping[str, Any] = {"snapshot": {"mode": "never"}, "sink": {"delivery": "at_least_once"}}
    bare = new_daemon(postgres, database, **little)
    bare.config["registry"] = "none"
    with bare:
        bare.start().wait_state("streaming")
        Truth(postgres, database, bare.slot).commit(100)
        caught_up(postgres, bare)
        walk.look("bare", bare)
    walk.finish()


def walk_plain(
    walk: Walk, postgres: PostgresServer, database: str, daemon: Daemon, link: Proxy, kafka_door: Proxy
) -> None:
    """Walk all situations of a daemon with default options."""
    with daemon, refused(link):
        daemon.start().wait_state("backoff")
        walk.look("first", daemon)
        began_s = time.time()
        link.accept()
        truth = Truth(postgres, database, daemon.slot)
        with stopped(copying(postgres, database)):
            eventually(
                lambda: samples(daemon).get("cdcd_snapshot_running") == 1, "the daemon reports the snapshot"
            )
            truth.commit(10_000)
            walk.look("copy", daemon)
            truth.compare(daemon, began_s)
        caught_up(postgres, daemon)
        start_copy(daemon, "public.t")
        await_copied(daemon)
        caught_up(postgres, daemon)
        truth.committed_s = None
        eventually(
            lambda: samples(daemon).get("cdcd_wal_guard_level") == 0, "the guard has measured the slot"
        )
        walk.look("rest", daemon)

        known_s = caught_up(postgres, daemon)
        ((walsender,),) = postgres.execute(SLOT_OWNER, daemon.slot)
        with stopped(walsender):
            truth.commit(10_000)
            walk.look("stalled", daemon)
            truth.compare(daemon, known_s)
            assert daemon.status()["state"] == "streaming"
        known_s = caught_up(postgres, daemon)
        truth.committed_s = None

        kafka_door.hold()
        truth.commit(10_000)
        await_received(postgres, daemon)
        walk.look("held", daemon)
        truth.compare(daemon, known_s)
        kafka_door.heal()
        known_s = caught_up(postgres, daemon)
        truth.committed_s = None

        link.refuse()
        truth.commit(10_000)
        daemon.wait_state("backoff")
        walk.look("lost", daemon)
        truth.compare(daemon, known_s)
        link.accept()
        caught_up(postgres, daemon)
        assert daemon.stop() == 0

        link.refuse()
        daemon.start().wait_state("backoff")
        walk.look("restarted", daemon)
        link.accept()
        caught_up(postgres, daemon)
        walk.look("again", daemon)

        known_s = caught_up(postgres, daemon)
        truth.committed_s = None
        run(postgres, database, f"ALTER PUBLICATION cdcd_{daemon.name} RENAME TO away")
        daemon.wait_state("halted")
        truth.commit(10_000)
        walk.look("halted", daemon)
        truth.compare(daemon, known_s)
        run(postgres, database, f"ALTER PUBLICATION away RENAME TO cdcd_{daemon.name}")


def walk_everything(walk: Walk, postgres: PostgresServer, database: str, daemon: Daemon, link: Proxy) -> None:
    """Walk the situations of a daemon with the options that are off by default."""
    truth = Truth(postgres, database, daemon.slot)
    with daemon:
        daemon.start().wait_state("streaming")
        truth.commit(100)
        caught_up(postgres, daemon)
        returned = "cdcd_heartbeat_last_roundtrip_timestamp_seconds"
        eventually(lambda: samples(daemon).get(returned), "a heartbeat has returned")
        prepare(postgres.dsn(database), daemon.name, "INSERT INTO t (v) VALUES ('prepared')")
        truth.commit()
        eventually(
            lambda: samples(daemon).get("cdcd_prepared_transactions") == 1,
            "the prepared transaction is received",
        )
        known_s = is_0(daemon)
        truth.committed_s = None
        walk.look("all", daemon)
        link.refuse()
        truth.commit(10_000)
        daemon.wait_state("backoff")
        walk.look("all lost", daemon)
        truth.compare(daemon, known_s)
        link.accept()
        run(postgres, database, f"ROLLBACK PREPARED '{daemon.name}'")


def test_a_link_that_swallows_everything_leaves_bytes_unknown_and_the_lag_growing(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """F16: the failure is not noticed yet, so the state is unchanged; /metrics answers all the same."""
    run(postgres, database, "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)")
    with Proxy(postgres.port, postgres.host) as link:
        dsn = postgres.dsn(database).replace(f":{postgres.port}/", f":{link.port}/")
        with new_daemon(postgres, database, source={"dsn": dsn}) as daemon:
            daemon.start()
            truth = Truth(postgres, database, daemon.slot)
            known_s = caught_up(postgres, daemon)
            link.hold()
            truth.commit(10_000)
            await_life(daemon, SCRAPE_TIMEOUT_S)
            for _ in range(3):
                truth.compare(daemon, known_s)
                assert not samples(daemon).keys() & BY_LOOKS
            assert daemon.status()["state"] == "streaming"
            assert daemon.get("/livez")[0] == 200
            link.heal()
            caught_up(postgres, daemon)
            eventually(lambda: "cdcd_replication_lag_bytes" in samples(daemon), "bytes are known again")


@pytest.mark.nightly
def test_a_standby_where_the_primary_was_says_nothing_of_what_was_committed(
    pg_server: PostgresServers, new_daemon: NewDaemon
) -> None:
    """F57: the standby has replayed all received WAL, and the unreachable primary continues to commit."""
    with pg_server.fresh(18) as primary, contextlib.ExitStack() as ends:
        run(primary, "postgres", "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)")
        standby = pg_server.fresh(18)
        ends.callback(standby.stop, "immediate")
        make_standby(primary, standby, is_synchronised=False)
        link = ends.enter_context(Proxy(primary.port, primary.host))
        dsn = primary.dsn().replace(f":{primary.port}/", f":{link.port}/")
        daemon = ends.enter_context(new_daemon(primary, "postgres", source={"dsn": dsn}))
        daemon.start()
        truth = Truth(primary, "postgres", daemon.slot)
        truth.commit()
        caught_up(primary, daemon)
        link.refuse()
        primary.execute("SELECT pg_switch_wal()")
        end_lsn = wal_position(primary)
        replayed = "SELECT pg_last_wal_replay_lsn() - '0/0'::pg_lsn >= %s"
        eventually(
            lambda: standby.execute(replayed, end_lsn) == [(True,)], "the standby has replayed all WAL"
        )
        standby.execute("SELECT pg_wal_replay_pause()")
        truth.committed_s = None
        truth.commit(1000)
        link.point_to(standby.port, standby.host)
        link.accept()
        eventually(
            lambda: "CDCD-SOURCE-STANDBY" in daemon.status()["reason"], "the daemon has found the standby"
        )
        assert truth.committed_s is not None
        for _ in range(3):
            await_life(daemon, 2 * SCRAPE_INTERVAL_S)
            asked_s, shown = time.time(), samples(daemon)
            lag_s = shown["cdcd_replication_lag_seconds"]
            assert isinstance(lag_s, float)
            assert lag_s >= asked_s - truth.committed_s
            assert not shown.keys() & BY_LOOKS, "its slots are not the primary's"
        link.refuse()
        link.point_to(primary.port, primary.host)
        link.accept()
        caught_up(primary, daemon)


def one_durable(postgres: PostgresServer, database: str, daemon: Daemon) -> Truth:
    """Start a daemon that streams, with one commit in Kafka."""
    daemon.start().wait_state("streaming")
    truth = Truth(postgres, database, daemon.slot)
    truth.commit()
    caught_up(postgres, daemon)
    return truth


def missed_without_a_slot(postgres: PostgresServer, truth: Truth) -> None:
    """Drop the slot and commit changes that no slot retains."""
    postgres.execute("SELECT pg_drop_replication_slot(%s)", truth.slot)
    truth.committed_s = None
    truth.commit()


@pytest.mark.nightly
def test_a_new_snapshot_counts_from_the_last_commit_that_is_durable(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """The missed changes are in no topic before they are copied, in this process and in the next."""
    run(postgres, database, "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)")
    with new_daemon(postgres, database) as daemon:
        truth = one_durable(postgres, database, daemon)
        assert daemon.stop() == 0
        missed_without_a_slot(postgres, truth)
        assert truth.committed_s is not None
        assert command(daemon, "resnapshot").returncode == 0
        with contextlib.closing(psycopg2.connect(postgres.dsn(database))) as locking:
            locking.cursor().execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
            for _ in range(2):
                daemon.start()
                eventually(
                    lambda: daemon.waits_for("lock") and daemon.status()["durable"], "the daemon waits"
                )
                asked_s, lag_s = time.time(), samples(daemon)["cdcd_replication_lag_seconds"]
                assert isinstance(lag_s, float)
                assert lag_s >= asked_s - truth.committed_s
                daemon.kill()
        daemon.start()
        caught_up(postgres, daemon)


def test_a_start_that_is_refused_says_what_is_durable(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """The progress record is read before the slot is found missing."""
    run(postgres, database, "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)")
    with new_daemon(postgres, database) as daemon:
        truth = one_durable(postgres, database, daemon)
        before = samples(daemon)
        durable = daemon.status()["durable"]
        assert daemon.stop() == 0
        missed_without_a_slot(postgres, truth)
        daemon.start().wait_state("halted")
        shown = samples(daemon)
        assert daemon.status()["durable"]["commit_lsn"] == durable["commit_lsn"]
        assert shown["cdcd_last_commit_timestamp_seconds"] == before["cdcd_last_commit_timestamp_seconds"]
        asked_s = time.time()
        lag_s = samples(daemon)["cdcd_replication_lag_seconds"]
        assert isinstance(lag_s, float)
        assert truth.committed_s is not None
        assert lag_s >= asked_s - truth.committed_s
