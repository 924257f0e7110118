"""A new target has no path that readers of its format take for another one; a target that exists remains usable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdcd.errors import ConfigError
from cdcd.spark.applying.keyed_table import KeyedTable
from cdcd.spark.formats.readable_paths import check_new_target
from cdcd.spark.mirroring import start
from cdcd.spark.mirroring.metrics import MirrorMetrics
from cdcd.spark.mirroring.retries import Retries
from cdcd.spark.mirroring.session import MirrorSessions, MirrorSettings, Session
from cdcd.spark.storage.uri import open_storage
from cdcd.spark.target.versions import TableFormat
from tests.spark.batches import Batches
from tests.spark.unit.test_open_tables import BODY, ID, mirrored, newest, row

NAMES = ["la%20ke", "100%", "a\\b"]


@pytest.mark.parametrize("name", NAMES)
def test_a_local_path_that_readers_of_delta_decode_is_refused(tmp_path: Path, name: str) -> None:
    target = open_storage(str(tmp_path / name))
    with pytest.raises(ConfigError, match="% or a backslash"):
        check_new_target(target, "delta")
    check_new_target(target, "iceberg")
    check_new_target(target, "parquet")


def test_the_path_is_the_one_behind_a_link(tmp_path: Path) -> None:
    """delta-rs follows links before it makes a URI of a path."""
    for name, to in (("plain", "a%20b"), ("c%20d", "simple")):
        (tmp_path / to).mkdir()
        (tmp_path / name).symlink_to(tmp_path / to)
    with pytest.raises(ConfigError):
        check_new_target(open_storage(str(tmp_path / "plain")), "delta")
    check_new_target(open_storage(str(tmp_path / "c%20d" / "new")), "delta")


@pytest.mark.parametrize("name", ["lake", "é ü", "a+b", "x[1]", "a#b", "a:b", "it's", "~x"])
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_other_paths_are_accepted(tmp_path: Path, name: str, table_format: TableFormat) -> None:
    check_new_target(open_storage(str(tmp_path / name)), table_format)


def test_a_uri_that_the_metadata_of_iceberg_would_have_encoded_is_refused() -> None:
    for uri in ("s3://lake/a%20b", "gs://lake/100%", "abfss://lake@a.dfs.core.windows.net/a%2Fb"):
        with pytest.raises(ConfigError, match="has a %"):
            check_new_target(open_storage(uri), "iceberg")
        check_new_target(open_storage(uri), "delta")
    check_new_target(open_storage("s3://lake/a b"), "iceberg")


class Opened(Exception):
    """The first session of a mirror is opened."""


class Sessions(MirrorSessions):
    """The sessions of a mirror, without servers."""

    def open(self) -> Session:
        raise Opened


def started(target: Path, table_format: TableFormat) -> None:
    given: Any = {"connection": None, "target_options": None, "source_options": {}, "interval_s": None}
    settings = MirrorSettings(
        **given,
        target=str(target),
        buckets=4,
        driver_bytes=1,
        accept_gaps=False,
        accept_cluster=False,
        on_error="fail",
        retain_s=600.0,
        table_format=table_format,
    )
    sessions: Any = Sessions(None, settings, MirrorMetrics(), Retries(0))
    start._started(sessions, "127.0.0.1", None, None)


@pytest.mark.parametrize("name", NAMES)
def test_a_mirror_is_refused_before_it_writes(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="backslash"):
        started(tmp_path / name, "delta")
    assert not (tmp_path / name).exists()
    with pytest.raises(Opened):
        started(tmp_path / name, "parquet")


def test_a_target_that_exists_is_not_refused(tmp_path: Path) -> None:
    items = Batches(tmp_path / "100%", [ID, BODY], table_format="delta")
    for lsn in (10, 20):
        items.run([items.change("c", lsn, 1, after=row(lsn, "a"))], loading=False)
        with pytest.raises(Opened):
            started(items.target, "delta")
    assert newest(items) == mirrored(items.target) == [row(10, "a"), row(20, "a")]


def test_a_new_table_of_apply_changes_is_refused_before_it_is_written(tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array([1], pa.int64())})
    table = KeyedTable(open_storage(str(tmp_path / "100%")), "", ["id"])
    with pytest.raises(ConfigError, match="backslash"):
        table.create(rows, {}, "")
    assert not (tmp_path / "100%").exists()
