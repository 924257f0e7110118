"""The metrics of a mirror, and the port that serves them."""

from __future__ import annotations

import http.client
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from cdcd.errors import ConfigError
from cdcd.metrics.group import NEVER
from cdcd.spark.clients.kafka import Cluster
from cdcd.spark.mirroring import metrics_server
from cdcd.spark.mirroring.batches import BatchReport, Read
from cdcd.spark.mirroring.metrics import FRESH_S, MirrorMetrics
from cdcd.spark.mirroring.metrics_server import MetricsServer, Page
from cdcd.spark.mirroring.records import RecordsOnDriver, looks_of
from cdcd.spark.reading.catalog_state import CatalogState, Registered
from cdcd.spark.source.backlog import Backlog, backlog_after
from cdcd.spark.source.cuts import Commit, total
from cdcd.spark.source.progress_reader import ProgressReader
from cdcd.spark.source.slots import complete_commits
from cdcd.spark.target.versions import Parked, TableEntry, TargetVersion
from tests.spark.batches import records_table
from tests.spark.events import column, envelope_schema
from tests.support.planned import PROGRESS, Planned, T

LAG = "cdcd_mirror_lag_seconds"
AT_S = 1_700_000_000.0
NOTHING = Backlog(0, is_pending=False)


class _Clock:
    now_s = AT_S

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def metrics(clock: _Clock) -> MirrorMetrics:
    return MirrorMetrics(clock=clock, with_process=False)


def _families(metrics: MirrorMetrics) -> dict[str, Metric]:
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {f"{one.name}_total" if one.type == "counter" else one.name: one for one in families}


def _samples(metrics: MirrorMetrics) -> dict[str, float]:
    return {
        one.name + "".join(f"/{value}" for value in one.labels.values()): one.value
        for family in metrics.registry.collect()
        for one in family.samples
    }


def test_exactly_the_metrics_that_may_be_absent_are_before_the_start(metrics: MirrorMetrics) -> None:
    described = {one.name: one for group in metrics.groups for one in group.metrics}
    families = _families(metrics)
    assert {name for name, one in families.items() if one.samples} == {
        name for name, one in described.items() if one.absent == NEVER
    }
    assert all(re.fullmatch(r"cdcd_mirror_[a-z_]+", name) for name in described)
    assert all(re.fullmatch(r"[A-Z1].+\.", one.text) for one in described.values())


def test_each_metric_has_a_value_after_a_batch_and_an_error(metrics: MirrorMetrics) -> None:
    version = TargetVersion("shop", 4, end_lsn=100, commit_us=int((AT_S - 5) * 1e6), published_s=AT_S)
    metrics.mirrors("shop", "s3://lake/shop")
    parked = TableEntry("shop.public.b", parked=Parked("CDCD-GAP", "a gap", 0, AT_S))
    tables = {one: TableEntry(one) for one in ("shop.public.a", "shop.public.c")} | {parked.topic: parked}
    metrics.published(replace(version, commit_us=0))
    metrics.published(replace(version, tables=tables, loading=("shop.public.c",)), merges=2)
    read = {"shop.public.a": Read(10, 700)}
    metrics.batch(BatchReport(0, 7, 1, 2, 90, 8, 0.2, commit_us=version.commit_us, reads=read))
    metrics.looked(NOTHING, AT_S)
    metrics.failed("CDCD-SINK-UNAVAILABLE", is_retried=True)
    metrics.registered(CatalogState("c.shop", {"a": Registered("a"), "b": Registered("b", "refused")}))
    found = _samples(metrics)
    described = {one.name for group in metrics.groups for one in group.metrics}
    assert described == _families(metrics).keys()
    assert all(one.samples for one in _families(metrics).values())
    expected = {
        LAG: 0,
        "cdcd_mirror_backlog_offsets": 0,
        "cdcd_mirror_end_lsn_bytes": 100,
        "cdcd_mirror_last_commit_timestamp_seconds": AT_S - 5,
        "cdcd_mirror_last_published_timestamp_seconds": AT_S,
        "cdcd_mirror_visible_latency_seconds_sum": 5,
        "cdcd_mirror_visible_latency_seconds_count": 1,
        "cdcd_mirror_batches_total": 1,
        "cdcd_mirror_rows_read_total": 7,
        "cdcd_mirror_read_bytes_total": 700,
        "cdcd_mirror_backlog_bytes": 0,
        "cdcd_mirror_rows_written_total": 8,
        "cdcd_mirror_files_written_total": 2,
        "cdcd_mirror_versions_total": 2,
        "cdcd_mirror_compactions_total": 2,
        "cdcd_mirror_info/shop/s3://lake/shop": 1,
        "cdcd_mirror_tables/updated": 1,
        "cdcd_mirror_tables/loading": 1,
        "cdcd_mirror_tables/parked": 1,
        "cdcd_mirror_catalog_tables/registered": 1,
        "cdcd_mirror_catalog_tables/failed": 1,
        "cdcd_mirror_retrying": 1,
        "cdcd_mirror_restarts_total/CDCD-SINK-UNAVAILABLE": 1,
        "cdcd_mirror_last_error_info/CDCD-SINK-UNAVAILABLE": 1,
        "cdcd_mirror_last_error_timestamp_seconds": AT_S,
    }
    assert {name: found.get(name) for name in expected} == expected
    metrics.advanced()
    metrics.registered(CatalogState("c.shop", error="CDCD-STORAGE"))
    found = _samples(metrics)
    assert found["cdcd_mirror_retrying"] == 0
    assert not any("catalog" in name for name in found), "unknown"


