"""What the daemon knows of itself."""

from __future__ import annotations

import time

import pytest

from cdcd.ack.group import Boundary
from cdcd.errors import SlotLost, SourceUnavailable
from cdcd.model import POSTGRES_EPOCH_US, Keepalive
from cdcd.ops.metrics import Metrics, SlotReading
from cdcd.runtime.status import Status
from cdcd.spill.pool import Usage
from cdcd.txn.waiting import Held


@pytest.fixture
def status() -> Status:
    return Status(Metrics("1", with_process=False), name="shop", slot="slot")


def test_rows_are_counted_under_their_tables_name(status: Status) -> None:
    status.relation(1, "public.items")
    status.run({(1, ord("I")): 3, (1, ord("D")): 1})
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
    status.streaming(180_000, 4, "parallel")
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
    status.spill(Usage(memory_bytes=100, disk_bytes=7, disk_limit_bytes=1000, files=1))
    status.waiting(20, is_blocked=False)
    status.spilled(transactions=1, size_bytes=7)
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


def test_waiting_for_the_disk_is_back_pressure_with_its_own_cause(status: Status) -> None:
    status.streaming(180_000, 4, "parallel")
    status.waiting_for_disk(True)
    assert status.health.state == "backpressure"
    status.waiting_for_disk(False)
    assert status.health.state == "streaming"
    assert status.metrics.snapshot()['cdcd_backpressure_seconds_total{cause="spill"}'] > 0


def test_the_page_shows_what_is_durable_and_what_was_received(status: Status) -> None:
    status.turned([Keepalive(0x1_0000_0020, 0, False)], 0)
    status.committed(Boundary(100, 108, 5), rows=3, transactions=2, seconds=0.1)
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
    """F33; a stream that is away is not asked, so it holds nothing that is known."""
    now_pg_us = int(time.time() * 1e6) - POSTGRES_EPOCH_US
    held = Held(2, 0x1_0000_0020, now_pg_us - 5_000_000)
    status.turned([Keepalive(1, 0, False)], 0, held=held, may_be_lost=3)
    page, samples = status.page()["prepared"], status.metrics.snapshot()
    assert (page["transactions"], page["oldest_lsn"], page["may_be_lost"]) == (2, "1/20", 3)
    assert 5 <= page["oldest_age_s"] < 60
    assert samples["cdcd_prepared_transactions"] == 2
    assert 5 <= samples["cdcd_prepared_oldest_age_seconds"] < 60
    status.source_closed()
    assert status.page()["prepared"] == {"transactions": 0, "may_be_lost": 0}
    samples = status.metrics.snapshot()
    assert (samples["cdcd_prepared_transactions"], samples["cdcd_prepared_oldest_age_seconds"]) == (0, 0)


def test_what_a_prepare_holds_back_is_no_lag_of_what_is_written(status: Status) -> None:
    """The transactions behind it are durable, although not confirmed."""
    status.began(5)
    status.ended(208, is_empty=False)
    status.committed(Boundary(200, 150, 5, covered_lsn=208), rows=1, transactions=1, seconds=0.1)
    assert status.metrics.snapshot()["cdcd_replication_lag_seconds"] == 0


def _lags(status: Status) -> bool:
    return status.metrics.snapshot()["cdcd_replication_lag_seconds"] > 0


def _one_is_received(status: Status, end_lsn: int = 108) -> None:
    status.began(5)
    status.ended(end_lsn, is_empty=False)


def _one_is_written(status: Status, end_lsn: int = 108) -> None:
    status.committed(Boundary(end_lsn - 8, end_lsn, 5), rows=1, transactions=1, seconds=0.1)


def test_wal_behind_the_last_transaction_is_no_lag(status: Status) -> None:
    """F11: a keepalive's WAL end is other databases' WAL too, and waits for nothing but the next idle position."""
    _one_is_received(status)
    status.turned([Keepalive(500, 0, False)], 0)
    assert _lags(status)
    _one_is_written(status)
    assert not _lags(status)


def test_what_comes_behind_the_durable_one_lags_from_its_beginning(status: Status) -> None:
    _one_is_received(status)
    status.began(7)  # a long one: its rows are still coming
    _one_is_written(status)
    assert _lags(status)
    status.ended(300, is_empty=False)
    assert _lags(status)
    _one_is_written(status, 300)
    assert not _lags(status)


