"""A producer that is recreated between two groups, and one that is abandoned: neither repeats records nor fences
others.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from cdcd.demo.stack.ports import free_port
from cdcd.errors import SinkAuthorization, SinkFenced, SinkUnavailable
from tests.integration.test_sink_exactly_once import Place, place, progress, records
from tests.support.topics import committed_values

__all__ = ["place"]


def test_groups_before_and_after_a_renewal_are_there_once(place: Place) -> None:
    sink = place.opened()
    sink.begin()
    sink.produce(records(place.topic, 4), 0)
    sink.commit(progress(place.slot, 0x200))
    sink.renew(place.settings())
    sink.begin()
    sink.produce(records(place.topic, 4, start=4), 0)
    sink.commit(progress(place.slot, 0x300))
    assert sorted(committed_values(place.bootstrap, place.topic)) == [f"v{n}".encode() for n in range(8)]
    last = place.sink().open()
    assert last is not None
    assert last.end_lsn == 0x300


def test_a_fenced_producer_is_not_recreated(place: Place) -> None:
    """F69: a process that was frozen, and finds that its password has changed as well."""
    frozen = place.opened()
    other = place.opened()
    other.begin()
    other.commit(progress(place.slot))
    with pytest.raises(SinkFenced):
        frozen.renew(place.settings())


def test_a_missing_certificate_file_is_an_error_to_correct(place: Place, tmp_path: object) -> None:
    properties = {"security.protocol": "SSL", "ssl.ca.location": f"{tmp_path}/missing.crt"}
    with pytest.raises(SinkAuthorization, match=r"ssl\.ca\.location"):
        place.sink(properties=properties).open()


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Disable garbage collection: objects in reference cycles live on, as they do for a while in a daemon."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
def test_the_error_of_a_producer_without_a_broker_does_not_reference_the_producer(place: Place) -> None:
    """It would continue to connect, and fence the next session's producer as soon as a broker answers."""
    before = {id(one) for one in gc.get_objects() if isinstance(one, Producer)}
    sink = place.sink(bootstrap_servers=f"127.0.0.1:{free_port()}", operation_timeout_s=1.0)
    with pytest.raises(SinkUnavailable) as caught:
        sink.open()
    assert [id(one) for one in gc.get_objects() if isinstance(one, Producer) and id(one) not in before] == []
    assert caught.value.__traceback__ is not None
