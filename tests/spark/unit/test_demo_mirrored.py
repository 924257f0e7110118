"""What the demo takes as a sign that the mirror works."""

from __future__ import annotations

from pathlib import Path

from cdcd.demo.mirrored import Mirror
from cdcd.spark.manifest import Manifest, write_manifest
from cdcd.spark.storage import open_storage


def test_a_file_of_an_unfinished_batch_is_activity(tmp_path: Path) -> None:
    """The first batch may take minutes on a busy machine; the manifest changes only at its end."""
    mirror = Mirror(tmp_path, "shop")
    before = mirror.activity()
    (tmp_path / "shop.public.orders").mkdir()
    (tmp_path / "shop.public.orders" / "0001.parquet").touch()
    assert mirror.activity() != before
    assert mirror.activity() == mirror.activity()


def test_an_applied_batch_is_activity(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path, "shop")
    storage = open_storage(str(tmp_path), {})
    write_manifest(storage, Manifest("shop", 4, version=1))
    before = mirror.activity()
    write_manifest(storage, Manifest("shop", 4, version=2))
    assert mirror.activity() != before
