"""Where a query of `format("cdcd")` starts and ends, with a real broker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise

import pytest
from confluent_kafka import Consumer, TopicPartition

from cdcd.errors import ConfigError, HistoryMissing, PositionUnavailable, SparkReadError
from cdcd.lsn import format_lsn
from cdcd.spark import offsets
from cdcd.spark.data_source import RAW_DDL, CdcdDataSource, CdcdReader, CdcdStreamReader
from cdcd.spark.source.source_options import parse_options
from tests.spark.events import Table, column
from tests.spark.topics import TopicsWriter

COLUMNS = [column("id", "int", required=True)]
SECOND_US = 1_000_000
BEGAN_US = 1_790_000_000 * SECOND_US


def _write(topics: TopicsWriter, numbers: range) -> Table:
    """Write a snapshot of three rows, then a commit each, at LSN 10 * number and second `number`."""
    items = topics.table("items", COLUMNS)
    topics.snapshot = (items.topic,)
    for number in (1, 2):
        topics.commit(9, topics.change(items, "r", 9, number, after={"id": -number}))
    topics.snapshot = None
    topics.commit(9, topics.change(items, "r", 9, 3, after={"id": -3}))
    for number in numbers:
        topics.commit_us = BEGAN_US + number * SECOND_US
        topics.commit(10 * number, topics.change(items, "c", 10 * number, 1, after={"id": number}))
    topics.wait_until_readable(10 * numbers[-1])
    return items


def _asked(topics: TopicsWriter, given: Mapping[str, str]) -> dict[str, str]:
    return {"brokers": topics.bootstrap, "prefix": topics.prefix, **given}


def _batch(writer: TopicsWriter, **given: str) -> int:
    """Return the number of records of a batch read."""
    reader = CdcdReader(parse_options(_asked(writer, given)))
    return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))


def _stream(writer: TopicsWriter, **given: str) -> int:
    """Return the number of records in the first batch of a stream."""
    reader = CdcdStreamReader(parse_options(_asked(writer, given)))
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        return sum(batch.num_rows for part in reader.partitions(start, end) for batch in reader.read(part))
    finally:
        reader.stop()


def test_a_query_starts_and_ends_where_its_options_say(topics: TopicsWriter) -> None:
    items = _write(topics, range(1, 6))
    for start, rows in (
        ({}, 8),
        ({"startingOffsets": "latest"}, 0),
        ({"startingOffsets": "snapshot_end"}, 5),
        ({"startingLsn": "0/1"}, 8),
        ({"startingLsn": format_lsn(30)}, 3),
        ({"startingTimestamp": str((BEGAN_US + 2 * SECOND_US) // 1000)}, 4),
        ({"startingTimestamp": "2026-09-21T15:13:23.5+01:00"}, 2),
    ):
        assert _batch(topics, **start) == rows, start
    assert _stream(topics, startingOffsets="snapshot_end") == 5
    assert _stream(topics, startingOffsets="latest") == 0
    for end, rows in (
        ({"endingOffsets": "latest"}, 8),
        ({"endingOffsets": "snapshot_end"}, 3),
        ({"endingLsn": format_lsn(30)}, 5),
        ({"startingOffsets": "snapshot_end", "endingLsn": format_lsn(30)}, 2),
        ({"startingLsn": format_lsn(20), "endingLsn": format_lsn(40)}, 2),
        ({"startingLsn": format_lsn(20), "endingTimestamp": "2026-09-21T14:13:24Z"}, 2),
        ({"topics": items.topic, "startingLsn": format_lsn(50)}, 1),
    ):
        assert _batch(topics, **end) == rows, end


def test_ranges_that_adjoin_have_each_row_once(topics: TopicsWriter) -> None:
    _write(topics, range(1, 6))
    lsns = [format_lsn(lsn) for lsn in (1, 20, 31, 50)]
    times = [str(BEGAN_US // 1000 + ms) for ms in (0, 2000, 3500, 5000)]
    for by, bounds in (("Lsn", lsns), ("Timestamp", times)):
        rows = [
            _batch(topics, **{f"starting{by}": one, f"ending{by}": other}) for one, other in pairwise(bounds)
        ]
        assert rows == ([4, 2, 1] if by == "Lsn" else [1, 2, 1])


def test_the_offsets_for_another_reader_are_those_of_the_tables_asked_for(topics: TopicsWriter) -> None:
    items, other = (topics.table(name, [column("id", "int", required=True)]) for name in ("items", "other"))
    for number, table in enumerate((items, other), 1):
        topics.commit(number * 10, topics.change(table, "c", number * 10, 1, after={"id": number}))
    asked = offsets(
        {
            "brokers": topics.bootstrap,
            "prefix": topics.prefix,
            "table": items.topic.removeprefix(f"{topics.prefix}."),
        }
    )
    assert list(json.loads(asked["assign"])) == [items.topic]
    with pytest.raises(SparkReadError, match="no topic"):
        offsets({"brokers": topics.bootstrap, "prefix": topics.prefix, "table": "public.none"})


def test_the_offsets_for_another_reader_have_the_same_records(topics: TopicsWriter) -> None:
    _write(topics, range(1, 6))
    options = offsets(_asked(topics, {"startingLsn": format_lsn(20), "endingLsn": format_lsn(50)}))
    starting, ending = json.loads(options["startingOffsets"]), json.loads(options["endingOffsets"])
    assigned = json.loads(options["assign"])
    assert {topic: [int(one) for one in numbers] for topic, numbers in starting.items()} == assigned
    assert {topic: list(numbers) for topic, numbers in starting.items()} == {
        topic: list(numbers) for topic, numbers in ending.items()
    }
    consumer = Consumer(
        {
            "bootstrap.servers": options["kafka.bootstrap.servers"],
            "isolation.level": options["kafka.isolation.level"],
            "group.id": "independent",
            "enable.partition.eof": True,
        }
    )
    places = [(topic, number) for topic, numbers in assigned.items() for number in numbers]
    consumer.assign([TopicPartition(*one, starting[one[0]][str(one[1])]) for one in places])
    found, open_places = 0, set(places)
    while open_places:
        message = consumer.poll(30)
        assert message is not None
        place = (message.topic(), message.partition())
        if message.error() is not None or message.offset() >= ending[place[0]][str(place[1])]:
            open_places.discard(place)
        elif place in open_places:
            found += 1
    consumer.close()
    assert found == 3
    again = {name: options[name] for name in ("startingOffsets", "endingOffsets")}
    assert _batch(topics, **again) == 3, 'format("cdcd") takes them too'


def test_a_position_that_kafka_does_not_have_is_an_error(topics: TopicsWriter) -> None:
    items = _write(topics, range(1, 6))
    beyond = json.dumps({items.topic: {"0": 1000}})
    for given in (
        {"startingLsn": format_lsn(90)},
        {"endingLsn": format_lsn(90)},
        {"endingTimestamp": "2026-09-21T15:00:00Z"},
        {"startingOffsets": beyond},
        {"endingOffsets": beyond},
        {"startingLsn": format_lsn(40), "endingLsn": format_lsn(20)},
    ):
        with pytest.raises(PositionUnavailable):
            _batch(topics, **given)
    reader = CdcdStreamReader(parse_options(_asked(topics, {})))
    with pytest.raises(PositionUnavailable, match="offsets of the checkpoint") as raised:
        reader.latestOffset(json.loads(beyond), reader.getDefaultReadLimit())
    reader.stop()
    assert "start at `earliest` with a new checkpoint" in str(raised.value)
    last = json.loads(offsets(_asked(topics, {"endingLsn": format_lsn(30)}))["endingOffsets"])
    removed = [TopicPartition(items.topic, int(one), n) for one, n in last[items.topic].items()]
    for future in topics.admin.delete_records(removed).values():
        future.result(30)
    for given in ({"startingLsn": format_lsn(10)}, {"startingOffsets": "snapshot_end"}):
        with pytest.raises(PositionUnavailable, match="removed records after this position") as raised:
            _batch(topics, **given)
        assert "cdcd resnapshot" in str(raised.value)
    assert _batch(topics, startingLsn=format_lsn(30)) == 3
    assert _batch(topics) == 3
    with pytest.raises(HistoryMissing):
        _batch(topics, startingOffsets=json.dumps({items.topic: {"0": 0, "1": 0, "2": 0}}))


def test_no_offset_at_a_position_may_be_removed(topics: TopicsWriter) -> None:
    """Here it is a marker's, but no header says so. With at_least_once it is that of a row which was not read."""
    items = topics.table("items", COLUMNS)
    row = topics.change(items, "c", 10, 1, after={"id": 1})
    partition = str(row[0][1])
    topics.commit(10, row)
    topics.wait_until_readable(10)
    reader = CdcdStreamReader(parse_options(_asked(topics, {})))
    before = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert before[items.topic][partition] == 1
    place = TopicPartition(items.topic, int(partition), 2)
    topics.admin.delete_records([place])[place].result(30)
    topics.commit(20, row)
    topics.wait_until_readable(20)
    after = reader.latestOffset(before, reader.getDefaultReadLimit())
    with pytest.raises(HistoryMissing):
        reader.partitions(before, after)
    with pytest.raises(PositionUnavailable, match="removed records after this position"):
        _batch(topics, startingLsn=format_lsn(20))
    with pytest.raises(HistoryMissing):
        _batch(topics, startingOffsets=json.dumps({items.topic: {partition: 1}}))
    reader.stop()


def test_an_end_before_the_start_is_an_error_in_each_partition(topics: TopicsWriter) -> None:
    """No commit before the end has a record in the partition of the commit before the start."""
    items = topics.table("items", COLUMNS)
    row = topics.change(items, "c", 10, 1, after={"id": 1})[0]
    for number in range(1, 5):
        topics.commit(10 * number, [(row[0], number % 2, *row[2:])])
    topics.wait_until_readable(40)
    with pytest.raises(PositionUnavailable, match="the end is before the start"):
        _batch(topics, startingLsn=format_lsn(30), endingLsn=format_lsn(20))
    assert _batch(topics, startingLsn=format_lsn(20), endingLsn=format_lsn(20)) == 0
    assert _batch(topics, startingLsn=format_lsn(20), endingLsn=format_lsn(40)) == 2


def test_a_stream_has_no_end(topics: TopicsWriter) -> None:
    source = CdcdDataSource(_asked(topics, {"endingOffsets": "latest"}))
    with pytest.raises(ConfigError, match="a stream has no end") as raised:
        source.streamReader(RAW_DDL)
    assert "trigger(availableNow=True)" in raised.value.advice
