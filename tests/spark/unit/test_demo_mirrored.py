"""What the demo takes as a sign that the mirror works."""

from __future__ import annotations

from pathlib import Path

from cdcd.demo.mirrored import Mirror
from cdcd.spark.storage.uri import open_storage
from cdcd.spark.target.target_writer import TargetWriter
from cdcd.spark.target.versions import TargetVersion


def test_a_file_of_an_unfinished_batch_is_activity(tmp_path: Path) -> None:
    """The first batch may take minutes on a busy machine; the version changes only at its end."""
    mirror = Mirror(tmp_path, "shop")
    before = mirror.activity()
    (tmp_path / "shop.public.orders").mkdir()
    (tmp_path / "shop.public.orders" / "0001.parquet").touch()
    assert mirror.activity() != before
    assert mirror.activity() == mirror.activity()


def test_an_applied_batch_is_activity(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path, "shop")
    storage = open_storage(str(tmp_path), {})
    writer = TargetWriter(storage, None)
    version = writer.publish(TargetVersion("shop", 4))
    before = mirror.activity()
    writer.publish(version)
    assert mirror.activity() != before
