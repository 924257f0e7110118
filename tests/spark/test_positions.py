"""Positions: options of a start and an end, and the progress records before them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from cdcd.errors import ConfigError, PositionUnavailable, SnapshotIncomplete
from cdcd.lsn import format_lsn
from cdcd.spark.source.cuts import Commit
from cdcd.spark.source.jvm import packages
from cdcd.spark.source.positions import Position, position_of, records_before
from cdcd.spark.source.slots import Slots, complete_commits

DAY_US = 1_790_000_000_000_000


def record(lsn: int, seconds: int = 0, **fields: object) -> Commit:
    """Return a record whose last commit is at this LSN and second; no commit is in the 8 bytes after it."""
    end_lsn, commit_us = format_lsn(lsn + 8), DAY_US + seconds * 1_000_000 if seconds else 0
    return replace(Commit(format_lsn(lsn), {"a": {"0": lsn}}, end_lsn=end_lsn, commit_us=commit_us), **fields)


COPIED = [record(15, 1, snapshot=frozenset(begun), is_part=True) for begun in ("", "a")]
RECORDS = [
    *COPIED,
    record(19, 1),
    record(30, 10),
    record(40, is_part=True),
    record(50, 20),
    record(50),
    record(60, 30),
]
"""The end of the snapshot is record 2, of the first commit; records 4 and 5 are one commit; 6 has no transaction."""


def before(
    position: Position, records: list[Commit], *, is_whole: bool = True, now_us: int | None = None
) -> int:
    slots = Slots()
    commits = list(complete_commits(records, slots))
    return records_before(position, commits, slots.newest, is_whole=is_whole, now_us=now_us)


def starts(given: dict[str, str], *, is_whole: bool = True, now_s: int = 100, known: int = 8) -> int:
    position = position_of(given, "starting")
    assert position is not None
    now_us = DAY_US + now_s * 1_000_000
    return before(position, RECORDS[:known], is_whole=is_whole, now_us=now_us)


def ends(given: dict[str, str], *, is_whole: bool = True, known: int = 8) -> int:
    position = position_of(given, "ending")
    assert position is not None
    return before(position, RECORDS[:known], is_whole=is_whole)


def at(second: float) -> str:
    return str(DAY_US // 1000 + int(second * 1000))


@pytest.mark.parametrize(
    ("lsn", "second", "number"),
    [(3, 0.5, 0), (30, 10, 1), (31, 11, 2), (50, 20, 2), (51, 21, 4), (60, 30, 4)],
)
def test_an_lsn_or_a_time_is_before_the_first_commit_from_there_on(
    lsn: int, second: float, number: int
) -> None:
    """As a start and as an end, and always at the end of a complete commit."""
    by_lsn, by_time = format_lsn(lsn), at(second)
    assert starts({"startinglsn": by_lsn}) == ends({"endinglsn": by_lsn}) == number
    assert starts({"startingtimestamp": by_time}) == ends({"endingtimestamp": by_time}) == number


def test_the_newest_commit_and_the_end_of_the_newest_snapshot() -> None:
    for side, found in (("starting", starts), ("ending", ends)):
        name = f"{side}offsets"
        assert found({name: "latest"}) == 5
        assert found({name: "latest"}, known=5) == 2, "not inside a transaction"
        assert found({name: "latest"}, known=2) == 0, "not inside a snapshot"
        assert found({name: "snapshot_end"}) == 1
        with pytest.raises(SnapshotIncomplete):
            found({name: "snapshot_end"}, known=2)
    again = [*RECORDS, record(70, snapshot=frozenset("a"), is_part=True), record(75), record(80)]
    assert before(Position("snapshot_end"), again, now_us=0) == 6
    assert before(Position("snapshot_end"), again[:9], now_us=0) == 1
    with pytest.raises(PositionUnavailable, match="no end of a snapshot"):
        before(Position("snapshot_end"), RECORDS[3:], now_us=0)


def test_a_commit_has_the_time_of_its_parts() -> None:
    """The record that completes it may have no transaction of its own."""
    records = [record(10, 10), record(20, 20, is_part=True), record(30)]
    position = Position("time", value=DAY_US + 15_000_000)
    assert before(position, records) == 1


def test_a_position_between_the_newest_commit_and_the_end_is_known_only_if_no_commit_follows() -> None:
    assert starts({"startinglsn": format_lsn(68)}) == ends({"endinglsn": format_lsn(68)}) == 5
    assert starts({"startingtimestamp": at(99)}) == 5, "the next commit in Kafka is after it, or late"
    newer = "newer than all records in Kafka"
    for given in ({"startinglsn": format_lsn(69)}, {"startingtimestamp": at(101)}):
        with pytest.raises(PositionUnavailable, match=newer) as raised:
            starts(given)
        assert "use `latest`" in str(raised.value)
    for given in ({"endinglsn": format_lsn(69)}, {"endingtimestamp": at(31)}):
        with pytest.raises(PositionUnavailable, match=newer):
            ends(given)
    with pytest.raises(PositionUnavailable, match=newer):
        starts({"startinglsn": "0/1"}, known=0)


def test_nothing_is_known_before_a_compacted_record() -> None:
    for given in ({"startinglsn": format_lsn(19)}, {"startingtimestamp": at(1)}):
        with pytest.raises(PositionUnavailable, match="older than the progress records") as raised:
            starts(given, is_whole=False)
        assert "cdcd resnapshot" in str(raised.value)
    for given in ({"endinglsn": format_lsn(19)}, {"endingtimestamp": at(1)}):
        with pytest.raises(PositionUnavailable, match="older than the progress records"):
            ends(given, is_whole=False)
    assert starts({"startinglsn": format_lsn(20)}, is_whole=False) == 1
    assert ends({"endinglsn": format_lsn(20)}, is_whole=False) == 1


@pytest.mark.parametrize(
    ("name", "text", "kind", "value"),
    [
        ("startingOffsets", "snapshot_end", "snapshot_end", 0),
        ("startingOffsets", '{"t": {"0": 5}}', "offsets", 0),
        ("startingTimestamp", "2026-11-26T12:00:00+01:00", "time", 1_795_690_800_000_000),
        ("startingTimestamp", "2026-11-26T11:00:00.000001Z", "time", 1_795_690_800_000_001),
        ("startingTimestamp", "1795690800123", "time", 1_795_690_800_123_000),
        ("startingLsn", "16/B374D848", "lsn", 0x16_B374_D848),
    ],
)
def test_a_position_has_the_form_of_its_option(name: str, text: str, kind: str, value: int) -> None:
    position = position_of({name.lower(): text}, "starting")
    assert position is not None
    assert (position.kind, position.value) == (kind, value)
    assert position_of({name.lower(): text}, "ending") is None


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"startingOffsets": '{"t": {"0": -2}}'}, "option startingOffsets has to be earliest, latest"),
        ({"startingOffsets": "newest"}, "option startingOffsets has to be earliest, latest"),
        ({"startingTimestamp": "2026-11-26T12:00:00"}, "with its zone"),
        ({"startingTimestamp": "yesterday"}, "with its zone"),
        ({"startingLsn": "5000"}, "an LSN as PostgreSQL prints it"),
        (
            {"startingLsn": "0/1", "startingOffsets": "latest"},
            "startingOffsets and startingLsn exclude each other",
        ),
    ],
)
def test_a_wrong_position_is_a_problem(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        position_of({name.lower(): text for name, text in given.items()}, "starting")


def test_an_end_is_not_earliest() -> None:
    with pytest.raises(ValueError, match="has to be latest"):
        position_of({"endingoffsets": "earliest"}, "ending")


def test_packages_fit_the_version_of_spark() -> None:
    assert "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0" in packages("4.2.0")
    assert "io.delta:delta-spark_4.2_2.13:4.4.0" in packages("4.2")
    assert "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0" in packages("4.1.1")
    assert not any("iceberg" in one for one in packages("4.2.0"))
    with pytest.raises(ConfigError, match=r"Spark 4\.3, only for 4\.1 and 4\.2"):
        packages("4.3.0")


def test_the_functions_need_no_pyspark_before_they_ask_for_its_version() -> None:
    check = (
        "import sys, cdcd.spark\n"
        "assert 'pyspark' not in sys.modules\n"
        "cdcd.spark.offsets, cdcd.spark.packages('4.2')\n"
        "assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
