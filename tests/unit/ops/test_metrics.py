"""Metrics: stable names, series that exist from the start, no stale values."""

from __future__ import annotations

import re

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from cdcd.extensions import implementation
from cdcd.metrics.group import NEVER, Described
from cdcd.metrics.optional_gauge import OptionalGauge
from cdcd.ops.health import STATES
from cdcd.ops.metrics import Metrics, SlotReading
from cdcd.waits import Blocker, Wait


class Clock:
    """A clock that tests set."""

    now_s = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> Metrics:
    return Metrics("0.1.0", clock=clock, max_tables=2, with_process=False)


def descriptions(metrics: Metrics) -> dict[str, Described]:
    return {metric.name: metric for group in metrics.groups for metric in group.metrics}


def exposed(metrics: Metrics) -> dict[str, Metric]:
    """Return the exposed families by the names of their descriptions."""
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {f"{one.name}_total" if one.type == "counter" else one.name: one for one in families}


@pytest.fixture
def full(metrics: Metrics) -> Metrics:
    """Metrics of which each has a value."""
    metrics.state("halted", halted_code="CDCD-SLOT-LOST")
    metrics.slot(SlotReading(True, 1, 1, 1, "reserved", 1, 1, 1, 1, 1))
    metrics.positions(server_lsn=3, received_lsn=2, confirmed_lsn=1)
    metrics.table_known("public.orders")
    metrics.snapshot_rows("public.orders", 1)
    metrics.incremental_tables(("waiting",), lambda state: 0)
    metrics.estimates.estimates = lambda: [("public.orders", 1)]
    metrics.waits.waits = lambda: [Wait("kafka", "Kafka", 0.0, (Blocker("broker 1"),))]
    for gauge in [*vars(metrics).values(), *vars(metrics.source).values()]:
        if isinstance(gauge, OptionalGauge):
            gauge.set(1)
    return metrics


def test_every_name_follows_the_rules(full: Metrics) -> None:
    """Prefix, base units, `_total` on counters only, a help text that is a sentence."""
    families = exposed(full)
    assert len(families) > 50
    for family in families.values():
        assert re.fullmatch(r"cdcd_[a-z0-9_]+", family.name)
        assert not re.search(r"_(ms|us|ns|kb|mb|count)$", family.name)
        assert re.fullmatch(r"[A-Z1].+\.", family.documentation)
        for sample in family.samples:
            if family.type == "counter":
                assert sample.name.endswith("_total")
            if family.type == "gauge":
                assert not sample.name.endswith(("_total", "_created"))


def test_every_metric_is_described_as_it_is_exposed(full: Metrics) -> None:
    """docs/metrics.md is generated from the descriptions."""
    described, families = descriptions(full), exposed(full)
    assert described.keys() == families.keys()
    for name, metric in described.items():
        family = families[name]
        assert (metric.kind, metric.text) == (family.type, family.documentation)
        assert all({*sample.labels} - {"le"} == {*metric.labels} for sample in family.samples), name


def test_before_the_first_session_exactly_the_metrics_that_may_be_absent_are(metrics: Metrics) -> None:
    known = {name for name, family in exposed(metrics).items() if family.samples}
    assert known == {name for name, metric in descriptions(metrics).items() if metric.absent == NEVER}


@pytest.mark.parametrize(
    "series",
    [
        'cdcd_pipeline_state{state="halted"}',
        'cdcd_transactions_total{result="aborted"}',
        'cdcd_kafka_transactions_total{result="aborted"}',
        'cdcd_errors_total{component="sink",class="fatal"}',
        'cdcd_reconnects_total{component="source",reason="slot_active"}',
        'cdcd_errors_total{component="spill",class="fatal"}',
        "cdcd_spilled_transactions_total",
        "cdcd_spilled_bytes_total",
        'cdcd_backpressure_seconds_total{cause="spill"}',
        'cdcd_backpressure_seconds_total{cause="producer"}',
        'cdcd_registry_requests_total{operation="register",code="200"}',
        "cdcd_schema_registrations_total",
        "cdcd_source_bytes_total",
        "cdcd_duplicates_suppressed_total",
        "cdcd_status_updates_total",
        "cdcd_snapshot_running",
        "cdcd_event_latency_seconds_count",
        "cdcd_kafka_transaction_duration_seconds_count",
    ],
)
def test_a_series_exists_before_its_first_event(metrics: Metrics, series: str) -> None:
    assert metrics.snapshot()[series] == 0


def test_exactly_one_state_is_1(metrics: Metrics) -> None:
    metrics.state("halted", halted_code="CDCD-SLOT-LOST")
    samples = metrics.snapshot()
    assert [state for state in STATES if samples[f'cdcd_pipeline_state{{state="{state}"}}']] == ["halted"]
    assert samples['cdcd_halted_reason_info{reason="CDCD-SLOT-LOST"}'] == 1
    metrics.state("streaming")
    assert not any(series.startswith("cdcd_halted") for series in metrics.snapshot())


