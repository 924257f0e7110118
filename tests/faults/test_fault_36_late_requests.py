"""Fault 36: a request of a Kafka transaction arrives after its client has sent it again and continued (F77).

Kafka's first transaction protocol, the only one in librdkafka, distinguishes transactions by the producer epoch only:
a late EndTxn ends the transaction open at that time. A commit makes a part of it visible, an abort drops its records.
All kinds of brokers have this defect; cdcd renews the epoch whenever a request may still arrive.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker, KafkaCluster
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.errors import SinkFenced, TransactionExpired
from cdcd.sink.kafka_sink import KafkaSink
from tests.faults.late import BEFORE_ANY, MOMENTS, Play, Unfenced
from tests.faults.test_fault_25_two_daemons import Ends, Expired, both, new_source
from tests.integration.conftest import NewDaemon
from tests.support.daemon import await_confirmed
from tests.support.doors import KafkaDoors
from tests.support.late import Api
from tests.support.nightly import nightly, nightly_except
from tests.support.reader import Reader, assert_each_once
from tests.support.waiting import eventually

BROKERS: dict[str, dict[str, Any]] = {
    "4.3.0": {},
    "4.3.0, transaction.version=1": {"features": ["transaction.version=1"]},
    "4.3.0, unverified": {"settings": {"transaction.partition.verification.enable": "false"}},
    "3.9.2": {"version": "3.9.2"},
}
"""4.3.0 has transaction.version 2 by default. All but one verify partitions, which is the default."""


class Request(NamedTuple):
    """The request to hold back; `is_abort`: of an aborted transaction, which is followed by the others."""

    api: Api
    is_abort: bool = False


COMMIT, ABORT = Request(Api.END_TXN), Request(Api.END_TXN, is_abort=True)
OTHERS = [Request(Api.ADD_PARTITIONS_TO_TXN), Request(Api.PRODUCE), Request(Api.INIT_PRODUCER_ID)]
WITHOUT_FENCE = {
    (COMMIT, "amid"): ["torn", "seen before it was committed", "repeated"],
    (COMMIT, "before its end"): ["seen before it was committed"],
    (ABORT, "before its end"): ["lost"],
}
"""What readers see of the next transaction if it has the same epoch; all other cases are right."""
UNVERIFIED = WITHOUT_FENCE | {
    (COMMIT, "amid"): ["torn", "seen before it was committed"],
    (ABORT, "amid"): ["torn", "lost"],
}
"""Without verification there is no error: the broker accepts the rest of the transaction."""


class Place(NamedTuple):
    """A broker behind proxies that can hold back requests."""

    broker: KafkaBroker
    doors: KafkaDoors

    def play(self, sink: type[KafkaSink]) -> Play:
        """Return a run of transactions with this sink."""
        return Play(self.doors.bootstrap, self.broker.bootstrap, self.doors.late, sink)


@pytest.fixture(scope="module")
def place(
    request: pytest.FixtureRequest, artefacts: Cache, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("late")
    broker = KafkaBroker(folder / "kafka", cache=artefacts, **BROKERS[request.param])
    with KafkaDoors(broker, keeps_requests=True) as doors, broker:
        yield Place(broker, doors)


NEWEST = pytest.mark.parametrize("place", ["4.3.0"], indirect=True, scope="module")
EACH = pytest.mark.parametrize("place", BROKERS, indirect=True, scope="module")


@NEWEST
@pytest.mark.parametrize("moment", nightly_except(MOMENTS, "amid", "before its end"))
@pytest.mark.parametrize("request_", [COMMIT, ABORT], ids=["commit", "abort"])
def test_an_end_that_comes_late_finds_nobody(place: Place, request_: Request, moment: str) -> None:
    """F77: nothing is lost, repeated, torn or seen before its commit, and the session continues."""
    seen = place.play(KafkaSink).run(request_.api, moment, is_abort=request_.is_abort)
    assert seen.wrong == []
    assert seen.sessions == 1
    assert request_.is_abort or 1 in seen.renewed
    assert seen.answer, "the late request has arrived"


@NEWEST
@pytest.mark.parametrize(
    ("request_", "moment"),
    nightly_except(WITHOUT_FENCE, (COMMIT, "amid"), (ABORT, "before its end")),
    ids=lambda value: str(value).replace(" ", "_"),
)
def test_without_a_new_epoch_it_would_be_seen(place: Place, request_: Request, moment: str) -> None:
    """The judge finds the damage of Kafka's client without the fix."""
    seen = place.play(Unfenced).run(request_.api, moment, is_abort=request_.is_abort)
    assert {what.split(":")[0] for what in seen.wrong} == set(WITHOUT_FENCE[request_, moment])


