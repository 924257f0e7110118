"""A mirror's target belongs to one prefix of one cluster, and only one process at a time writes to it (F80)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.errors import SparkReadError, StorageConflict, StorageError
from cdcd.spark import mirror, read_mirror, testing
from cdcd.spark.mirroring.dropped_tables import drop_table
from cdcd.spark.target import ownership as targets
from cdcd.spark.target.commit_log import path_of, read_latest
from cdcd.spark.target.left_files import sweep
from cdcd.spark.target.ownership import refuse_anothers, starting_version, take
from cdcd.spark.target.target_writer import take_over
from cdcd.spark.target.versions import TableEntry, TargetVersion
from tests.spark.events import column
from tests.spark.topics import TopicsWriter, rows_of, run_mirror
from tests.support.hints import hint_of

HOLD = """
import sys
from cdcd.spark.target.ownership import take
held = take(sys.argv[1])
print('held', flush=True)
input()
"""


@contextmanager
def another_process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run another process that writes to the target."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_target_that_another_process_writes_to_is_refused_and_free_when_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with another_process(tmp_path) as other:
        with monkeypatch.context() as patch:
            patch.setattr(targets, "_WITHIN_S", 0.3)
            with pytest.raises(StorageConflict, match="another mirror writes to the target"):
                take(tmp_path)
        other.kill()
        take(tmp_path)


def test_a_mirror_that_has_ended_or_did_not_start_leaves_its_target_to_another_process(
    spark: SparkSession, topics: TopicsWriter, tmp_path: Path
) -> None:
    """The process goes on, such as a notebook, and would hold the lock until its end."""
    items = topics.table("items", [column("id", "int", required=True)])
    topics.commit(10, topics.change(items, "c", 10, 1, after={"id": 1}))
    run_mirror(spark, topics, tmp_path)
    with another_process(tmp_path):
        pass
    with pytest.raises(SparkReadError, match="another format"):
        mirror(spark, topics.connection, str(tmp_path), format="iceberg")
    with another_process(tmp_path):
        pass


class Running:
    isActive = True  # noqa: N815 - the name that Spark gives it


def test_a_process_has_one_query_at_a_time_for_a_target(tmp_path: Path) -> None:
    held = take(tmp_path)
    assert take(tmp_path) is held, "no query has started"
    held.query = running = Running()
    with pytest.raises(StorageConflict, match="another query of this process"):
        take(tmp_path / ".")
    running.isActive = False
    assert take(tmp_path) is held


@pytest.mark.parametrize(
    ("version", "refused"),
    [
        (None, None),
        (TargetVersion("shop", 4, cluster="A"), None),
        (TargetVersion("shop", 4, cluster="B"), "another Kafka cluster"),
        (TargetVersion("other", 4, cluster="A"), "another prefix"),
    ],
    ids=["none", "ours", "another cluster's", "another prefix's"],
)
def test_a_target_goes_on_with_what_it_mirrors(
    version: TargetVersion | None, refused: str | None, tmp_path: Path
) -> None:
    if version is not None:
        take_over(tmp_path, version)
    if refused is not None:
        with pytest.raises(SparkReadError, match=refused):
            starting_version(tmp_path, "shop", 8, "A")
        return
    found = starting_version(tmp_path, "shop", 8, "A")
    assert (found.prefix, found.cluster, found.buckets) == ("shop", "A", 8 if version is None else 4)


@pytest.mark.parametrize("loading", [(), ("shop.public.b",)], ids=["complete", "loading"])
def test_a_start_with_fewer_topics_than_the_target_has_is_refused(
    tmp_path: Path, loading: tuple[str, ...]
) -> None:
    """Its rows would not change any more, and no reader would know: also not that it lacks rows."""
    a, b, c = (f"shop.public.{name}" for name in "abc")
    tables = {topic: TableEntry(topic) for topic in (a, b)}
    take_over(tmp_path, TargetVersion("shop", 4, cluster="A", tables=tables, loading=loading))
    with pytest.raises(
        SparkReadError, match=r"lack tables of the target.*tables=shop\.public\.b\b"
    ) as raised:
        starting_version(tmp_path, "shop", 4, "A", topics=[a])
    assert "drop-table" in str(hint_of(str(raised.value)))
    assert starting_version(tmp_path, "shop", 4, "A", topics=[a, b, c]).loading == loading
    assert starting_version(tmp_path, "shop", 4, "A").tables.keys() == {a, b}
    drop_table(tmp_path, "public.b")
    assert starting_version(tmp_path, "shop", 4, "A", topics=[a]).tables.keys() == {a}


def test_a_folder_of_somebody_elses_is_refused_and_nothing_is_removed_there(
    spark: SparkSession, topics: TopicsWriter, tmp_path: Path
) -> None:
    """F79: a mirror's start once removed every Parquet file one folder below, and another query's checkpoint."""
    lake = tmp_path / "lake"
    theirs = [lake / "customers" / "part-0000.parquet", lake / "_checkpoint" / "offsets", lake / "notes"]
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("theirs")
    with pytest.raises(SparkReadError, match="not empty") as refused:
        run_mirror(spark, topics, lake)
    assert "customers" in str(refused.value)
    assert sorted(path for path in lake.rglob("*") if path.is_file()) == sorted(theirs)


def test_a_volume_that_was_just_made_is_empty(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir(mode=0)
    (tmp_path / ".snapshot").mkdir()
    refuse_anothers(tmp_path)
    (tmp_path / "_lock").touch()
    refuse_anothers(tmp_path)


def test_a_mirror_that_was_cut_off_before_its_first_version_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "_data" / "shop.public.t"
    folder.mkdir(parents=True)
    (tmp_path / "_cdcd").mkdir()
    own = folder / f"0001-{'a' * 32}.parquet"
    for path in (tmp_path / "_lock", own, tmp_path / f"{path_of(1)}.{'b' * 32}"):
        path.write_text("")
    refuse_anothers(tmp_path)
    sweep(tmp_path)
    assert not own.exists()


def test_what_a_mirror_did_not_make_stays_in_its_target(tmp_path: Path) -> None:
    take_over(tmp_path, TargetVersion("shop", 4, cluster="A"))
    theirs = [tmp_path / "export" / "part-0000.parquet", tmp_path / "_cdcd" / "notes"]
    theirs[0].parent.mkdir()
    for path in theirs:
        path.write_text("theirs")
    refuse_anothers(tmp_path)
    sweep(tmp_path)
    assert all(path.exists() for path in theirs)


@pytest.mark.nightly  # the others refuse, too
def test_a_mirror_writes_down_which_cluster_it_is_of_and_refuses_another(
    spark: SparkSession, topics: TopicsWriter, tmp_path: Path
) -> None:
    """Two clusters may have topics of the same name."""
    items = topics.table("items", [column("id", "int", required=True)])
    topics.commit(10, topics.change(items, "r", 10, 1, after={"id": 1}))
    target = tmp_path / "mirror"
    run_mirror(spark, topics, target)
    found = read_latest(target)
    assert found is not None
    assert found.cluster
    take_over(target, replace(found, cluster="elsewhere"))
    with pytest.raises(SparkReadError, match="another Kafka cluster") as raised:
        run_mirror(spark, topics, target)
    hint = hint_of(str(raised.value))
    assert "choose another target" in hint
    assert rows_of(run_mirror(spark, topics, tmp_path / "another"), items) == [{"id": 1}]
    refused = read_latest(target)
    assert refused is not None
    assert refused.cluster == "elsewhere"
    assert "--accept-cluster" in hint
    assert rows_of(run_mirror(spark, topics, target, accept_cluster=True), items) == [{"id": 1}]
    assert rows_of(run_mirror(spark, topics, target), items) == [{"id": 1}]


@pytest.mark.parametrize("is_absolute", [True, False])
def test_a_record_names_no_file_outside_of_its_target(tmp_path: Path, is_absolute: bool) -> None:
    """Who writes only the records would read the rows of other targets through this one."""
    items = testing.Table("public.items", {"id": "bigint"}, key=["id"])
    shop, other = testing.Database(items), testing.Database(items)
    for number, database in enumerate((shop, other)):
        database.commit(items.insert(id=number))
        database.mirror(tmp_path / str(number))
    (secret,) = (tmp_path / "1").rglob("*.parquet")
    version = read_latest(tmp_path / "0")
    assert version is not None
    record = tmp_path / "0" / path_of(version.number)
    fields = json.loads(record.read_bytes())
    for file in (*fields["tables"][items.topic]["files"], *fields["tables"][items.topic]["deltas"]):
        file["path"] = str(secret) if is_absolute else f"../{secret.relative_to(tmp_path)}"
    record.write_text(json.dumps(fields))
    with pytest.raises(StorageError, match="leads out of the target"):
        read_mirror(tmp_path / "0").table(items.topic)
