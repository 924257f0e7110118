"""A wrong argument is one error that names it and says what to write, before anything else happens."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from cdcd.errors import ConfigError, MirrorBehind, SparkReadError
from cdcd.spark import apply_changes, consistent_view, history, mirror, read_mirror, register, wait
from cdcd.spark.__main__ import main
from cdcd.spark.commands.running import run_query
from cdcd.spark.reading.plain_views import plain_views
from cdcd.spark.source.source_position import SlotPosition
from cdcd.spark.target.target_writer import take_over
from cdcd.spark.target.versions import TargetVersion
from cdcd.spark.testing import Database, Table

NO_SPARK = cast(SparkSession, object())
OF_THE_DAEMON = "cdcd check"
"""The hint of a wrong configuration, which has nothing to do with an argument of a function."""


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ({"format": "csv"}, "unknown format", "'parquet' or 'delta' or 'iceberg'"),
        ({"stored_as_scd_type": 3}, "unknown stored_as_scd_type", "1 or 2"),
        ({"on_error": "skip"}, "unknown on_error", "'park' or 'fail'"),
        ({"dropped_columns": "kept"}, "unknown dropped_columns", "'drop' or 'keep'"),
        ({"changed_types": "new"}, "unknown changed_types", "'park' or 'new_column' or 'fail'"),
        ({"max_rows": 0}, "max_rows of the mirror is too small", "from 1 on"),
        ({"buckets": 0}, "buckets of the mirror is too small", "from 1 on"),
        ({"driver_bytes": -1}, "driver_bytes of the mirror is too small", "from 0 on"),
        ({"retain_s": -1}, "retain_s of the mirror is too small", "from 0 on"),
        ({"retry_s": -1}, "retry_s of the mirror is too small", "from 0 on"),
        ({"history_retain_s": 60.0}, "needs a mirror with a history", "stored_as_scd_type=2"),
        ({"topics": "shop.public.orders"}, "topics has to be a list", r"topics=\[...\]"),
        ({"tables": "public.orders"}, "tables has to be a list", r"tables=\[...\]"),
        ({"tables": ["public.a"], "topics": ["shop.public.a"]}, "exclude each other", "one of them"),
        ({"trigger": "often"}, "'often' is not an interval", '"2 seconds"'),
        ({"catalog": "shop..x"}, "not a namespace", "CATALOG.DATABASE"),
        ({"config": "cdcd.yaml"}, "needs a connection or the path", "pass one of them"),
    ],
)
def test_an_argument_of_a_mirror(
    tmp_path: Path, arguments: Mapping[str, Any], message: str, hint: str
) -> None:
    connection = Database(Table("public.a", {"id": "int"})).connection
    with pytest.raises(ConfigError, match=f"{message}.*-> .*{hint}") as raised:
        mirror(NO_SPARK, connection, str(tmp_path / "mirror"), **arguments)
    assert OF_THE_DAEMON not in str(raised.value)
    assert not (tmp_path / "mirror").exists(), "the target is not touched"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A mirror with a history of a table."""
    items = Table("public.items", {"id": "int", "n": "int"}, key=["id"])
    shop = Database(items)
    shop.commit(items.insert(id=1, n=2))
    shop.mirror(tmp_path, stored_as_scd_type=2)
    return tmp_path


def test_a_text_is_no_list_of_names(target: Path) -> None:
    """Its letters could even be names of columns."""
    with pytest.raises(ConfigError, match=r"tables has to be a list of names -> write tables=\[\.\.\.\]"):
        consistent_view(NO_SPARK, target, tables="public.items")
    with pytest.raises(ConfigError, match="tables has to be a list of names"):
        plain_views(read_mirror(target), tables="public.items")
    for name in ("track_history_column_list", "track_history_except_column_list"):
        with pytest.raises(ConfigError, match=f"{name} has to be a list of names"):
            history(NO_SPARK, target, "public.items", **cast(Any, {name: "n"}))


