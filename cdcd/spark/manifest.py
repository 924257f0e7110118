"""The manifest: the list of a Parquet mirror's tables and files, replaced by one conditional write.

    <target>/manifest.json  <target>/_data/<topic>/<unique>.parquet

In: the storage of a mirror.  Out: per table its columns, files, and the last applied change.
Invariant: one write moves all tables from one PostgreSQL commit to a later one, and succeeds only if nobody else has
replaced the manifest since; files that a manifest names are complete and durable before the manifest is. A file that
it no longer names exists for `GRACE_S` more, for readers of an earlier manifest.
Must not: know Spark or Kafka.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from cdcd.errors import SparkReadError, StorageConflict, StorageError
from cdcd.spark.cuts import Offsets
from cdcd.spark.events import BEGINNING, Sequence
from cdcd.spark.shape import Field, TableShape
from cdcd.spark.storage import Storage, StoredFile, Target, open_storage

NAME = "manifest.json"
MAX_BYTES = 256 << 20
FORMAT = 5
BEFORE_DELTAS = 4
"""The format without deltas, whose replaced files have no time."""
BEFORE_WRITERS = 3
"""The format without the writer."""
BEFORE_INCOMPLETE = 2
"""The format without loading tables and incomplete rows."""
BEFORE_TIMELINES = 1
"""The format whose sequences have no timeline."""
GRACE_S = 600.0
DATA = "_data"
"""The folder of the tables' files. Spark, pyarrow and others ignore such a name in a folder that they read: some rows
are replaced by later files, so a reader without the manifest must not find them."""
_FILE = re.compile(r"(\d{4,}|delta)-[0-9a-f]{32}\.parquet(\.[0-9a-f]{32})?")
_TEMPORARY = re.compile(re.escape(NAME) + r"\.[0-9a-f]{32}")
"""A temporary file that a crash leaves in a local folder has 32 more digits in its name."""


@dataclass(frozen=True, slots=True)
class BucketFile:
    """One Parquet file: the rows of a hash bucket. `columns` are the numbers of its fields, in its order.

    A delta has the changed rows of a bucket, or of all (`ALL_BUCKETS`). `level`: how often it was merged from others.
    """

    bucket: int
    path: str
    rows: int
    columns: tuple[int, ...]
    level: int = 0


ALL_BUCKETS = -1
"""The bucket number of a delta with rows of several buckets, and of a fold of a table as a whole."""


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
    deltas: tuple[BucketFile, ...] = ()
    """Files of rows that replace those of `files` and of the deltas before, by their keys; a deleted row has its key
    only. In a table without a key they have further rows."""
    incomplete: tuple[BucketFile, ...] = ()
    """Files of rows of a loading table that have columns without a value; no reader of the mirror sees these rows."""

    @property
    def is_empty(self) -> bool:
        """Whether no file has complete rows."""
        return not self.files and not self.deltas

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
    replaced: tuple[tuple[str, float], ...] = ()
    """Files of earlier manifests that this one no longer has, with the time of removal (Unix epoch, seconds)."""
    loading: tuple[str, ...] = ()
    """The topics of the tables that cdcd still copies at this commit: rows are still missing."""
    writer: str = ""
    """The random id of the query that has written the manifest; "" in older formats."""

    def files(self) -> set[str]:
        """Return the paths of all files, below the target."""
        return {
            one.path
            for table in self.tables.values()
            for one in (*table.files, *table.deltas, *table.incomplete)
        }


def read_manifest(target: Target) -> Manifest | None:
    """Return the manifest, None if there is none. Raises SparkReadError for an unknown format, StorageError."""
    storage = open_storage(target)
    stored = storage.read_versioned(NAME, max_bytes=MAX_BYTES)
    return None if stored is None else _parsed(storage, stored)


def _parsed(storage: Storage, stored: StoredFile) -> Manifest:
    try:
        fields = json.loads(stored.data)
        written_as = fields.pop("format", None)
    except (ValueError, AttributeError) as error:
        raise SparkReadError(
            "the manifest is not readable", hint="restore it from a backup of the target", target=storage.uri
        ) from error
    if written_as not in (FORMAT, BEFORE_DELTAS, BEFORE_WRITERS, BEFORE_INCOMPLETE, BEFORE_TIMELINES):
        raise SparkReadError("the manifest has an unknown format", target=storage.uri, file=NAME)
    for entry in fields["tables"].values():
        if written_as == BEFORE_TIMELINES:
            entry["applied"] = [BEGINNING.timeline, *entry["applied"]]
    fields["tables"] = {topic: _table(entry) for topic, entry in fields["tables"].items()}
    fields["loading"] = tuple(fields.get("loading", ()))
    replaced = fields.get("replaced", ())
    fields["replaced"] = tuple((one, 0.0) if isinstance(one, str) else (one[0], one[1]) for one in replaced)
    return Manifest(**fields)


def _table(entry: dict[str, Any]) -> TableEntry:
    entry["fields"] = tuple(Field(**one) for one in entry["fields"])
    entry["applied"] = Sequence(*entry["applied"])
    for name in ("files", "deltas", "incomplete"):
        entry[name] = tuple(
            BucketFile(**{**one, "columns": tuple(one["columns"])}) for one in entry.get(name, ())
        )
    return TableEntry(**entry)


def write_manifest(target: Target, manifest: Manifest) -> None:
    """Publish the successor of the manifest, then remove the files that no manifest has named for `GRACE_S`.

    Raises StorageConflict if another writer has published one since; then nothing of this one is visible.
    """
    storage = open_storage(target)
    stored = storage.read_versioned(NAME, max_bytes=MAX_BYTES)
    before = None if stored is None else _parsed(storage, stored)
    if (before.version if before else 0) != manifest.version - 1:
        raise StorageConflict("another writer has changed the mirror meanwhile", target=storage.uri)
    now_s, named = time.time(), manifest.files()
    earlier = [one for one in (before.replaced if before else ()) if one[0] not in named]
    expired = [path for path, since_s in earlier if since_s < now_s - GRACE_S]
    gone = [(path, now_s) for path in sorted((before.files() if before else set()) - named)]
    replaced = tuple(one for one in earlier if one[0] not in expired) + tuple(gone)
    data = json.dumps({"format": FORMAT, **asdict(replace(manifest, replaced=replaced))}).encode()
    _publish(storage, data, stored)
    remove_files(storage, expired)


def _publish(storage: Storage, data: bytes, before: StoredFile | None) -> None:
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
    """Remove files left by a crash: files of a mirror that no manifest of the last `GRACE_S` names."""
    storage = open_storage(target)
    manifest = read_manifest(storage)
    named = (manifest.files() | {path for path, _ in manifest.replaced}) if manifest else set()
    own = manifest.tables.keys() if manifest else set()  # the folders of its tables belong only to the mirror
    left = [path for path in storage.paths() if path not in named and _may_be_left(path, own)]
    remove_files(storage, left)


def _may_be_left(path: str, own: Iterable[str]) -> bool:
    if is_of_a_mirror(path):
        return True
    folder, slash, name = path.rpartition("/")
    if path.startswith("_") or "/" in folder:
        return False
    return bool(slash and folder in own and name.endswith(".parquet"))


def is_of_a_mirror(path: str) -> bool:
    """Return whether a mirror creates a file of this path in its target, in addition to the manifest."""
    folder, slash, name = path.rpartition("/")
    if not slash:
        return _TEMPORARY.fullmatch(name) is not None
    in_data = folder.removeprefix(f"{DATA}/")
    return "/" not in in_data and _FILE.fullmatch(name) is not None
