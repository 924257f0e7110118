"""Readers of Delta and Iceberg that know nothing of the mirror, and another writer of its tables.

In: the folder of a mirror, or a mirror as of one version.  Out: rows, and the files that the newest version has.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.table import StaticTable

from cdcd.spark.formats.iceberg_log import IcebergLog
from cdcd.spark.formats.open_schemas import iceberg_schema
from cdcd.spark.formats.table_log import CommitLabel, Part
from cdcd.spark.reading.mirror import Mirror, read_mirror
from cdcd.spark.storage.uri import open_storage
from cdcd.spark.tables.table_files import read_bucket, write_part
from tests.spark.batches import TOPIC

FOLDER = "public.items"


class _NoLabel(CommitLabel):
    """What a commit of another program says about the mirror: nothing."""

    @property
    def texts(self) -> dict[str, str]:
        return {}


class ForeignReader(Protocol):
    """Another implementation of a format."""

    def newest(self, target: Path, folder: str = FOLDER) -> pa.Table: ...

    def opened(self, target: Path) -> Callable[[], pa.Table]:
        """Open the newest version; return what reads it later."""

    def recorded(self, opened: Mirror, topic: str = TOPIC) -> pa.Table: ...

    def files(self, target: Path) -> set[str]: ...

    def log(self, target: Path) -> Path: ...

    def append(self, target: Path) -> None: ...


class DeltaRs:
    def newest(self, target: Path, folder: str = FOLDER) -> pa.Table:
        return DeltaTable(str(target / folder)).to_pyarrow_table()

    def opened(self, target: Path) -> Callable[[], pa.Table]:
        return DeltaTable(str(target / FOLDER)).to_pyarrow_table

    def recorded(self, opened: Mirror, topic: str = TOPIC) -> pa.Table:
        uri, version = opened.delta_table(topic)
        return DeltaTable(uri, version=version).to_pyarrow_table()

    def files(self, target: Path) -> set[str]:
        return {one.removeprefix("file://") for one in DeltaTable(str(target / FOLDER)).file_uris()}

    def log(self, target: Path) -> Path:
        return target / FOLDER / "_delta_log"

    def append(self, target: Path) -> None:
        table = DeltaTable(str(target / FOLDER))
        write_deltalake(table, table.to_pyarrow_table().slice(0, 1), mode="append")


class PyIceberg:
    def newest(self, target: Path, folder: str = FOLDER) -> pa.Table:
        return self._table(target, folder).scan().to_arrow()

    def opened(self, target: Path) -> Callable[[], pa.Table]:
        return self._table(target, FOLDER).scan().to_arrow

    def recorded(self, opened: Mirror, topic: str = TOPIC) -> pa.Table:
        return StaticTable.from_metadata(opened.iceberg_table(topic)).scan().to_arrow()

    def files(self, target: Path) -> set[str]:
        return {one.file.file_path for one in self._table(target, FOLDER).scan().plan_files()}

    def log(self, target: Path) -> Path:
        return target / FOLDER / "metadata"

    def append(self, target: Path) -> None:
        """Without a catalog PyIceberg does not write, so a second writer of the project does."""
        storage, version = open_storage(str(target)), read_mirror(target).version
        entry = version.tables[TOPIC]
        assert entry.table_version is not None
        schema, label = iceberg_schema(entry.fields), _NoLabel(TOPIC, 1, "0/0")
        rows = read_bucket(storage, entry.shape(), entry.files[0]).slice(0, 1)
        log = IcebergLog(storage, FOLDER, version.retain_s)
        log.restore(entry.table_version, entry.files, label)
        log.commit(schema, [Part(*write_part(storage, entry.shape(), schema, FOLDER, rows))], [], label)

    def _table(self, target: Path, folder: str) -> StaticTable:
        return StaticTable.from_metadata(str(target / folder))


READERS: dict[str, ForeignReader] = {"delta": DeltaRs(), "iceberg": PyIceberg()}