def test_the_backlog_in_bytes_is_absent_while_a_topic_of_it_was_never_read(metrics: MirrorMetrics) -> None:
    """The mean bytes of a record are those of the last batch that has read some of the topic."""

    def backlog(*topics: tuple[str, int], is_behind: bool = False) -> float | None:
        offsets = None if is_behind else sum(count for _, count in topics)
        metrics.looked(Backlog(offsets, True, 0, dict(topics)), AT_S)
        return _samples(metrics).get("cdcd_mirror_backlog_bytes")

    def read(**reads: Read) -> None:
        metrics.batch(BatchReport(0, 7, 1, 2, 90, 8, 0.2, reads=reads))

    assert backlog(("a", 5)) is None
    read(a=Read(10, 700))
    assert backlog(("a", 5)) == 350
    assert backlog(("a", 5), ("b", 1)) is None
    read(b=Read(2, 50))
    assert backlog(("a", 5), ("b", 1)) == 375
    read(a=Read(3, 30))
    assert backlog(("a", 5), ("b", 1)) == 75
    assert backlog(("a", 5), is_behind=True) is None
    metrics.looked(NOTHING, AT_S)
    assert _samples(metrics)["cdcd_mirror_backlog_bytes"] == 0
    assert _samples(metrics)["cdcd_mirror_read_bytes_total"] == 780


def test_the_bytes_of_records_are_those_of_keys_and_values() -> None:
    """A deleted row has no value, a marker no key. Spark counts them in the same way (`test_mirror_records`)."""
    records = [(b"k" * 6, b"v" * 9), (b"k" * 7, None), (None, b"\0" * 5)]
    envelope = envelope_schema("shop.public.items", [column("id", "int")])
    looks = looks_of(
        RecordsOnDriver(records_table(records)), lambda _: True, TargetVersion("shop", 1), lambda _: envelope
    )  # type: ignore[arg-type]
    assert sum(one.size_bytes for one in looks) == 6 + 9 + 7 + 5
    assert sum(one.rows for one in looks) == 3


def test_a_batch_without_a_later_commit_has_no_latency(metrics: MirrorMetrics) -> None:
    version = TargetVersion("shop", 4, commit_us=int(AT_S * 1e6), published_s=AT_S)
    for _ in range(2):
        metrics.published(version)
    metrics.batch(BatchReport(0, 7, 1, 2, 90, 8, 0.2, commit_us=version.commit_us))
    assert _samples(metrics)["cdcd_mirror_visible_latency_seconds_count"] == 0


def test_the_lag_is_the_age_of_the_oldest_commit_and_grows_while_nobody_looks(
    metrics: MirrorMetrics, clock: _Clock
) -> None:
    assert metrics.lag_s() is None
    metrics.looked(Backlog(None, is_pending=True), AT_S)
    assert metrics.lag_s() is None, "the oldest commit has no time, and the mirror never had all"
    metrics.looked(NOTHING, AT_S)
    assert metrics.lag_s() == 0
    clock.now_s = AT_S + FRESH_S
    assert metrics.lag_s() == FRESH_S, "nobody has looked for so long"
    metrics.looked(NOTHING, clock.now_s)
    assert metrics.lag_s() == 0
    metrics.looked(Backlog(5, is_pending=True, oldest_us=int((AT_S + 4) * 1e6)), clock.now_s)
    assert metrics.lag_s() == FRESH_S - 4
    metrics.looked(Backlog(5, is_pending=True), clock.now_s)
    clock.now_s += 3
    assert metrics.lag_s() == 3, "since the mirror had everything"


def test_the_backlog_is_what_follows_the_position() -> None:
    commits = [
        Commit("0/1", {"t": {"0": 5}}, commit_us=1),
        Commit("0/2", {"t": {"0": 8}, "u": {"1": 4}}, commit_us=2),
        Commit("0/3", {"t": {"0": 9}}, commit_us=3),
    ]
    newest = {"t": {"0": 9}, "u": {"1": 4}}
    assert backlog_after({"t": {"0": 5}}, commits, newest, is_behind=False) == Backlog(
        8, True, 2, {"t": 4, "u": 4}
    )
    assert backlog_after({"t": {"0": 5}}, commits, newest, is_behind=True) == Backlog(
        None, True, 2, {"t": 4, "u": 4}
    )
    assert backlog_after(newest, commits, newest, is_behind=False) == NOTHING
    assert backlog_after(newest, [], newest, is_behind=True) == Backlog(None, True, 0)


