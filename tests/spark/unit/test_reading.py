"""A mirror is read as of a position, and waited for until it has one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdcd.cli.wait import Durable, wait_mirrored
from cdcd.errors import ConfigError, MirrorBehind, SparkReadError, TablesParked
from cdcd.escaped_names import escape
from cdcd.spark import changes, consistent_view, history
from cdcd.spark.__main__ import main
from cdcd.spark.reading.mirror import read_mirror, wait
from cdcd.spark.reading.mirrored_table import MirroredTable
from cdcd.spark.source.source_position import SlotPosition
from cdcd.spark.storage.uri import open_storage
from cdcd.spark.target.target_writer import TargetWriter, take_over
from cdcd.spark.target.versions import Parked, TableEntry, TargetVersion

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[TargetWriter]:
    """Return the writer of a target with versions at the LSNs 100, 200, 300, one minute after the other."""
    found = take_over(tmp_path, TargetVersion("shop", 4))
    for number in (1, 2, 3):
        _reach(found, 100 * number)
    return found


def _reach(writer: TargetWriter, lsn: int) -> None:
    assert writer.version is not None
    at = START + timedelta(minutes=lsn // 100)
    commit_us = int(at.timestamp() * 1_000_000)
    writer.publish(replace(writer.version, end_lsn=lsn, commit_lsn=lsn - 50, commit_us=commit_us))


@pytest.mark.parametrize(
    ("at", "end_lsn"),
    [
        (None, 300),
        (100, 100),
        (101, 200),
        ("0/C8", 200),
        (START + timedelta(minutes=2), 200),
        (START + timedelta(minutes=2, seconds=59), 200),
        ("2026-01-01T00:01:30+00:00", 100),
        ("2026-01-01T05:00:00Z", 300),
    ],
)
def test_a_position_is_an_lsn_or_a_time(
    writer: TargetWriter, tmp_path: Path, at: int | str | datetime | None, end_lsn: int
) -> None:
    opened = read_mirror(tmp_path, at=at)
    assert opened.end_lsn == end_lsn
    assert opened.commit_time == START + timedelta(minutes=end_lsn // 100)


def test_a_position_that_is_none_or_not_there_is_an_error(writer: TargetWriter, tmp_path: Path) -> None:
    for wrong in ("yesterday", "2026-01-01T00:00:00", datetime(2026, 1, 1), "1/"):
        with pytest.raises(ConfigError, match="neither an LSN nor a time"):
            read_mirror(tmp_path, at=wrong)
    with pytest.raises(SparkReadError, match="not reached this LSN"):
        read_mirror(tmp_path, at=301)


def test_an_lsn_names_the_version_that_has_the_rows_of_the_first_snapshot(tmp_path: Path) -> None:
    """All versions while it is copied have the LSN of its end."""
    writer = take_over(tmp_path, TargetVersion("shop", 4))
    for lsn, loading in ((100, ["a", "b"]), (100, ["b"]), (100, []), (200, ["b"]), (200, ["b"]), (300, [])):
        assert writer.version is not None
        writer.publish(replace(writer.version, end_lsn=lsn, loading=tuple(loading)))
    found = [read_mirror(tmp_path, at=lsn).version for lsn in (50, 100, 101, 200, 201)]
    assert [one.number for one in found] == [4, 4, 6, 6, 7]
    assert read_mirror(tmp_path, at="v2").loading == ["a", "b"]


@pytest.mark.parametrize("frozen_by", ["an undecided PREPARE", "an idle slot"])
def test_a_version_that_is_loading_is_not_replaced_by_one_with_later_commits(
    tmp_path: Path, frozen_by: str
) -> None:
    """The lowest LSN is the same while the mirror gets commits, and a time names the commits before it."""
    writer = take_over(tmp_path, TargetVersion("shop", 4))
    for number in range(1, 5):
        assert writer.version is not None
        positions = {"a": SlotPosition(500, "7", 1)}
        if frozen_by == "an idle slot":
            positions["b"] = SlotPosition(600 + number, "7", 1)
        at = START + timedelta(minutes=number)
        changed = replace(
            writer.version,
            end_lsn=500,
            commit_lsn=600 + number,
            commit_us=int(at.timestamp() * 1_000_000),
            positions=positions,
            loading=("shop.public.t",) if number < 4 else (),
        )
        writer.publish(changed)
    for at in (START + timedelta(minutes=2), "2026-01-01T00:02:59Z"):
        assert read_mirror(tmp_path, at=at).commit_time == START + timedelta(minutes=2)
    at_lsn = read_mirror(tmp_path, at=500)
    assert at_lsn.commit_lsn == (601 if frozen_by == "an idle slot" else 604), "604 is of the same position"


def test_a_version_has_a_name_that_no_version_of_another_target_has(tmp_path: Path) -> None:
    first, second = (take_over(tmp_path / name, TargetVersion("shop", 4)) for name in ("a", "b"))
    for writer in (first, second):
        _reach(writer, 100)
    opened = read_mirror(tmp_path / "a")
    assert read_mirror(tmp_path / "a", at=opened.at).version == opened.version
    assert read_mirror(tmp_path / "a", at="v2").version == opened.version, "a name of an earlier release"
    with pytest.raises(SparkReadError, match="mirrored anew"):
        read_mirror(tmp_path / "b", at=opened.at)


def test_a_wait_returns_with_the_commit_or_at_its_end(writer: TargetWriter, tmp_path: Path) -> None:
    assert wait(tmp_path, 300).end_lsn == 300
    later = threading.Timer(0.2, _reach, (writer, 400))
    later.start()
    assert wait(tmp_path, "0/190").end_lsn == 400
    later.join()
    with pytest.raises(MirrorBehind, match=r"lsn=0/191.*reached=0/190|reached=0/190.*lsn=0/191"):
        wait(tmp_path, 401, timeout_s=0.1)


@pytest.mark.parametrize("lacking", ["parked", "loading"])
def test_a_wait_is_not_over_where_tables_are_parked_or_still_copied(
    writer: TargetWriter, tmp_path: Path, caplog: pytest.LogCaptureFixture, lacking: str
) -> None:
    """The position of the mirror is not that of these tables. Both commands and the function have one rule."""
    assert writer.version is not None
    entry = TableEntry("shop.public.t", parked=Parked("CDCD-GAP", "CDCD-GAP: a gap", 100, 0.0))
    over: dict[str, Any] = {
        "parked": {"tables": {"shop.public.t": entry}},
        "loading": {"loading": ("shop.public.t",)},
    }
    writer.publish(replace(writer.version, **over[lacking]))
    assert main(["wait", "--target", str(tmp_path), "--lsn", "0/12C", "--timeout-s", "1"]) == 1
    assert "CDCD-MIRROR-PARKED" in caplog.text
    for waits in (
        lambda: wait_mirrored(str(tmp_path), {}, 300, 0, slot="", durable=Durable("0/12C", None, None)),
        lambda: wait(tmp_path, 300, timeout_s=0),
        lambda: wait(tmp_path, 300, timeout_s=0, parked=lacking != "parked", loading=lacking != "loading"),
    ):
        with pytest.raises(TablesParked, match=r"shop\.public\.t"):
            waits()
    assert wait(tmp_path, 300, parked=True, loading=True).end_lsn == 300


def test_a_wait_includes_the_tables_that_are_being_copied(writer: TargetWriter, tmp_path: Path) -> None:
    assert writer.version is not None
    copying = writer.publish(replace(writer.version, loading=("shop.public.t",)))
    complete = replace(copying, end_lsn=400, loading=())
    later = threading.Timer(0.2, writer.publish, (complete,))
    later.start()
    assert wait(tmp_path, 300).loading == []
    later.join()


def test_a_parked_table_is_not_waited_for(writer: TargetWriter, tmp_path: Path) -> None:
    """It stays as it is until somebody copies it again; also while another one is being copied."""
    assert writer.version is not None
    entry = TableEntry("shop.public.t", parked=Parked("CDCD-GAP", "CDCD-GAP: a gap", 100, 0.0))
    tables = {"shop.public.t": entry}
    writer.publish(replace(writer.version, tables=tables, loading=("shop.public.other",)))
    with pytest.raises(TablesParked, match=r"shop\.public\.t"):
        wait(tmp_path, 300, timeout_s=10**6)


def test_a_wait_begins_before_the_mirror(tmp_path: Path) -> None:
    def start() -> None:
        _reach(take_over(tmp_path / "new", TargetVersion("shop", 4)), 100)

    threading.Timer(0.2, start).start()
    assert wait(tmp_path / "new", 100).end_lsn == 100


def test_the_commands_say_what_a_mirror_has(
    writer: TargetWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = ["--target", str(tmp_path)]
    assert main(["wait", *target, "--lsn", "0/12C"]) == 0
    assert "all commits up to 0/12C" in capsys.readouterr().out
    assert main(["wait", *target, "--lsn", "0/12D", "--timeout-s", "1"]) == 1
    assert main(["wait", *target, "--lsn", "301"]) == 2
    assert main(["status", *target]) == 0
    assert "position    0/12C, last commit at 2026-01-01T00:03:00+00:00" in capsys.readouterr().out
    assert writer.version is not None
    parked = TableEntry("shop.public.t", parked=Parked("CDCD-GAP", "CDCD-GAP: a gap", 100, 0.0))
    writer.publish(replace(writer.version, tables={"shop.public.t": parked}))
    assert main(["status", *target, "--output", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["tables"]["shop.public.t"]["state"] == "parked"
    assert found["tables"]["shop.public.t"]["reason"] == "CDCD-GAP: a gap"
    assert main(["status", "--target", str(tmp_path / "none")]) == 2


def test_a_spark_that_forbids_settings_makes_views_nevertheless(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as a managed one: then the log says that the views of an earlier call stay."""

    class Settings:
        def get(self, name: str, default: str | None) -> str | None:
            return default

        def set(self, name: str, value: str) -> None:
            raise PySparkException(f"{name} is not available")

    topic = "shop.public.items"
    take_over(tmp_path, TargetVersion("shop", 4, tables={topic: TableEntry(topic)}, loading=(topic,)))
    spark = cast("SparkSession", SimpleNamespace(conf=Settings()))
    assert consistent_view(spark, tmp_path).views == {}
    assert "does not store the names of the views (PySparkException)" in caplog.text


def test_a_table_has_postgresqls_name_for_each_reader(tmp_path: Path) -> None:
    """As much as its topic's; a table that is still copied is in no view, and not left out of one."""
    topic = f"shop.public.{escape('my table')}"
    entry = TableEntry(topic, keyed=True)
    take_over(tmp_path, TargetVersion("shop", 4, tables={topic: entry}, loading=(topic,)))
    spark = cast("SparkSession", None)
    for name in ("public.my table", topic.removeprefix("shop.")):
        with pytest.raises(SparkReadError, match="still copies"):
            consistent_view(spark, tmp_path, tables=[name])
        with pytest.raises(SparkReadError, match="still copies"):
            changes(spark, tmp_path, name, "v1")
        with pytest.raises(SparkReadError, match="the mirror has no history"):
            history(spark, tmp_path, name)
        with pytest.raises(SparkReadError, match="still copies"):
            MirroredTable(open_storage(tmp_path), name).entry()