@NEWEST
@pytest.mark.parametrize("moment", ["amid", nightly("behind its end")])
@pytest.mark.parametrize("request_", OTHERS, ids=lambda request_: request_.api.name)
def test_other_late_requests_do_no_harm(place: Place, request_: Request, moment: str) -> None:
    """F77: sequence numbers prevent late rows, and a late InitProducerId only costs a session."""
    seen = place.play(KafkaSink).run(request_.api, moment)
    assert seen.wrong == []
    assert seen.answer, "the late request has arrived"


@NEWEST
def test_a_transaction_that_a_late_request_has_opened_expires_and_is_no_takeover(
    place: Place, postgres: PostgresServer, database: str
) -> None:
    """F69, F77: nothing is open for the sink, and the next row comes when the broker has given the transaction up."""
    expired = Expired(place.broker, new_source(postgres, database))
    expired.sink.close()
    (door,) = place.doors.late
    with contextlib.closing(
        KafkaSink(replace(expired.settings, bootstrap_servers=place.doors.bootstrap))
    ) as sink:
        sink.open()
        door.keep(Api.ADD_PARTITIONS_TO_TXN)
        expired.write(sink, b"1", 0x200)
        late_request = door.withheld()
        if sink.renewal_reason:  # a slow machine: the request would be refused
            sink.renew_epoch()
            door.keep(Api.ADD_PARTITIONS_TO_TXN)
            expired.write(sink, b"2", 0x300)
            late_request = door.withheld()
        ends = Ends(expired.bootstrap, expired.topic)
        written = ends.written
        assert late_request.deliver()
        eventually(lambda: ends.written > written, "the broker has aborted the transaction", pause_s=0.2)
        with pytest.raises(SinkFenced) as caught:
            expired.write(sink, b"3", 0x400)
        expired.sink = sink
        assert type(expired.error_of_fencing(caught.value)) is TransactionExpired


@pytest.mark.long
@EACH
def test_each_request_at_each_moment_on_each_kind_of_broker(
    place: Place, request: pytest.FixtureRequest
) -> None:
    """Prints the table of docs/kafka.md."""
    kind = request.node.callspec.params["place"]
    red = {}
    for asked in (COMMIT, ABORT, *OTHERS):
        for moment in MOMENTS:
            without = place.play(Unfenced).run(asked.api, moment, is_abort=asked.is_abort)
            fenced = place.play(KafkaSink).run(asked.api, moment, is_abort=asked.is_abort)
            assert fenced.wrong == [], (asked, moment)
            assert without.answer, "the late request has arrived"
            assert fenced.answer, "the late request has arrived"
            red[asked, moment] = sorted({what.split(":")[0] for what in without.wrong})
            name = "EndTxn, abort" if asked.is_abort else asked.api.name
            print(f"{kind} | {name} | {moment} | {', '.join(red[asked, moment]) or '-'} | -", flush=True)
    wanted = UNVERIFIED if kind == "4.3.0, unverified" else WITHOUT_FENCE
    assert {key: what for key, what in red.items() if what} == {
        key: sorted(what) for key, what in wanted.items()
    }


@pytest.mark.long
@EACH
def test_a_row_that_was_given_up_and_comes_late_is_refused_where_partitions_are_verified(
    place: Place, request: pytest.FixtureRequest
) -> None:
    """F77: only the verification refuses the row: its sequence number is the next one, its epoch is not fenced."""
    seen = place.play(KafkaSink).run(Api.PRODUCE, BEFORE_ANY, is_abort=True)
    assert seen.answer, "the late request has arrived"
    is_verified = "unverified" not in request.node.callspec.params["place"]
    assert ("aborted, but visible: 0.1" in seen.wrong) != is_verified
    assert seen.wrong == [] or not is_verified


