"""Refused records are sent again in small batches; only a record that is itself too large is refused (F65)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pytest

from cdcd.errors import BatchTooLarge, RecordTooLarge
from cdcd.model import Record
from cdcd.sink.limits import Limits, Verdict, judge
from cdcd.sink.settings import SinkSettings, is_compressed

T = "shop.public.t"
KEY = b"k" * 10


@pytest.mark.parametrize(
    ("size_bytes", "limit_bytes", "compressed", "before", "expected"),
    [
        (10, 1000, False, False, "shared"),
        (900, 1000, False, False, "shared"),
        (901, 1000, False, False, "alone"),  # only the broker knows whether it fits
        (934, 1000, False, False, "alone"),
        (935, 1000, False, False, "refused"),
        (935, 1000, True, False, "alone"),
        (50_000, 1000, True, False, "alone"),
        (50_000, 1000, True, True, "refused"),
        (10, None, False, False, "alone"),
        (50_000, None, False, False, "alone"),
        (50_000, None, False, True, "refused"),
    ],
)
def test_the_verdict(
    size_bytes: int, limit_bytes: int | None, compressed: bool, before: bool, expected: Verdict
) -> None:
    assert judge(size_bytes, limit_bytes, is_compressed=compressed, was_refused=before) == expected


@dataclass
class Report:
    """The message of a delivery report."""

    record: Record

    def topic(self) -> str:
        return self.record.topic

    def key(self) -> bytes | None:
        return self.record.key

    def value(self) -> bytes | None:
        return self.record.value


def row(size_bytes: int, fill: bytes = b"v", topic: str = T) -> Record:
    return Record(topic, 0, KEY, fill * (size_bytes - len(KEY)))


def refuse(limits: Limits, record: Record) -> BatchTooLarge:
    refusal = RecordTooLarge("refused", topic=record.topic, size_bytes=1)
    return limits.refused(Report(record), refusal)  # type: ignore[arg-type]


def batches(limits: Limits, records: Sequence[Record], *, compressed: bool = False) -> list[list[int]]:
    """Return the sizes of the records sent between two moments with an empty queue."""
    found: list[list[int]] = []
    queue: list[int] = []
    start = 0
    while start < len(records):
        before = start
        for at in limits.admit(records, start, partial(len, queue), is_compressed=compressed):
            queue.append(len(records[at].key or b"") + len(records[at].value or b""))
            start = at + 1
        assert start > before or queue, "no progress"
        found.append(queue)
        queue = []
    return found


def test_a_first_refusal_says_nothing_of_a_record() -> None:
    """The batch was too large; its records may be small."""
    limits = Limits()
    assert not limits
    assert refuse(limits, row(100)).context == {"topic": T, "size_bytes": 1}
    assert limits
    limits.read({T: 1000})
    assert batches(limits, [row(100)] * 12) == [[100] * 5, [100] * 5, [100] * 2]


def test_other_topics_are_not_touched() -> None:
    limits = Limits()
    refuse(limits, row(100))
    limits.read({T: 1000})
    assert batches(limits, [row(5000, topic="other")] * 3) == [[5000] * 3]


def test_a_record_larger_than_the_limit_is_refused_with_its_index() -> None:
    limits = Limits()
    refuse(limits, row(100))
    limits.read({T: 1000})
    with pytest.raises(RecordTooLarge) as caught:
        batches(limits, [row(100), row(100), row(5000), row(100)])
    assert caught.value.at == 2
    assert not isinstance(caught.value, BatchTooLarge)


def test_compressed_ones_are_tried_alone_and_refused_here_once_the_broker_has_said_so() -> None:
    limits = Limits()
    refuse(limits, row(100))
    limits.read({T: 1000})
    large, other = row(5000), row(5000, b"w")
    assert batches(limits, [row(100), large, row(100), other], compressed=True) == [
        [100],
        [5000],
        [100],
        [5000],
    ]
    refuse(limits, large)
    with pytest.raises(RecordTooLarge) as caught:
        batches(limits, [row(100), other, large], compressed=True)
    assert caught.value.at == 2, "another row of the same size may fit, so it is not refused"
    limits.read({T: 1000})
    with pytest.raises(RecordTooLarge):
        batches(limits, [large], compressed=True)


@pytest.mark.parametrize("how", ["raised", "reported"])
def test_a_refused_size_is_tried_again_when_the_limit_may_have_been_raised(how: str) -> None:
    limits = Limits()
    refuse(limits, row(100))
    limits.read({T: 1000})
    refuse(limits, row(5000))
    if how == "raised":
        limits.read({T: 2000})
    else:
        limits.forget_refused()
    assert batches(limits, [row(5000)], compressed=True) == [[5000]]


def test_a_limit_that_was_lowered_meanwhile_is_read_again() -> None:
    """The refused record was in a batch, which proves nothing; until the limit is read each record is sent alone."""
    limits = Limits()
    refuse(limits, row(100))
    limits.read({T: 10_000})
    refuse(limits, row(100))
    assert limits.known == {T: None}
    assert batches(limits, [row(100)] * 3) == [[100], [100], [100]]


def test_what_is_refused_below_the_limit_ends_up_alone_and_is_refused_here() -> None:
    """A topic with its own compression may make a batch larger than it was sent: retries alone would never end."""
    limits, large = Limits(), row(880)
    for _ in range(3):
        assert batches(limits, [row(100), large, row(100)])
        refuse(limits, large)
        limits.read({T: 1000})
    with pytest.raises(RecordTooLarge):
        batches(limits, [row(100), large, row(100)])
    assert batches(limits, [row(100)] * 5) == [[100] * 2, [100] * 2, [100]], (
        "smaller records are sent in smaller batches"
    )
    limits.read({T: 2000})
    assert batches(limits, [row(100)] * 5) == [[100] * 5], "the limit was raised"


def test_without_a_known_limit_what_is_refused_alone_is_too_large() -> None:
    limits = Limits()
    refuse(limits, row(100))
    refuse(limits, row(300, b"w"))
    with pytest.raises(RecordTooLarge):
        batches(limits, [row(300, b"w")])


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, False),
        ({"compression.type": "none"}, False),
        ({"compression.type": "zstd"}, True),
        ({"compression.codec": "lz4"}, True),
    ],
)
def test_compression_is_known_by_its_properties(properties: dict[str, str], expected: bool) -> None:
    settings = SinkSettings("k:9092", "exactly_once", "id", "id", "p", "s", properties)
    assert is_compressed(settings) is expected
