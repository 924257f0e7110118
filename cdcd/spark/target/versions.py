"""The versions of a mirror's target, and the records from which they are read. Pure.

In: a version, and the one before; JSON of records.  Out: JSON of a record; a version.
Invariant: a version is all tables as of one PostgreSQL commit. A record has what its version changes, so its size
follows the batch; a complete record, such as the first one of each writer, has everything. The records from a
complete one on, in the order of their numbers, give each version up to the last of them.
Must not: do I/O, know Spark or Kafka.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from cdcd.errors import SparkReadError, TableFileMissing, TableLogUnreadable
from cdcd.spark.decoding.events import BEGINNING, Sequence
from cdcd.spark.source.cuts import Offsets
from cdcd.spark.source.source_position import SlotPosition
from cdcd.spark.target.mirror_sizes import DEFAULT_RETAIN_S
from cdcd.spark.target.shape import Field, TableShape

__all__ = [
    "ALL_BUCKETS",
    "SCD_TYPES",
    "TABLE_FORMATS",
    "BucketFile",
    "Parked",
    "ScdType",
    "TableEntry",
    "TableFormat",
    "TargetVersion",
    "is_complete_record",
    "record_of",
    "version_after",
]

TableFormat = Literal["parquet", "delta", "iceberg"]
TABLE_FORMATS: tuple[TableFormat, ...] = ("parquet", "delta", "iceberg")
ScdType = Literal[1, 2]
SCD_TYPES: tuple[ScdType, ...] = (1, 2)

FORMAT = 11
"""The format of the records. Format 10 lacks `retained` of a column; format 9 also `from_key` of a file; format 8
also `positions`, `left`, `copying` of a table, and `commit_us` of a parked one; format 7 also `cleaned` of a table
and `offsets` of a parked one; format 6 also has `delta_version` in place of `table_version`; 1 to 5: a manifest.json.
"""
READABLE = (6, 7, 8, 9, 10, FORMAT)
ALL_BUCKETS = -1
"""The bucket of a file that has rows of several buckets: a delta, or a file of a table in an open format."""


@dataclass(frozen=True, slots=True)
class BucketFile:
    """One Parquet file: the rows of a hash bucket. `columns` are the numbers of its fields, in its order.

    A delta has the changed rows of a bucket, or of all (`ALL_BUCKETS`), as each file of a merge has. `level`: how
    often it was merged from others; 1 also for a base file of a merge.
    """

    bucket: int
    path: str
    rows: int
    columns: tuple[int, ...]
    level: int = 0
    size_bytes: int = 0
    """Its size in memory; 0: unknown, as of a Delta or Iceberg file that an earlier version has written."""
    last_us: int = 0
    """Of a file of the history, the time of its last commit (Unix epoch), 0 if unknown."""
    from_key: str | None = None
    """The beginning (hexadecimal) of the range of keys of a file of a run, which ends where that of the run's next
    file begins; "" begins a run. None: the file is in no run, and may have any key."""


@dataclass(frozen=True, slots=True)
class Parked:
    """Why a table is not updated any more: the error's code and text.

    `end_lsn`: the table has the rows of this position in the source, 0: of no one position, because it was copied
    at that time, or unknown. `since_s`: the time (Unix epoch). `offsets`: those of the first record of each partition
    that is left out; None: unknown. `commit_us`: the time of the last commit (Unix epoch) as of which the table is,
    0: unknown.
    """

    code: str
    reason: str
    end_lsn: int
    since_s: float
    offsets: Mapping[str, int] | None = None
    commit_us: int = 0

    @property
    def is_restorable(self) -> bool:
        """Whether the table continues if what was lost is restored, and no record was left out since."""
        return self.code in (TableLogUnreadable.code, TableFileMissing.code)


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
    history: tuple[BucketFile, ...] = ()
    """Files of all changes, one line for each (`history_schema`), if the target has the history of its tables."""
    parked: Parked | None = None
    """Set while the table is not updated: its files are those of an earlier commit than the other tables'."""
    relid: int = 0
    """The oid of the relation in PostgreSQL, 0 if no schema has it."""
    former: tuple[int, ...] = ()
    """The oids of the former tables of this name."""
    table_version: int | None = None
    """The version of the Delta or Iceberg table that has exactly `files`; None: the table is in Parquet files."""
    copying: bool = False
    """Whether the last TRUNCATE of a copy in the history is of one that no version of the mirror has had complete."""
    cleaned: int = 0
    """The version of the Delta or Iceberg table before which old versions were removed last, 0: never."""

    @property
    def is_empty(self) -> bool:
        """Whether no file has complete rows."""
        return not self.files and not self.deltas

    @property
    def paths(self) -> list[str]:
        """The paths of all files, below the target."""
        return [one.path for one in (*self.files, *self.deltas, *self.incomplete, *self.history)]

    def shape(self) -> TableShape:
        """Return the table's shape for reading and folding."""
        return TableShape(self.topic, bool(self.keyed), self.fields, self.applied)