@NEWEST
def test_a_daemon_goes_on_under_a_new_epoch_and_says_so(
    place: Place, postgres: PostgresServer, database: str, new_daemon: NewDaemon, registry: SchemaRegistry
) -> None:
    """F77: a warning and a metric for each renewal; the session continues, and each row is there once."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    sink = {"bootstrap_servers": place.doors.bootstrap}
    (door,) = place.doors.late
    reader = Reader(place.broker.bootstrap, registry.url)
    with new_daemon(postgres, database, sink=sink) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        postgres.execute("INSERT INTO t VALUES (0)", dbname=database)
        await_confirmed(postgres, daemon)
        for turn in range(1, 4):
            door.keep(Api.END_TXN)
            postgres.execute("INSERT INTO t VALUES (%s)", turn, dbname=database)
            late_request = door.withheld()
            await_confirmed(postgres, daemon)
            postgres.execute("INSERT INTO t VALUES (%s)", 10 + turn, dbname=database)
            late_request.deliver()
            await_confirmed(postgres, daemon)
        renewed = daemon.events("producer_epoch_renewed")
        assert len(renewed) >= 3, "a slow commit on a busy machine may add a renewal"
        assert {line["level"] for line in renewed} == {"warning"}
        assert all("the client sends EndTxn again" in line["reason"] for line in renewed)
        count = f'cdcd_producer_rebuilds_total{{reason="late_request"}} {len(renewed)}.0'
        assert count in daemon.get("/metrics")[1]
        assert len(daemon.events("streaming")) == 1
        assert daemon.stop() == 0
        events = reader.read(topic)
        assert sorted(event.value["after"]["id"] for event in events) == [0, 1, 2, 3, 11, 12, 13]
        assert_each_once(events)


@NEWEST
def test_a_daemon_that_wakes_up_from_a_commit_after_its_successor_started_fences_nobody(
    place: Place, postgres: PostgresServer, database: str, new_daemon: NewDaemon, registry: SchemaRegistry
) -> None:
    """F69: the slow commit would require a new epoch, but a new epoch would fence the successor's producer."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    first, second = both(new_daemon, postgres, database)
    first.config["sink"]["bootstrap_servers"] = place.doors.bootstrap
    second.config["sink"]["bootstrap_servers"] = place.broker.bootstrap
    (door,) = place.doors.late
    topic = f"{first.name}.public.t"
    with first, second:
        first.start().wait_state("streaming")
        second.start().wait_state("waiting_slot")
        door.hold_answer(Api.END_TXN)
        postgres.execute("INSERT INTO t VALUES (1)", dbname=database)
        door.await_answer()
        assert first.process is not None
        os.kill(first.process.pid, signal.SIGSTOP)
        door.let_answer_go()
        second.wait_state("streaming")
        os.kill(first.process.pid, signal.SIGCONT)
        first.wait_state("waiting_slot")
        assert first.events("producer_epoch_renewed") == []
        postgres.execute("INSERT INTO t VALUES (2)", dbname=database)
        await_confirmed(postgres, first, 20)  # both daemons have the same slot
        assert len(second.events("streaming")) == 1
        events = Reader(place.broker.bootstrap, registry.url).read(topic)
        assert sorted(event.value["after"]["id"] for event in events) == [1, 2]
        assert_each_once(events)


@pytest.fixture
def three(artefacts: Cache, tmp_path: Path) -> Iterator[tuple[KafkaCluster, KafkaDoors]]:
    cluster = KafkaCluster(tmp_path / "cluster", cache=artefacts)
    with KafkaDoors(cluster, keeps_requests=True) as doors, cluster:
        yield cluster, doors


def coordinator(cluster: KafkaCluster) -> int:
    """Return the id of the transaction coordinator: the leader of the only partition of transactions."""
    topic = (
        AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics("__transaction_state", 30).topics
    )
    return int(topic["__transaction_state"].partitions[0].leader)


def elect_preferred(cluster: KafkaCluster) -> None:
    """Make the first replica the coordinator."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    partition = TopicPartition("__transaction_state", 0)
    eventually(
        lambda: admin.elect_leaders(ElectionType.PREFERRED, [partition]).result(30)[partition] is None,
        "the first replica is in sync again",
    )


@pytest.mark.long
@pytest.mark.parametrize("sink", [KafkaSink, Unfenced])
def test_a_coordinator_that_moves_away_and_back_knows_the_request_still(
    three: tuple[KafkaCluster, KafkaDoors], sink: type[KafkaSink]
) -> None:
    """F77: the late request's broker is the coordinator again when the request arrives."""
    cluster, doors = three
    play = Play(doors.bootstrap, cluster.bootstrap, doors.late, sink, copies=3)
    play.run(Api.PRODUCE, "behind the next")  # creates the coordinator's topic
    first = next(broker for broker in cluster.brokers if broker.node_id == coordinator(cluster))
    first.stop()
    eventually(lambda: coordinator(cluster) not in (first.node_id, -1), "another broker is the coordinator")
    second = coordinator(cluster)
    first.start()

    def away() -> None:
        elect_preferred(cluster)
        assert coordinator(cluster) == first.node_id

    def back() -> None:
        first.stop()
        eventually(lambda: coordinator(cluster) == second, "the second broker is the coordinator again")

    play = Play(doors.bootstrap, cluster.bootstrap, doors.late, sink, copies=3)
    seen = play.run(Api.END_TXN, "amid", once_withheld=away, before_delivery=back)
    assert seen.answer, "the late request has arrived"
    assert bool(seen.wrong) == (sink is Unfenced), seen.wrong