def test_an_empty_transaction_lags_only_behind_others(status: Status) -> None:
    """F7: nothing of it has to become durable."""
    status.began(5)
    status.ended(50, is_empty=True)
    assert not _lags(status)
    _one_is_received(status)
    status.began(6)
    status.ended(200, is_empty=True)
    assert _lags(status)
    _one_is_written(status)
    assert not _lags(status)


def test_a_commit_that_nobody_answered_lags_until_the_next_session_finds_it_durable(status: Status) -> None:
    """F76: its transaction comes again and is dropped, and nothing else may come for long."""
    _one_is_received(status)
    status.source_closed()
    assert _lags(status)
    status.confirmed(108)
    status.streaming(180_000, 4, "parallel")
    assert not _lags(status)


def test_what_a_session_left_undone_lags_until_it_is_durable(status: Status) -> None:
    _one_is_received(status)
    status.source_closed()
    status.confirmed(50)
    status.streaming(180_000, 4, "parallel")
    assert _lags(status)
    _one_is_received(status)
    assert _lags(status)
    _one_is_written(status)
    assert not _lags(status)


def test_what_a_commit_that_nobody_answered_has_made_durable_lags_no_more(status: Status) -> None:
    """The rest does, and committed later than that: until it comes again that is all that is known of it."""
    now_us = time.time_ns() // 1000
    status.began(now_us - 70_000_000)
    status.ended(100, is_empty=False)
    status.ended(200, is_empty=False)
    status.source_closed()
    status.confirmed(108)
    status.streaming(180_000, 4, "parallel", durable_us=now_us - 60_000_000)
    assert 60 <= status.metrics.snapshot()["cdcd_replication_lag_seconds"] < 69
    status.began(now_us - 50_000_000)
    assert 50 <= status.metrics.snapshot()["cdcd_replication_lag_seconds"] < 59


def test_a_position_alone_says_nothing_of_the_age_of_what_is_behind_it(status: Status) -> None:
    """A server that decodes what is an hour old tells of where it is: what it sends then is an hour old."""
    now_us = time.time_ns() // 1000
    status.streaming(180_000, 4, "parallel")
    status.began(now_us - 3_600_000_000)
    status.ended(200, is_empty=False)
    status.committed(Boundary(90, 100, now_us, transactions=0), rows=0, transactions=0, seconds=0.1)
    assert status.metrics.snapshot()["cdcd_replication_lag_seconds"] >= 3_600
    status.source_closed()
    status.streaming(180_000, 4, "parallel")
    assert status.metrics.snapshot()["cdcd_replication_lag_seconds"] >= 3_600


def test_what_is_left_undone_lags_also_when_a_session_ends_before_it_has_come_again(status: Status) -> None:
    _one_is_received(status)
    status.confirmed(50)
    for _ in range(3):
        status.source_closed()
        status.streaming(180_000, 4, "parallel")
        assert _lags(status)
    status.confirmed(108)
    status.streaming(180_000, 4, "parallel")
    assert not _lags(status)


def test_before_it_has_confirmed_anything_the_lag_is_the_slots(status: Status) -> None:
    """A process that has just begun is behind by what the one before it has left, not by all WAL there ever was."""
    status.slot(SlotReading(True, confirmed_flush_lsn=1_000), server_lsn=1_500)
    samples = status.metrics.snapshot()
    assert (samples["cdcd_replication_lag_bytes"], samples["cdcd_received_lag_bytes"]) == (500, 500)
    status.turned([Keepalive(1_400, 0, False)], 0)
    status.confirmed(1_200)
    status.slot(SlotReading(True, confirmed_flush_lsn=1_000), server_lsn=1_500)
    samples = status.metrics.snapshot()
    assert (samples["cdcd_replication_lag_bytes"], samples["cdcd_received_lag_bytes"]) == (300, 100)


def test_a_lag_in_bytes_that_nobody_can_look_up_is_not_told_as_it_was(status: Status) -> None:
    names = ("cdcd_replication_lag_bytes", "cdcd_received_lag_bytes")
    assert not any(name in status.metrics.snapshot() for name in names)
    status.slot(SlotReading(True, confirmed_flush_lsn=1_000), server_lsn=1_500)
    assert all(name in status.metrics.snapshot() for name in names)
    status.slot(None)
    assert not any(name in status.metrics.snapshot() for name in names)
    status.slot(SlotReading(True), server_lsn=1_500)
    assert not any(name in status.metrics.snapshot() for name in names), "a slot that is just being made"