def test_a_tables_counters_start_at_0_and_tables_are_bounded(metrics: Metrics) -> None:
    metrics.table_known("a")
    assert metrics.snapshot()['cdcd_events_total{table="a",op="delete"}'] == 0
    metrics.events({("a", "insert"): 3, ("b", "insert"): 1, ("c", "insert"): 5, ("d", "insert"): 7})
    samples = metrics.snapshot()
    assert samples['cdcd_events_total{table="a",op="insert"}'] == 3
    assert samples['cdcd_events_total{table="other",op="insert"}'] == 12


def test_a_gauge_is_absent_while_its_value_is_not_known(metrics: Metrics) -> None:
    lag_s: float | None = None
    metrics.lag(lambda: lag_s)
    assert "cdcd_replication_lag_seconds" not in metrics.exposition().decode()
    for known_s in (0.0, 2.5):
        lag_s = known_s
        assert metrics.snapshot()["cdcd_replication_lag_seconds"] == known_s
    lag_s = None
    assert "cdcd_replication_lag_seconds" not in metrics.snapshot()


def test_a_clock_ahead_of_us_is_no_negative_latency(metrics: Metrics) -> None:
    """F70."""
    metrics.group_committed(commit_us=1, latency_s=-60, duration_s=0.01)
    assert metrics.snapshot()["cdcd_event_latency_seconds_sum"] == 0


def test_a_group_counts_once(metrics: Metrics, clock: Clock) -> None:
    metrics.group_committed(commit_us=5_000_000, latency_s=0.5, duration_s=0.02)
    samples = metrics.snapshot()
    assert samples['cdcd_kafka_transactions_total{result="committed"}'] == 1
    assert samples["cdcd_event_latency_seconds_sum"] == pytest.approx(0.5)
    assert samples["cdcd_kafka_transaction_duration_seconds_sum"] == pytest.approx(0.02)
    assert samples["cdcd_kafka_last_commit_timestamp_seconds"] == clock.now_s
    assert samples["cdcd_last_commit_timestamp_seconds"] == 5


def test_the_slot_goes_absent_when_it_cannot_be_asked(metrics: Metrics) -> None:
    metrics.slot(SlotReading(True, retained_wal_bytes=5, wal_status="extended"))
    samples = metrics.snapshot()
    assert samples["cdcd_slot_retained_wal_bytes"] == 5
    assert samples['cdcd_slot_wal_status{status="extended"}'] == 1
    assert samples['cdcd_slot_wal_status{status="lost"}'] == 0
    assert "cdcd_slot_safe_wal_bytes" not in samples
    metrics.slot(None)
    assert not any(series.startswith("cdcd_slot_") for series in metrics.snapshot())


def test_backpressure_seconds_are_those_between_on_and_off(metrics: Metrics, clock: Clock) -> None:
    def seconds(cause: str = "producer") -> float:
        return metrics.snapshot()[f'cdcd_backpressure_seconds_total{{cause="{cause}"}}']

    metrics.backpressure(True)
    clock.now_s += 3
    assert seconds() == pytest.approx(3), "back-pressure that still lasts counts"
    metrics.backpressure(True, "spill")
    clock.now_s += 2
    metrics.backpressure(False)
    assert metrics.snapshot()["cdcd_backpressure_active"] == 1
    clock.now_s += 4
    metrics.backpressure(False, "spill")
    clock.now_s += 3
    metrics.backpressure(False)
    assert (seconds(), seconds("spill")) == (pytest.approx(5), pytest.approx(6))
    assert metrics.snapshot()["cdcd_backpressure_active"] == 0


def test_what_is_left_to_python_is_counted(metrics: Metrics) -> None:
    metrics.in_python(3, 0)
    metrics.in_python(1, 2)
    exposition = metrics.exposition().decode()
    assert "cdcd_encoded_in_python_columns_total 4.0" in exposition
    assert "cdcd_encoded_in_python_rows_total 2.0" in exposition


def test_registrations_are_requests_that_registered(metrics: Metrics) -> None:
    metrics.registry_request("lookup", "404")
    metrics.registry_request("register", "409")
    metrics.registry_request("register", "200")
    assert metrics.snapshot()["cdcd_schema_registrations_total"] == 1


@pytest.mark.parametrize("choice", ["auto", "python"])
def test_the_build_says_which_implementation_runs(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDCD_EXTENSIONS", choice)
    exposition = Metrics("0.1.0", with_process=False).exposition().decode()
    (line,) = [one for one in exposition.splitlines() if one.startswith("cdcd_build_info{")]
    assert f'extensions="{implementation()}"' in line
    if choice == "python":
        assert "cdcd.avro.rows" in line


def test_process_metrics_are_there() -> None:
    assert "process_cpu_seconds_total" in Metrics("0.1.0").snapshot()
