"""The manifest: the list of a Parquet mirror's tables and files, replaced by one rename.

    <target>/manifest.json  <target>/<topic>/<bucket>-<unique>.parquet  <target>/_checkpoint/

In: the folder of a mirror.  Out: per table its columns, files, row counts, and the last applied change.
Invariant: one rename moves all tables from one PostgreSQL commit to a later one; files that a manifest names are
complete and on disk before the manifest is; the files of the previous manifest exist until the next one, for its
readers.
Must not: know Spark or Kafka.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cdcd.errors import SparkReadError
from cdcd.spark.cuts import Offsets
from cdcd.spark.events import BEGINNING, Sequence
from cdcd.spark.shape import MISSING, MISSING_TYPE, Field, TableShape, aligned, arrow_schema, as_complete

NAME = "manifest.json"
FORMAT = 3
BEFORE_INCOMPLETE = 2
"""The format without loading tables and incomplete rows."""
_BUCKET = re.compile(r"\d{4,}-[0-9a-f]{32}\.parquet")
_TEMPORARY = re.compile(re.escape(NAME) + r"\.[0-9a-f]{32}")
BEFORE_TIMELINES = 1
"""The format whose sequences have no timeline."""


@dataclass(frozen=True, slots=True)
class BucketFile:
    """One Parquet file: the rows of a hash bucket. `columns` are the numbers of its fields, in its order."""

    bucket: int
    path: str
    rows: int
    columns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One table of the mirror. `keyed` None: no row was read yet."""

    topic: str
    keyed: bool | None = None
    schema_id: int = 0
    value_schema: Any = None
    fields: tuple[Field, ...] = ()
    next_number: int = 1
    applied: Sequence = BEGINNING
    files: tuple[BucketFile, ...] = ()
    incomplete: tuple[BucketFile, ...] = ()
    """Files of rows of a loading table that have columns without a value; no reader of the mirror sees these rows."""

    @property
    def rows(self) -> int:
        """The number of complete rows."""
        return sum(one.rows for one in self.files)

    def shape(self) -> TableShape:
        """Return the table's shape for reading and folding."""
        return TableShape(self.topic, bool(self.keyed), self.fields, self.applied)


@dataclass(frozen=True, slots=True)
class Manifest:
    """All tables as of one PostgreSQL commit. `offsets`: the next offsets of every partition read."""

    prefix: str
    buckets: int
    version: int = 0
    commit_lsn: int = 0
    offsets: Offsets = field(default_factory=dict)
    tables: dict[str, TableEntry] = field(default_factory=dict)
    cluster: str = ""
    """The id of the mirrored Kafka cluster; "" if an older version has written the manifest."""
    replaced: tuple[str, ...] = ()
    """Files of the previous manifest that this one no longer has."""
    loading: tuple[str, ...] = ()
    """The topics of the tables that cdcd copies incrementally at this commit: rows are still missing."""

    def files(self) -> set[str]:
        """Return the paths of all files, below the target."""
        return {one.path for table in self.tables.values() for one in (*table.files, *table.incomplete)}


def read_manifest(target: str | Path) -> Manifest | None:
    """Return the manifest, None if there is none. Raises SparkReadError for an unknown format."""
    path = Path(target) / NAME
    try:
        fields = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    written_as = fields.pop("format", None)
    if written_as not in (FORMAT, BEFORE_INCOMPLETE, BEFORE_TIMELINES):
        raise SparkReadError("the manifest has an unknown format", path=path)
    for entry in fields["tables"].values():
        if written_as == BEFORE_TIMELINES:
            entry["applied"] = [BEGINNING.timeline, *entry["applied"]]
    fields["tables"] = {topic: _table(entry) for topic, entry in fields["tables"].items()}
    for name in ("replaced", "loading"):
        fields[name] = tuple(fields.get(name, ()))
    return Manifest(**fields)