def _oldest_us(reached: int) -> int:
    """Return the time of the oldest commit after this offset of T, as it was read from the progress topic."""
    reader = ProgressReader("", {}, PROGRESS, Cluster("", {}))
    commits = list(complete_commits(reader.read()))
    return backlog_after({T: {"0": reached}}, commits, total(commits), is_behind=False).oldest_us


def test_rows_of_a_copy_count_from_when_they_were_written_while_the_database_is_idle(kafka: Planned) -> None:
    """Their progress record has the commit time of the last transaction, which may be hours ago."""
    hour = 3_600_000
    kafka.progress(10, {T: 1}, commit_us=hour * 1000, written_ms=2 * hour)
    kafka.progress(10, {T: 2}, commit_us=hour * 1000, written_ms=7 * hour, end_lsn=30, loading=[T])
    kafka.progress(10, {T: 3}, commit_us=hour * 1000, written_ms=8 * hour, end_lsn=30, loading=[T])
    assert [_oldest_us(reached) for reached in range(4)] == [hour * 1000, 7 * hour * 1000, 8 * hour * 1000, 0]
    kafka.progress(40, {T: 4}, commit_us=9 * hour * 1000, written_ms=10 * hour)
    assert _oldest_us(3) == 9 * hour * 1000, (
        "a transaction counts from its commit, however late cdcd wrote it"
    )
    kafka.progress(50, {T: 5}, "another", commit_us=hour * 1000, written_ms=11 * hour)
    assert _oldest_us(4) == hour * 1000, "of another slot"


def test_a_transaction_in_parts_and_a_snapshot_count_from_their_commit_time(kafka: Planned) -> None:
    kafka.progress(10, {T: 1}, commit_us=1000, written_ms=2)
    kafka.progress(10, {T: 2}, commit_us=1000, written_ms=50, is_part=True)
    kafka.progress(60, {T: 3}, commit_us=40_000, written_ms=60)
    assert _oldest_us(1) == 40_000
    kafka.clear()
    for written_ms in (7, 8):
        kafka.progress(10, {T: written_ms}, commit_us=5000, written_ms=written_ms, snapshot=[T])
    kafka.progress(10, {T: 9}, commit_us=5000, written_ms=9)
    assert _oldest_us(0) == 5000


# --- the port ------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    def fails() -> Page:
        raise ValueError("a secret")

    opened = MetricsServer("127.0.0.1", 0, {"/metrics": lambda: Page(200, b"metrics\n"), "/fails": fails})
    yield opened
    opened.close()


def _got(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_the_port_answers_get_under_names_that_nobody_else_can_own(server: MetricsServer) -> None:
    assert _got(server.port, "/metrics") == (200, b"metrics\n")
    assert _got(server.port, "/metrics", Host="mirror.cdcd.svc") == (200, b"metrics\n")
    assert _got(server.port, "/metrics", Host="attacker.example.com")[0] == 421
    assert _got(server.port, "/other")[0] == 404
    assert _got(server.port, "/metrics", "POST")[0] == 501
    status, text = _got(server.port, "/fails")
    assert (status, b"secret" in text) == (500, False)


def test_silent_connections_do_not_hold_the_port(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server._Handler, "timeout", 0.2)
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
    try:
        for one in silent:
            one.settimeout(10)
            assert one.recv(1) == b"", "the server ends the connection"
        assert _got(server.port, "/metrics") == (200, b"metrics\n")
    finally:
        for one in silent:
            one.close()


def test_slow_connections_do_not_hold_the_port(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte arrives long before a limit for a single read is over."""
    monkeypatch.setattr(metrics_server._Handler, "timeout", 1.0)
    slow = [
        socket.create_connection(("127.0.0.1", server.port)) for _ in range(metrics_server.MOST_CONNECTIONS)
    ]
    try:
        for one in slow:
            one.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
            one.settimeout(0.01)
        open_ones, until_s = list(slow), time.monotonic() + 20
        while open_ones:
            assert time.monotonic() < until_s, "the server ends each connection"
            open_ones = [one for one in open_ones if not _is_ended_after_a_byte(one)]
        assert _got(server.port, "/metrics") == (200, b"metrics\n")
    finally:
        for one in slow:
            one.close()


def _is_ended_after_a_byte(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"a")
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_a_port_in_use_is_an_error_of_the_configuration(server: MetricsServer) -> None:
    with pytest.raises(ConfigError, match="cannot be opened"):
        MetricsServer("127.0.0.1", server.port, {})


def test_a_closed_port_is_free_again(server: MetricsServer) -> None:
    again = MetricsServer("127.0.0.1", 0, {})
    again.close()
    MetricsServer("127.0.0.1", again.port, {}).close()