@dataclass(frozen=True, slots=True)
class TargetVersion:
    """All tables of a target as of one PostgreSQL commit. `number` 0: nothing is published yet.

    `commit_lsn`: the highest LSN of an applied change. `end_lsn`: all commits below it are applied, 0 if unknown.
    `commit_us`: the time of the last of these commits (Unix epoch, microseconds), 0 if unknown.
    `offsets`: the next offsets of every partition read. `reached` decides which commits a version has.
    """

    prefix: str
    buckets: int
    number: int = 0
    commit_lsn: int = 0
    end_lsn: int = 0
    commit_us: int = 0
    offsets: Offsets = field(default_factory=dict)
    tables: Mapping[str, TableEntry] = field(default_factory=dict)
    cluster: str = ""
    """The id of the mirrored Kafka cluster."""
    loading: tuple[str, ...] = ()
    """The topics of the tables of which rows are still missing at this commit: cdcd copies them, or the mirror has
    begun to read them later than the others."""
    table_format: TableFormat = "parquet"
    """How the complete rows of all tables are stored, since the target was made."""
    dropped: Mapping[str, TableEntry] = field(default_factory=dict)
    """By topic, the tables that were dropped from the mirror, without files: their changes are left out until the
    next copy begins, or a TRUNCATE."""
    scd_type: ScdType = 1
    """1: the tables have their current rows; 2: also their history, since the target was made."""
    writer: str = ""
    """The random id of the query that has published the version."""
    published_s: float = 0.0
    """The time of its publication (Unix epoch), by the writer's clock."""
    retain_s: float = DEFAULT_RETAIN_S
    """For so long after its successor was published, the version can be read."""
    history_retain_s: float | None = None
    """For so long after its end a version of a row remains in the history, None: for ever."""
    retained_from_s: float = 0.0
    """A version whose successor was published at this time (Unix epoch), or later, can be read."""
    replaced: tuple[tuple[str, float], ...] = ()
    """Files of earlier versions that this one no longer has and that still exist, with the time since when."""
    positions: Mapping[str, SlotPosition] = field(default_factory=dict)
    """By slot, its position, of which `end_lsn` is the lowest; empty: unknown."""
    left: tuple[tuple[int, int], ...] = ()
    """Where the source has continued from an earlier position, as a promoted server does: the number of the last
    version before, and the LSN up to which the commits of the versions up to there are true afterwards."""
    complete: tuple[tuple[int, float], ...] = ()
    """The numbers of the complete records that still exist, with the times of their publication, the last one's
    included."""

    def is_left(self, topic: str) -> bool:
        """Whether a table is parked or dropped: its changes are left out until it is copied again."""
        entry = self.tables.get(topic)
        return topic in self.dropped or (entry is not None and entry.parked is not None)

    @property
    def base(self) -> int:
        """The number of the complete record from which the version is read."""
        return self.complete[-1][0] if self.complete else 0

    @property
    def parked(self) -> dict[str, Parked]:
        """By topic, the tables that are not updated any more."""
        return {topic: one.parked for topic, one in self.tables.items() if one.parked is not None}

    def folder_of(self, topic: str) -> str:
        """Return the folder of a Delta or Iceberg table, below the target."""
        return topic.removeprefix(f"{self.prefix}.")

    def files(self) -> set[str]:
        """Return the paths of all files, below the target."""
        return {path for table in self.tables.values() for path in table.paths}


def record_of(version: TargetVersion, before: TargetVersion | None) -> bytes:
    """Return the record of a version: what differs from the version before, None: everything."""
    shown = asdict(replace(version, tables={}, offsets={}, replaced=()))
    if not version.dropped:
        del shown["dropped"]
    if before is None:
        tables = {topic: asdict(one) for topic, one in version.tables.items()}
        shown |= {"tables": tables, "offsets": version.offsets, "replaced": version.replaced}
        return json.dumps({"format": FORMAT, "is_complete": True, **shown}).encode()
    known = set(before.replaced)
    shown |= {
        "complete": None,  # as before
        "tables": _changed(version.tables, before.tables, asdict),
        "offsets": _changed(version.offsets, before.offsets, dict),
        "replaced": [one for one in version.replaced if one not in known],
    }
    return json.dumps({"format": FORMAT, "is_complete": False, **shown}).encode()


