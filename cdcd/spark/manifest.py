"""The manifest: the list of a Parquet mirror's tables and files, replaced by one conditional write.

    <target>/manifest.json  <target>/<topic>/<bucket>-<unique>.parquet  <target>/_checkpoint/

In: the storage of a mirror.  Out: per table its columns, files, row counts, and the last applied change.
Invariant: one write moves all tables from one PostgreSQL commit to a later one, and succeeds only if nobody else has
replaced the manifest since; files that a manifest names are complete and durable before the manifest is; the files of
the previous manifest exist until the next one, for its readers.
Must not: know Spark or Kafka.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cdcd.errors import SparkReadError, StorageConflict, StorageError
from cdcd.spark.cuts import Offsets
from cdcd.spark.events import BEGINNING, Sequence
from cdcd.spark.shape import MISSING, MISSING_TYPE, Field, TableShape, aligned, arrow_schema, as_complete
from cdcd.spark.storage import Storage, Stored, Target, open_storage

NAME = "manifest.json"
MAX_BYTES = 256 << 20
FORMAT = 4
BEFORE_WRITERS = 3
"""The format without the writer."""
BEFORE_INCOMPLETE = 2
"""The format without loading tables and incomplete rows."""
BEFORE_TIMELINES = 1
"""The format whose sequences have no timeline."""
_BUCKET = re.compile(r"\d{4,}-[0-9a-f]{32}\.parquet(\.[0-9a-f]{32})?")
_TEMPORARY = re.compile(re.escape(NAME) + r"\.[0-9a-f]{32}")
"""What a crash leaves in a local folder has 32 more digits."""


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
    """The topics of the tables that cdcd still copies at this commit: rows are still missing."""
    writer: str = ""
    """The random id of the query that has written the manifest; "" in older formats."""

    def files(self) -> set[str]:
        """Return the paths of all files, below the target."""
        return {one.path for table in self.tables.values() for one in (*table.files, *table.incomplete)}


def read_manifest(target: Target) -> Manifest | None:
    """Return the manifest, None if there is none. Raises SparkReadError for an unknown format, StorageError."""
    storage = open_storage(target)
    stored = storage.read_versioned(NAME, max_bytes=MAX_BYTES)
    return None if stored is None else _parsed(storage, stored)


def _parsed(storage: Storage, stored: Stored) -> Manifest:
    try:
        fields = json.loads(stored.data)
        written_as = fields.pop("format", None)
    except (ValueError, AttributeError) as error:
        raise SparkReadError(
            "the manifest is not readable", hint="restore it from a backup of the target", target=storage.uri
        ) from error
    if written_as not in (FORMAT, BEFORE_WRITERS, BEFORE_INCOMPLETE, BEFORE_TIMELINES):
        raise SparkReadError("the manifest has an unknown format", target=storage.uri, file=NAME)
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


def write_manifest(target: Target, manifest: Manifest) -> None:
    """Publish the successor of the manifest, then remove the files that neither this nor the previous one names.

    Raises StorageConflict if another writer has published one since; then nothing of this one is visible.
    """
    storage = open_storage(target)
    stored = storage.read_versioned(NAME, max_bytes=MAX_BYTES)
    before = None if stored is None else _parsed(storage, stored)
    if (before.version if before else 0) != manifest.version - 1:
        raise StorageConflict("another writer has changed the mirror meanwhile", target=storage.uri)
    gone = sorted((before.files() if before else set()) - manifest.files())
    data = json.dumps({"format": FORMAT, **asdict(replace(manifest, replaced=tuple(gone)))}).encode()
    _publish(storage, data, stored)
    remove_files(storage, set(before.replaced if before else ()) - manifest.files())


def _publish(storage: Storage, data: bytes, before: Stored | None) -> None:
    try:
        if before is None:
            storage.put_new(NAME, data)
        else:
            storage.replace(NAME, data, before.version)
    except StorageError:
        # The answer to a successful request may be lost, and its repetition fails then. The manifest has the
        # writer's random id, so that no other writer's is equal.
        found = storage.read_versioned(NAME, max_bytes=MAX_BYTES)
        if found is None or found.data != data:
            raise


def take_over(target: Target, manifest: Manifest) -> Manifest:
    """Publish the manifest again under a new writer's id, so that no earlier writer can publish, and return it.

    Raises StorageConflict if another writer takes over at the same time.
    """
    taken = replace(manifest, version=manifest.version + 1, writer=uuid.uuid4().hex)
    write_manifest(target, taken)
    return taken


def remove_files(target: Target, paths: Iterable[str]) -> None:
    """Remove files below the target; ignore those that do not exist."""
    open_storage(target).delete(paths)


def sweep(target: Target) -> None:
    """Remove files left by a crash: files of a mirror that neither the manifest nor the previous one names."""
    storage = open_storage(target)
    manifest = read_manifest(storage)
    named = (manifest.files() | set(manifest.replaced)) if manifest else set()
    own = manifest.tables.keys() if manifest else set()  # the folders of its tables belong only to the mirror
    left = [path for path in storage.paths() if path not in named and _may_be_left(path, own)]
    remove_files(storage, left)


def _may_be_left(path: str, own: Iterable[str]) -> bool:
    folder, slash, name = path.rpartition("/")
    if path.startswith("_") or "/" in folder:
        return False
    return is_of_a_mirror(path) or bool(slash and folder in own and name.endswith(".parquet"))


def is_of_a_mirror(path: str) -> bool:
    """Return whether a mirror creates a file of this path in its target, in addition to the manifest."""
    folder, slash, name = path.rpartition("/")
    if not slash:
        return _TEMPORARY.fullmatch(name) is not None
    return "/" not in folder and _BUCKET.fullmatch(name) is not None


def write_bucket(target: Target, shape: TableShape, bucket: int, rows: pa.Table) -> BucketFile:
    """Write a bucket's rows into a new file with a unique name, and make it durable."""
    path = f"{shape.topic}/{bucket:04d}-{uuid.uuid4().hex}.parquet"
    written = pa.BufferOutputStream()
    pq.write_table(rows, written, compression="snappy", use_dictionary=False, write_statistics=False)
    open_storage(target).write(path, memoryview(written.getvalue()))
    return BucketFile(bucket, path, rows.num_rows, tuple(one.number for one in shape.fields))


def read_bucket(target: Target, shape: TableShape, file: BucketFile | None) -> pa.Table:
    """Return a bucket's rows with the current columns."""
    if file is None:
        return arrow_schema(shape.fields).empty_table()
    return _current(_rows(target, file), file, shape)


def read_incomplete(target: Target, shape: TableShape, file: BucketFile | None) -> pa.Table:
    """Return a bucket's incomplete rows with the current columns and `__missing`."""
    if file is None:
        return as_complete(read_bucket(target, shape, None))
    rows = _rows(target, file)
    current = _current(rows.drop_columns([MISSING]), file, shape)
    return current.append_column(MISSING, rows.column(MISSING).cast(MISSING_TYPE))


def _rows(target: Target, file: BucketFile) -> pa.Table:
    return pq.ParquetFile(pa.BufferReader(open_storage(target).read(file.path))).read()


def _current(rows: pa.Table, file: BucketFile, shape: TableShape) -> pa.Table:
    if rows.schema.equals(arrow_schema(shape.fields)) and file.columns == tuple(
        one.number for one in shape.fields
    ):
        return rows
    return aligned(rows, file.columns, shape)