def test_hints_are_those_of_the_argument(target: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such column \[columns=m\] -> .*the columns are id, n"):
        history(NO_SPARK, target, "public.items", track_history_column_list=["m"])
    with pytest.raises(ConfigError, match="exclude each other -> pass only one"):
        history(
            NO_SPARK,
            target,
            "public.items",
            track_history_column_list=[],
            track_history_except_column_list=[],
        )
    with pytest.raises(ConfigError, match="unknown dialect 'mysql' -> use duckdb or spark"):
        plain_views(read_mirror(target), "mysql")


def test_a_position_of_another_type_is_no_position(target: Path) -> None:
    for wrong in (date(2026, 1, 1), 1.5, ["0/1"]):
        with pytest.raises(ConfigError, match="neither an LSN nor a time"):
            read_mirror(target, at=cast(Any, wrong))


def test_an_lsn_to_wait_for_is_written_as_postgresql_does(target: Path) -> None:
    with pytest.raises(ConfigError, match=r"not an LSN: 'B374D848' -> .*16/B374D848"):
        wait(target, "B374D848", timeout_s=0)


def test_a_wait_for_a_target_without_a_mirror_says_that_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(MirrorBehind, match=r"there is no mirror at the target.*-> correct the target"):
        wait(tmp_path / "shpo", "0/1", timeout_s=0)
    assert not (tmp_path / "shpo").exists()


def test_the_target_of_a_mirror_is_none_of_changes(target: Path, spark: SparkSession) -> None:
    """The mirror removes unknown files of its target, so the table would lose its files."""
    before = sorted(target.rglob("*"))
    frame = spark.createDataFrame([(1, 1)], "id int, n int")
    with pytest.raises(ConfigError, match=r"that of a mirror .*-> choose an empty target"):
        apply_changes(frame, target, ["id"], "n")
    assert sorted(target.rglob("*")) == before


def test_a_slot_that_the_mirror_does_not_have_is_shown_with_its_slots(tmp_path: Path) -> None:
    positions = {"cdcd_shop": SlotPosition(500, "7", 1)}
    take_over(tmp_path, TargetVersion("shop", 4, end_lsn=500, positions=positions))
    with pytest.raises(MirrorBehind, match=r"slot=cdcd_shpo slots_of_mirror=cdcd_shop\b"):
        wait(tmp_path, 100, slot="cdcd_shpo", timeout_s=0)


def test_registering_needs_both(target: Path, spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="both a target and a catalog -> pass both"):
        register(spark, target)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--retain", "often"], "'often' is not an interval"),
        (["--history-retain", "often", "--scd", "2"], "'often' is not an interval"),
        (["--history-retain", "1 day"], "--history-retain with --scd 2"),
        (["--target", "ftp://host/path"], "the scheme of the target is unknown"),
    ],
)
def test_a_command_reports_a_wrong_argument_before_it_starts_spark(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(
        "cdcd.spark.commands.running.submitted_or_local", lambda *_: pytest.fail("Spark starts")
    )
    named = ["--brokers", "localhost:1", "--prefix", "shop", "--registry", "http://localhost:1"]
    assert main(["mirror", *named, "--target", str(tmp_path / "mirror"), *words]) == 1
    (line,) = [one for one in caplog.messages if "stopped" in one]
    assert message in line


def test_the_errors_of_a_reader_are_about_the_mirror(
    target: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither about topics and offsets, which a reader does not have, nor about another target."""
    opened = read_mirror(target)
    no_table = r"the mirror has no such table \[table=public\.itemz target=.*\] -> did you mean public\.items"
    with pytest.raises(SparkReadError, match=no_table):
        consistent_view(NO_SPARK, target, tables=["public.itemz"])
    with pytest.raises(SparkReadError, match=no_table):
        history(NO_SPARK, target, "public.itemz")
    with pytest.raises(SparkReadError, match=no_table):
        plain_views(opened, tables=["public.itemz"])
    with pytest.raises(SparkReadError, match="no table of the mirror matches the pattern"):
        consistent_view(NO_SPARK, target, tables=["sales.*"])
    with pytest.raises(SparkReadError, match=r"no table of this topic.*-> pass one of `topics`"):
        opened.table("public.items")
    with pytest.raises(SparkReadError, match=r"is no Delta table.*-> the format of the mirror is parquet"):
        opened.delta_table("testing.public.items")
    with pytest.raises(SparkReadError, match=r"no such version .*newest=\d+\] -> correct the number"):
        read_mirror(target, at="v999")
    for at in (None, "0/1"):
        with pytest.raises(SparkReadError, match=r"there is no mirror .*-> correct the target"):
            read_mirror(tmp_path / "shpo", at=at)
    assert main(["drop-table", "--target", str(target), "--table", "public.itemz"]) == 2
    assert "the mirror has no such table" in caplog.messages[-1]


class _Ended:
    """A session whose JVM has ended, by a signal to all processes of the command."""

    def stop(self) -> None:
        raise ConnectionRefusedError


class _Query:
    isActive = False  # noqa: N815 - the name that Spark gives it

    def exception(self) -> None:
        return None

    def stop(self) -> None:
        pass


def test_a_command_ends_without_a_trace_if_a_signal_has_ended_the_jvm_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A service manager sends SIGTERM to all processes of a service."""
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("cdcd.spark.commands.running.submitted_or_local", lambda *_: _Ended())
    options = Namespace(cores="1", memory="1g")
    assert run_query("mirror", options, lambda: lambda _: _Query()) == 0