def _table(entry: dict[str, Any]) -> TableEntry:
    entry["fields"] = tuple(Field(**one) for one in entry["fields"])
    entry["applied"] = Sequence(*entry["applied"])
    for name in ("files", "incomplete"):
        entry[name] = tuple(
            BucketFile(one["bucket"], one["path"], one["rows"], tuple(one["columns"]))
            for one in entry.get(name, ())
        )
    return TableEntry(**entry)


def write_manifest(target: str | Path, manifest: Manifest) -> None:
    """Replace the manifest by one rename, then remove the files that neither this nor the previous manifest names."""
    folder = Path(target)
    before = read_manifest(folder)
    if (before.version if before else 0) != manifest.version - 1:
        raise SparkReadError("another process has changed the mirror meanwhile", path=folder)
    gone = sorted((before.files() if before else set()) - manifest.files())
    manifest = replace(manifest, replaced=tuple(gone))
    temporary = folder / f"{NAME}.{uuid.uuid4().hex}"
    with temporary.open("w") as file:
        json.dump({"format": FORMAT, **asdict(manifest)}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / NAME)
    _sync_folder(folder)
    remove_files(folder, set(before.replaced if before else ()) - manifest.files())


def remove_files(target: str | Path, paths: Iterable[str]) -> None:
    """Remove files below the target; ignore those that do not exist."""
    for path in paths:
        (Path(target) / path).unlink(missing_ok=True)


def sweep(target: str | Path) -> None:
    """Remove files left by a crash: files of a mirror that neither the manifest nor the previous one names."""
    folder = Path(target)
    manifest = read_manifest(folder)
    named = (manifest.files() | set(manifest.replaced)) if manifest else set()
    own = manifest.tables.keys() if manifest else ()  # the folders of its tables belong only to the mirror
    found = (path for path in folder.glob("*/*.parquet") if path.parent.name in own or _is_bucket(path))
    left = {str(path.relative_to(folder)) for path in found}
    remove_files(folder, (path for path in left - named if not path.startswith("_")))
    remove_files(folder, (path.name for path in folder.glob(f"{NAME}.*") if _is_temporary(path)))


def is_of_a_mirror(path: Path) -> bool:
    """Return whether a mirror creates a file or folder of this name in its target, in addition to the manifest."""
    return _is_temporary(path) or (path.is_dir() and all(map(_is_bucket, path.iterdir())))


def _is_bucket(path: Path) -> bool:
    return _BUCKET.fullmatch(path.name) is not None


def _is_temporary(path: Path) -> bool:
    return _TEMPORARY.fullmatch(path.name) is not None


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bucket(target: str | Path, shape: TableShape, bucket: int, rows: pa.Table) -> BucketFile:
    """Write a bucket's rows into a new file with a unique name, and make it durable."""
    folder = Path(target) / shape.topic
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{bucket:04d}-{uuid.uuid4().hex}.parquet"
    pq.write_table(rows, path, compression="snappy", use_dictionary=False, write_statistics=False)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    _sync_folder(folder)
    numbers = tuple(one.number for one in shape.fields)
    return BucketFile(bucket, f"{shape.topic}/{path.name}", rows.num_rows, numbers)


def read_bucket(target: str | Path, shape: TableShape, file: BucketFile | None) -> pa.Table:
    """Return a bucket's rows with the current columns."""
    if file is None:
        return arrow_schema(shape.fields).empty_table()
    return _current(pq.ParquetFile(Path(target) / file.path).read(), file, shape)


def read_incomplete(target: str | Path, shape: TableShape, file: BucketFile | None) -> pa.Table:
    """Return a bucket's incomplete rows with the current columns and `__missing`."""
    if file is None:
        return as_complete(read_bucket(target, shape, None))
    rows = pq.ParquetFile(Path(target) / file.path).read()
    current = _current(rows.drop_columns([MISSING]), file, shape)
    return current.append_column(MISSING, rows.column(MISSING).cast(MISSING_TYPE))


def _current(rows: pa.Table, file: BucketFile, shape: TableShape) -> pa.Table:
    if rows.schema.equals(arrow_schema(shape.fields)) and file.columns == tuple(
        one.number for one in shape.fields
    ):
        return rows
    return aligned(rows, file.columns, shape)