def _changed(now: Mapping[str, Any], before: Mapping[str, Any], shown: Any) -> dict[str, Any]:
    """Return the values that differ, and None for those that are gone."""
    changed = {
        name: shown(one)
        for name, one in now.items()
        if one is not before.get(name) and one != before.get(name)
    }
    return changed | dict.fromkeys(before.keys() - now.keys())


def version_after(before: TargetVersion | None, data: bytes, *, file: str) -> TargetVersion:
    """Return the version of a record. `before`: that of the record before it, unused for a complete record.

    Raises SparkReadError for bytes that are not a record, or of an unknown format.
    """
    try:
        fields = json.loads(data)
        written_as = fields.pop("format", None)
    except (ValueError, AttributeError, RecursionError) as error:
        raise _unreadable("a record of the target is not readable", file) from error
    if written_as not in READABLE:
        raise SparkReadError(
            "a record of the target has an unknown format",
            hint="read it with a newer version of cdcd",
            file=file,
            format=written_as,
        )
    try:
        return _version(before, fields)
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError) as error:
        raise _unreadable("a record of the target has unexpected fields", file) from error


def is_complete_record(data: bytes) -> bool:
    """Return whether bytes are a record from which a version is read without the one before."""
    try:
        return json.loads(data).get("is_complete") is True
    except (ValueError, AttributeError, RecursionError):
        return False


def _unreadable(message: str, file: str) -> SparkReadError:
    return SparkReadError(message, hint="restore it from a backup of the target", file=file)


def _version(before: TargetVersion | None, fields: dict[str, Any]) -> TargetVersion:
    is_complete = fields.pop("is_complete")
    base = None if is_complete else before
    if base is None and not is_complete:
        raise ValueError("a record without the one before it")
    known = base or TargetVersion("", 0)
    tables = {topic: None if one is None else _table(one) for topic, one in fields["tables"].items()}
    fields["tables"] = _merged(known.tables, tables)
    fields["offsets"] = _merged(known.offsets, fields["offsets"])
    fields["loading"] = tuple(fields["loading"])
    fields["positions"] = {slot: SlotPosition(*one) for slot, one in fields.get("positions", {}).items()}
    fields["left"] = tuple((number, lsn) for number, lsn in fields.get("left", ()))
    fields["dropped"] = {topic: _table(one) for topic, one in fields.get("dropped", {}).items()}
    complete = known.complete if fields["complete"] is None else fields["complete"]
    fields["complete"] = tuple((number, time_s) for number, time_s in complete)
    fields["replaced"] = (*known.replaced, *((path, time_s) for path, time_s in fields["replaced"]))
    return TargetVersion(**fields)


def _merged(before: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in {**before, **changed}.items() if one is not None}


def _table(entry: dict[str, Any]) -> TableEntry:
    entry["fields"] = tuple(Field(**one) for one in entry["fields"])
    entry["applied"] = Sequence(*entry["applied"])
    for name in ("files", "deltas", "incomplete", "history"):
        entry[name] = tuple(
            BucketFile(**{**one, "columns": tuple(one["columns"])}) for one in entry.get(name, ())
        )
    entry["former"] = tuple(entry.get("former", ()))
    if "delta_version" in entry:  # of format 6
        entry["table_version"] = entry.pop("delta_version")
    parked = entry["parked"]
    entry["parked"] = None if parked is None else Parked(**parked)
    return _with_texts(TableEntry(**entry))


def _with_texts(entry: TableEntry) -> TableEntry:
    """Return the entry. Raises TypeError, ValueError for a path, a name or a key that would fail where it is used."""
    names = (name for one in entry.fields for name in (one.name, one.avro_name))
    for text in (*entry.paths, *names):
        if not isinstance(text, str):
            raise TypeError("a path or a name is no text")
    for file in (*entry.files, *entry.deltas):
        if file.from_key is not None:
            bytes.fromhex(file.from_key)  # raises ValueError, TypeError
    return entry


def without_expired(replaced: Iterable[tuple[str, float]], until_s: float) -> tuple[tuple[str, float], ...]:
    """Return the replaced files that still have to exist at this time."""
    return tuple(one for one in replaced if one[1] >= until_s)
