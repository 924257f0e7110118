"""The daemon's status: states, positions, lag and counters."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.ack.group import CommitPosition
from cdcd.clock import monotonic_us
from cdcd.errors import SlotLost, SourceUnavailable
from cdcd.model import POSTGRES_EPOCH_US, Keepalive, Progress, SourceIdentity
from cdcd.monitoring.lag import ServerTimeline, WalEnd
from cdcd.monitoring.status import Status
from cdcd.ops.metrics import Metrics, SlotReading
from cdcd.source.identity import ServerIdentity
from cdcd.source.settings import StreamOptions
from cdcd.spill.pool import Usage
from cdcd.txn.open_transactions import OldestPrepared

SERVER = ServerIdentity("7", 1, "shop", 180_000, 1_500, False)
LAG = "cdcd_replication_lag_seconds"


@pytest.fixture
def status() -> Status:
    return Status(Metrics("1", with_process=False), name="shop", slot="slot")


def begin_streaming(
    status: Status, start_lsn: int = 1, *, durable_us: int = 0, two_phase: bool = False
) -> None:
    options = StreamOptions(4, "parallel", two_phase=two_phase)
    status.streaming(SERVER, options, start_lsn, durable_us, lambda: 0)


def looked(lsn: int) -> WalEnd:
    asked_us = monotonic_us()
    return WalEnd(ServerTimeline("7", 1), lsn, time.time_ns() // 1000, asked_us, monotonic_us())


def record(**fields: Any) -> Progress:
    identity = SourceIdentity("7", 1, "shop", "slot", slot_lsn=fields.pop("slot_lsn", 0))
    return Progress(
        identity, **{"phase": "streaming", "commit_lsn": 100, "end_lsn": 108, "commit_us": 5} | fields
    )


def test_rows_are_counted_under_their_tables_name(status: Status) -> None:
    status.relation(1, "public.items")
    status.rows_encoded({(1, ord("I")): 3, (1, ord("D")): 1})
    samples = status.metrics.snapshot()
    assert samples['cdcd_events_total{table="public.items",op="insert"}'] == 3
    assert samples['cdcd_events_total{table="public.items",op="delete"}'] == 1


def test_a_halt_keeps_its_reason_for_the_page(status: Status) -> None:
    status.state("halted", SlotLost("the slot is gone"))
    assert status.page()["state"] == "halted"
    assert "CDCD-SLOT-LOST" in status.page()["reason"]
    status.state("streaming")
    assert status.page()["reason"] == ""
    assert "CDCD-SLOT-LOST" in status.page()["last_error"]


def test_the_time_in_back_off_is_counted_from_the_first_failure(status: Status) -> None:
    status.state("backoff", SourceUnavailable("gone"))
    since_s = status.health.backoff_since_s
    status.state("backoff", SourceUnavailable("gone"))
    assert status.health.backoff_since_s == since_s
    status.state("streaming")
    assert status.health.backoff_since_s is None


def test_back_pressure_is_a_state_of_streaming_only(status: Status) -> None:
    status.waiting(10, is_blocked=True)
    assert status.health.state == "starting"
    begin_streaming(status)
    status.waiting(10, is_blocked=True)
    assert status.health.state == "backpressure"
    status.waiting(0, is_blocked=False)
    assert status.health.state == "streaming"


def test_what_came_to_nothing_is_counted(status: Status) -> None:
    status.aborted(2)
    status.given_up()
    seen = status.metrics.snapshot()
    assert seen['cdcd_transactions_total{result="aborted"}'] == 2
    assert seen['cdcd_kafka_transactions_total{result="aborted"}'] == 1


def test_open_transactions_and_waiting_rows_share_a_gauge(status: Status) -> None:
    usage = Usage(memory_bytes=90, disk_bytes=7, disk_limit_bytes=1000, files=1)
    status.spill(usage)
    status.writing(SimpleNamespace(waiting_bytes=20))
    status.spilled(transactions=1, size_bytes=7)
    usage.memory_bytes = 100  # read at the time of the snapshot
    seen = status.metrics.snapshot()
    assert seen["cdcd_buffer_bytes"] == 120
    names = (
        "spill_bytes",
        "spill_limit_bytes",
        "spill_files",
        "spilled_transactions_total",
        "spilled_bytes_total",
    )
    assert [seen[f"cdcd_{name}"] for name in names] == [7, 1000, 1, 1, 7]
    status.writing(None)
    assert status.metrics.snapshot()["cdcd_buffer_bytes"] == 100


def test_waiting_for_the_disk_is_back_pressure_with_its_own_cause(status: Status) -> None:
    begin_streaming(status)
    status.waiting_for_disk(True)
    assert status.health.state == "backpressure"
    status.waiting_for_disk(False)
    assert status.health.state == "streaming"
    assert status.metrics.snapshot()['cdcd_backpressure_seconds_total{cause="spill"}'] > 0


def test_the_page_shows_what_is_durable_and_what_was_received(status: Status) -> None:
    status.turned([Keepalive(0x1_0000_0020, 0, False)], 0)
    status.committed(CommitPosition(100, 108, 5), rows=3, transactions=2, seconds=0.1, unseen={})
    status.confirmed(108)
    page = status.page()
    assert page["durable"] == {"phase": "streaming", "commit_lsn": "0/64", "end_lsn": "0/6C"}
    assert (page["received_lsn"], page["confirmed_lsn"]) == ("1/20", "0/6C")
    assert (page["rows_written"], page["transactions_written"]) == (3, 2)
    assert page["dead_letters"] == 0
    status.relation(7, "public.t")
    assert status.metrics.snapshot()['cdcd_dead_letters_total{table="public.t"}'] == 0
    status.dead_letter("public.t")
    assert status.page()["dead_letters"] == 1
    assert status.metrics.snapshot()['cdcd_dead_letters_total{table="public.t"}'] == 1


def test_what_is_prepared_is_shown_until_the_stream_ends(status: Status) -> None:
    """F33; without a stream the prepared transactions are unknown."""
    now_pg_us = int(time.time() * 1e6) - POSTGRES_EPOCH_US
    begin_streaming(status, two_phase=True)
    status.turned([Keepalive(1, 0, False)], 0)
    assert status.page()["prepared"] == {"transactions": 0, "may_be_lost": 0}
    assert status.metrics.snapshot()["cdcd_prepared_transactions"] == 0
    oldest_prepared = OldestPrepared(2, 0x1_0000_0020, now_pg_us - 5_000_000)
    status.turned([Keepalive(1, 0, False)], 0, oldest_prepared=oldest_prepared, may_be_lost=3)
    page, samples = status.page()["prepared"], status.metrics.snapshot()
    assert (page["transactions"], page["oldest_lsn"], page["may_be_lost"]) == (2, "1/20", 3)
    assert 5 <= page["oldest_age_s"] < 60
    assert samples["cdcd_prepared_transactions"] == 2
    assert 5 <= samples["cdcd_prepared_oldest_age_seconds"] < 60
    status.source_closed()
    assert status.page()["prepared"] is None
    assert not any(series.startswith("cdcd_prepared") for series in status.metrics.snapshot())


def test_without_two_phase_nobody_sees_what_is_prepared(status: Status) -> None:
    begin_streaming(status)
    status.turned([Keepalive(1, 0, False)], 0)
    assert status.page()["prepared"] is None
    assert not any(series.startswith("cdcd_prepared") for series in status.metrics.snapshot())


def test_before_it_has_confirmed_anything_the_lag_is_the_slots(status: Status) -> None:
    """A new process is behind by the backlog of the previous one, not by all WAL ever written."""
    status.slot(SlotReading(True, confirmed_flush_lsn=1_000), looked(1_500))
    samples = status.metrics.snapshot()
    assert (samples["cdcd_replication_lag_bytes"], samples["cdcd_received_lag_bytes"]) == (500, 500)
    status.turned([Keepalive(1_400, 0, False)], 0)
    status.confirmed(1_200)
    status.slot(SlotReading(True, confirmed_flush_lsn=1_000), looked(1_500))
    samples = status.metrics.snapshot()
    assert (samples["cdcd_replication_lag_bytes"], samples["cdcd_received_lag_bytes"]) == (300, 100)


def test_a_lag_in_bytes_that_cannot_be_queried_is_absent(status: Status) -> None:
    names = ("cdcd_replication_lag_bytes", "cdcd_received_lag_bytes")
    assert not any(name in status.metrics.snapshot() for name in names)
    status.slot(SlotReading(True, confirmed_flush_lsn=1_000), looked(1_500))
    assert all(name in status.metrics.snapshot() for name in names)
    status.slot(None)
    assert not any(name in status.metrics.snapshot() for name in names)
    status.slot(SlotReading(True), looked(1_500))
    assert not any(name in status.metrics.snapshot() for name in names), "the slot is being created"


def test_what_a_look_saw_and_the_stream_has_brought_meanwhile_is_not_missing(status: Status) -> None:
    begin_streaming(status, 1_000)
    status.slot(SlotReading(True, confirmed_flush_lsn=1_000), looked(1_500))
    assert "cdcd_received_lag_bytes 500.0" in status.exposition().decode()
    status.turned([Keepalive(1_500, 0, False)], 0)
    status.confirmed(1_500)
    text = status.exposition().decode()
    assert "cdcd_received_lag_bytes 0.0" in text
    assert "cdcd_replication_lag_bytes 0.0" in text


def test_the_lag_is_that_of_the_flow(status: Status) -> None:
    now_us = time.time_ns() // 1000
    assert LAG not in status.metrics.snapshot()
    begin_streaming(status, 50)
    status.slot(None, looked(50))
    status.began(now_us - 9_000_000)
    status.ended(108, is_empty=False)
    assert 9 <= status.metrics.snapshot()[LAG] < 60
    # Changes behind an undecided PREPARE are durable, although not confirmed (F33).
    commit_position = CommitPosition(100, 60, now_us - 9_000_000, covered_lsn=108)
    status.committed(commit_position, rows=1, transactions=1, seconds=0.1, unseen={})
    status.slot(None, looked(108))
    assert status.metrics.snapshot()[LAG] == 0


def test_a_progress_record_is_known_before_anything_comes(status: Status) -> None:
    assert (status.page()["durable"], status.page()["received_lsn"]) == (None, None)
    status.progress(record(commit_us=5_000_000))
    assert status.page()["durable"] == {"phase": "streaming", "commit_lsn": "0/64", "end_lsn": "0/6C"}
    samples = status.metrics.snapshot()
    assert samples["cdcd_last_commit_timestamp_seconds"] == 5
    assert samples[LAG] > 1_000_000_000


@pytest.mark.parametrize(
    ("fields", "has_lag"),
    [
        ({"slot_lsn": 101}, True),  # a complete copy without a later transaction
        ({"commit_us": 0}, False),
        ({"phase": "snapshot"}, True),  # no commit since the snapshot was requested or begun is durable
    ],
)
def test_a_record_without_a_transaction_has_no_last_commit(
    status: Status, fields: dict[str, Any], has_lag: bool
) -> None:
    status.progress(record(**fields))
    samples = status.metrics.snapshot()
    assert "cdcd_last_commit_timestamp_seconds" not in samples
    assert (LAG in samples) is has_lag


@pytest.mark.parametrize(
    ("phase", "rows", "transactions", "is_counted"),
    [
        ("streaming", 3, 1, True),
        ("streaming", 3, 0, False),  # a part of a large transaction, or the end of the copy
        ("streaming", 0, 0, False),  # an idle position
        ("streaming", 0, 2, False),  # empty transactions
        ("snapshot", 3, 0, False),
    ],
)
def test_the_latency_is_that_of_transactions_that_end(
    status: Status, phase: str, rows: int, transactions: int, is_counted: bool
) -> None:
    commit_position = CommitPosition(100, 108, time.time_ns() // 1000, transactions, phase)
    status.committed(commit_position, rows=rows, transactions=transactions, seconds=0.1, unseen={})
    samples = status.metrics.snapshot()
    assert samples["cdcd_event_latency_seconds_count"] == int(is_counted)
    assert samples['cdcd_kafka_transactions_total{result="committed"}'] == 1
    assert ("cdcd_last_commit_timestamp_seconds" in samples) is (transactions > 0)


def test_status_updates_are_those_that_were_sent(status: Status) -> None:
    sent = 3
    status.streaming(SERVER, StreamOptions(4), 1, 0, lambda: sent)
    assert "cdcd_status_updates_total 3.0" in status.exposition().decode()
    sent = 5
    status.source_closed()
    begin_streaming(status)
    assert "cdcd_status_updates_total 5.0" in status.exposition().decode()


def test_a_table_has_an_estimate_while_it_is_copied_and_the_server_has_statistics(
    status: Status,
) -> None:
    metrics = status.metrics
    status.snapshot_started({"public.t": 5, "public.u": None, "public.w": 7})
    status.snapshot_table_done("public.w")
    copying = [{"table": "public.v", "estimated_rows": 9}, {"table": "public.x", "estimated_rows": None}]
    status.incremental((), lambda _: 0, lambda: copying)
    name = "cdcd_snapshot_rows_estimated"
    shown = {key: value for key, value in metrics.snapshot().items() if key.startswith(name)}
    assert shown == {f'{name}{{table="public.t"}}': 5, f'{name}{{table="public.v"}}': 9}
    status.snapshot_ended(is_complete=True)
    copying.clear()
    assert not any(key.startswith(name) for key in metrics.snapshot())


def test_what_is_left_to_copy_is_null_until_it_is_known(status: Status) -> None:
    def left() -> tuple[int | None, float | None]:
        samples = status.metrics.snapshot()
        return status.page()["snapshot_tables_remaining"], samples.get("cdcd_snapshot_tables_remaining")

    assert left() == (None, None)
    status.copies()
    assert left() == (None, None)
    assert status.page()["snapshot"] is None
    status.snapshot_started({"public.t": 5, "public.u": None})
    status.snapshot_table_done("public.t")
    assert left() == (1, 1)
    page = status.page()["snapshot"]
    assert (page["tables"], page["tables_remaining"], page["rows_estimated"]) == (2, 1, None)
    assert page["retained_wal_bytes"] is None
    status.slot(SlotReading(is_active=False, retained_wal_bytes=7))
    assert status.page()["snapshot"]["retained_wal_bytes"] == 7
    status.snapshot_ended(is_complete=False)
    assert left() == (None, None)
    assert status.page()["snapshot"] is None
    assert "cdcd_snapshot_duration_seconds" not in status.metrics.snapshot()
    status.snapshot_started({"public.t": 5})
    status.snapshot_ended(is_complete=True)
    assert left() == (0, 0)


def test_the_chunks_that_are_left_are_unknown_until_the_tables_are_divided(status: Status) -> None:
    def left() -> float | None:
        return status.metrics.snapshot().get("cdcd_snapshot_chunks_remaining")

    assert left() is None
    status.copies()
    status.snapshot_started({"public.t": 5, "public.u": None})
    assert left() is None
    status.snapshot_chunks(7)
    status.snapshot_table_done("public.t")
    assert left() == 7
    status.snapshot_ended(is_complete=False)
    assert left() is None
    status.snapshot_started({"public.t": 5})
    status.snapshot_chunks(1)
    status.snapshot_ended(is_complete=True)
    assert left() == 0


def test_a_process_that_goes_on_with_a_stream_has_nothing_to_copy(status: Status) -> None:
    begin_streaming(status)
    assert status.page()["snapshot_tables_remaining"] == 0
    assert "cdcd_snapshot_tables" not in status.metrics.snapshot()


def test_open_transactions_are_known_while_there_is_a_stream(status: Status) -> None:
    assert "cdcd_open_transactions" not in status.metrics.snapshot()
    begin_streaming(status)
    assert status.metrics.snapshot()["cdcd_open_transactions"] == 0, "a new stream has no open transactions"
    status.turned([Keepalive(1, 0, False)], 3)
    assert status.metrics.snapshot()["cdcd_open_transactions"] == 3
    status.source_closed()
    assert "cdcd_open_transactions" not in status.metrics.snapshot()


def test_the_bytes_are_absent_while_their_lsns_are_of_different_servers(status: Status) -> None:
    """F59: a promoted server's WAL may end before the LSN that was confirmed to the former one."""
    first, second = ServerTimeline("7", 1), ServerTimeline("7", 2)
    names = ("cdcd_replication_lag_bytes", "cdcd_received_lag_bytes")

    def shown(end: WalEnd | None) -> tuple[float | None, ...]:
        if end is not None:
            reading = SlotReading(False, retained_wal_bytes=900, confirmed_flush_lsn=4_000)
            status.slot(reading, end)
        status.exposition()
        return tuple(status.metrics.snapshot().get(name) for name in names)

    status.source.decided(first)
    begin_streaming(status, 9_000)
    status.confirmed(10_000)
    assert shown(looked(10_500)) == (500, 500)
    status.source_closed()
    status.source.ends()
    promoted = replace(looked(9_500), of=second)
    assert shown(promoted) == (None, None)
    assert "cdcd_slot_retained_wal_bytes" in status.metrics.snapshot()
    status.copies()
    assert shown(replace(looked(9_500), of=second)) == (5_500, 5_500), "a copy begins on the promoted server"
    status.lag.streams(first, 9_000, 0)
    assert shown(None) == (None, None), "a sample of the server before"
