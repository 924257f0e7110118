"""A Delta table whose rows are replaced by key, by delta-rs.

In: keys, and all rows that they have now.  Out: a version of the table in which these keys have these rows.
Invariant: a commit succeeds only as the successor of the version that was opened, and then its own version is open,
whatever another writer has committed since. Only files that may have one of the keys are read: the statistics of a
file have the range of the first column of the key. A file is never changed: one with a replaced row is replaced by
another with all of its other rows.
Must not: know what the rows mean; remove a file that a version names.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdcd.errors import StorageError
from cdcd.spark.applying.event_order import Flags, dense_ranks
from cdcd.spark.applying.wide_types import wide
from cdcd.spark.formats.delta_access import DeltaAccess
from cdcd.spark.formats.delta_statistics import as_json, has_one_order
from cdcd.spark.formats.readable_paths import check_new_target
from cdcd.spark.storage.uri import Storage
from cdcd.spark.tables.footer_statistics import paths_with_statistics

__all__ = ["KeyedTable"]

log = logging.getLogger("cdcd.spark.apply_changes")
FILE_ROWS = 100_000
"""The maximum of rows of a new file: for a changed row, all rows of its file are written again."""
SMALL_ROWS = FILE_ROWS // 2
MERGED = 8
"""The number of small files that are merged with the rows of a commit."""
VACUUM_EVERY, VACUUM_AGAIN = 100, 10
"""The numbers of versions after which old files are removed: normally, and after an attempt that failed."""
_PAGE_ROWS, _LARGE_BYTES = 1024, 1 << 30
"""The number of values that are written before the size of a page is checked, which has to be below 2 GiB."""
_LONGEST_TEXT = 64
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""The days since 1970-01-01 that Delta's statistics can name: the years 1 to 9999."""
_READ_FEATURES = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
_CONSTRAINTS, _APPEND_ONLY = "delta.constraints.", "delta.appendOnly"
_COLUMN_MAPPING = 2
"""The reader version of a table with column mapping, whose files have other names of columns."""
_CHANGED = "another writer has changed the table meanwhile, so nothing of this batch was written"
_CHANGED_HINT = "let one query at a time write to the table: stop the other one, then start this one again"


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the table. `first`, `last`, `nulls`: the range and the number of nulls of the key's first column.

    They are null if they are not known. The range is of Arrow: Python has no dates before the year 1 or after 9999.
    """

    path: str
    rows: int
    size: int
    first: pa.Scalar
    last: pa.Scalar
    nulls: int | None


class KeyedTable:
    """A Delta table of rows with keys. A key may have several rows, and may be null."""

    def __init__(self, target: Storage, folder: str, keys: Sequence[str]) -> None:
        self._target, self._folder, self._keys = target, folder, list(keys)
        self._access = DeltaAccess(target, folder, _CHANGED, _CHANGED_HINT)
        self._table: Any = None
        self._is_overdue = False
        """Whether old files could not be removed."""

    @property
    def version(self) -> int | None:
        """The version that is opened, None before `open` or `create`."""
        return None if self._table is None else int(self._table.version())

    @property
    def schema(self) -> pa.Schema:
        """The columns, whose texts have offsets of 64 bits."""
        return wide(pa.schema(self._table.schema().to_arrow()))

    @property
    def description(self) -> str:
        """The description of the table, as `create` wrote it."""
        return str(self._table.metadata().description or "")

    def open(self, version: int | None = None) -> bool:
        """Open a version, None: the newest one. Return whether there is a Delta table."""
        with self._access.errors("read", lambda: self.version):
            if not self._access.exists():
                return False
            self._table = self._access.open(version)
            features = {*(self._table.protocol().reader_features or ())} - _READ_FEATURES
            if features or self._table.protocol().min_reader_version == _COLUMN_MAPPING:
                raise StorageError(
                    "the Delta table has features that apply_changes does not read",
                    hint="another writer has enabled these features: start with an empty target",
                    target=self._target.uri,
                    features=", ".join(sorted(features)) or "columnMapping",
                )
            self._check_properties(self._table.metadata().configuration)
        return True

    def _check_properties(self, found: Mapping[str, str]) -> None:
        """Raise StorageError for properties that a writer has to obey, and this one does not."""
        names = [name for name in found if name.startswith(_CONSTRAINTS)]
        if found.get(_APPEND_ONLY, "").lower() == "true":
            names.append(_APPEND_ONLY)
        if names:
            raise StorageError(
                "the Delta table has constraints that apply_changes does not check",
                hint="drop the constraints of the table, and unset the property delta.appendOnly",
                target=self._target.uri,
                properties=", ".join(sorted(names)),
            )

    def transaction(self, name: str) -> int | None:
        """Return the last version of an application transaction, None if the table has none of this name."""
        found = self._table.transaction_version(name)
        return None if found is None else int(found)

    def rows_of(self, keys: pa.Table | None) -> pa.Table:
        """Return the rows with these keys, None: all rows."""
        schema = self.schema
        found = [schema.empty_table()]
        for file in self._files() if keys is None else self._files_with(keys):
            rows = self._read(file)
            found.append(rows if keys is None else rows.filter(pa.array(self._is_of(rows, keys))))
        return pa.concat_tables(found)

    # --- commits -----------------------------------------------------------------------------------------------

    def create(
        self, rows: pa.Table, transactions: dict[str, int], description: str, *, replace: bool = False
    ) -> None:
        """Make the table with these rows. `replace`: replace a table that is there; otherwise StorageConflict.

        Raises ConfigError for a local path that readers of Delta do not find.
        """
        from deltalake import Schema
        from deltalake.transaction import create_table_with_add_actions

        exists = self._access.exists()
        if exists and not replace:
            raise self._access.changed()
        if not exists:
            check_new_target(self._target, "delta")
        with self._access.errors("create", lambda: None):
            before = self._access.open().version() if exists else -1
            create_table_with_add_actions(
                self._access.uri,
                Schema.from_arrow(rows.schema),
                self._written(rows),
                mode="overwrite" if replace else "error",
                description=description,
                storage_options=self._access.options,
                commit_properties=_properties(transactions),
            )
            self._table = self._access.open(None if replace else 0)
        if self._table.version() != before + 1:  # which of them is this commit is not known
            raise self._access.changed()
        self._synchronise()

    def add_columns(self, schema: pa.Schema) -> None:
        """Add the columns that the table does not have; its rows have null there."""
        from deltalake import Schema

        names = set(self.schema.names)
        if new := [one for one in Schema.from_arrow(schema).fields if one.name not in names]:
            before = self._table.version()
            with self._access.errors("change", lambda: before):
                self._table.alter.add_columns(new, commit_properties=_properties({}))
                self._table.load_as_version(before + 1)
            self._synchronise()

    def restore(self, version: int) -> None:
        """Make an earlier version the newest one, if it is not."""
        with self._access.errors("restore", lambda: self.version):
            self._table = self._access.open()
            before = self._table.version()
            if before == version:
                return
            self._table.restore(version, protocol_downgrade_allowed=True, commit_properties=_properties({}))
            self._table.load_as_version(before + 1)
        self._synchronise()

    def replace(self, keys: pa.Table, rows: pa.Table, transactions: dict[str, int]) -> None:
        """Replace the rows of these keys in one commit. `rows` has the table's columns."""
        from deltalake import Schema
        from deltalake.transaction import RemoveAction

        added: list[Any] = []
        removed: list[_File] = []
        for file in self._files_with(keys):
            held = self._read(file)
            is_of = self._is_of(held, keys)
            if is_of.any():
                removed.append(file)
                own = self._is_of(rows, held.filter(pa.array(is_of)).select(self._keys))
                others = held.filter(pa.array(~is_of))
                added += self._written(pa.concat_tables([others, rows.filter(pa.array(own))]))
                rows = rows.filter(pa.array(~own))
        if rows.num_rows:
            small = [one for one in self._files() if one.rows < SMALL_ROWS and one not in removed]
            if len(small) >= MERGED:
                rows = pa.concat_tables([rows, *(self._read(one) for one in small)])
                removed += small
            added += self._written(rows)
        now_ms, before = int(time.time() * 1000), self._table.version()
        with self._access.errors("change", lambda: before):
            self._table.create_write_transaction(
                [*added, *(RemoveAction(one.path, True, now_ms, one.size, {}) for one in removed)],
                "append",
                Schema.from_arrow(self.schema),
                commit_properties=_properties(transactions),
            )
            self._table.load_as_version(before + 1)
        self._synchronise()

    def remove_old_files(self) -> None:
        """Remove files older than a week that the newest version does not name, once in a while.

        No row depends on it, so an error is logged, and it is tried again some versions later.
        """
        assert self.version is not None
        if self.version % (VACUUM_AGAIN if self._is_overdue else VACUUM_EVERY):
            return
        try:
            with self._access.errors("change", lambda: self.version):
                self._table.vacuum(dry_run=False, full=True)
            self._is_overdue = False
        except StorageError as error:
            log.warning(
                "%s: old files could not be removed; the removal is tried again: %s", self._access.uri, error
            )
            self._is_overdue = True

    # --- files -------------------------------------------------------------------------------------------------

    def _files(self) -> list[_File]:
        found = pa.table(self._table.get_add_actions(flatten=True))
        names = found.column_names
        key = self._keys[0]
        own = [found[name].to_pylist() for name in ("path", "num_records", "size_bytes")]
        wanted = (f"min.{key}", f"max.{key}", f"null_count.{key}")
        unknown = pa.nulls(found.num_rows)
        first, last, nulls = (found[name] if name in names else unknown for name in wanted)
        return [_File(*one) for one in zip(*own, first, last, nulls.to_pylist(), strict=True)]

    @property
    def _type(self) -> pa.DataType:
        return self.schema.field(self._keys[0]).type

    def _files_with(self, keys: pa.Table) -> Iterator[_File]:
        """Yield the files that may have one of these keys."""
        if not _is_exact(self._type):
            yield from self._files()
            return
        first = pc.unique(keys[self._keys[0]]).drop_null()
        has_null = bool(keys[self._keys[0]].null_count)
        for file in self._files():
            bounds = [one.cast(self._type) for one in (file.first, file.last)]
            if not all(map(_is_known, bounds)) or (has_null and file.nulls != 0):
                yield file
                continue
            is_inside = pc.and_(pc.greater_equal(first, bounds[0]), pc.less_equal(first, bounds[1]))
            if pc.any(is_inside).as_py():
                yield file

    def _read(self, file: _File) -> pa.Table:
        """Return the rows of a file with the table's columns; those that it does not have are null."""
        path = f"{self._folder}/{file.path}".lstrip("/")
        with self._target.open(path) as opened:
            try:
                return _rows_in(opened, self.schema)
            except MemoryError:  # Arrow's is an ArrowException
                raise
            except pa.ArrowException as error:
                raise StorageError(
                    f"a file of the Delta table cannot be decoded ({type(error).__name__})",
                    hint="restore the file from a backup, or start with an empty target and all changes",
                    target=self._target.uri,
                    file=path,
                ) from None

    def _is_of(self, rows: pa.Table, keys: pa.Table) -> Flags:
        """Return which rows have one of these keys."""
        both = pa.concat_tables([rows.select(self._keys), keys.select(self._keys)])
        numbers = dense_ranks(both[name] for name in self._keys)
        return np.isin(numbers[: rows.num_rows], numbers[rows.num_rows :])

    def _written(self, rows: pa.Table) -> list[Any]:
        """Write rows into files, in the order of their keys; return what adds them to the table."""
        if not rows.num_rows:
            return []
        in_order = rows.take(
            pa.array(np.argsort(dense_ranks(rows[name] for name in self._keys), kind="stable"))
        )
        parts = (in_order.slice(start, FILE_ROWS) for start in range(0, rows.num_rows, FILE_ROWS))
        return [self._write(one) for one in parts]

    def _write(self, rows: pa.Table) -> Any:
        from deltalake.transaction import AddAction

        name = f"part-{uuid.uuid4().hex}.parquet"
        written = pa.BufferOutputStream()
        pq.write_table(
            rows,
            written,
            compression="snappy",
            write_batch_size=1 if rows.nbytes > _LARGE_BYTES else _PAGE_ROWS,
            write_statistics=paths_with_statistics(rows.schema),
            store_schema=False,
        )
        data = memoryview(written.getvalue())
        self._target.write(f"{self._folder}/{name}".lstrip("/"), data)
        return AddAction(
            path=name,
            size=data.nbytes,
            partition_values={},
            modification_time=int(time.time() * 1000),
            data_change=True,
            stats=as_json({"numRecords": rows.num_rows} | _range(rows, self._keys[0])),
        )

    def _synchronise(self) -> None:
        assert self.version is not None
        self._access.synchronise(self.version)


def _rows_in(opened: Any, schema: pa.Schema) -> pa.Table:
    """Return the rows of a Parquet file with these columns; those that it does not have are null.

    Spark writes times in 96 bits, which Arrow reads as nanoseconds by default: these end in the year 2262.
    """
    given = pq.ParquetFile(opened, binary_type=pa.large_binary(), coerce_int96_timestamp_unit="us").read()
    columns = [
        given[one.name].cast(one.type)
        if one.name in given.column_names
        else pa.nulls(given.num_rows, one.type)
        for one in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _properties(transactions: dict[str, int]) -> Any:
    """Return the properties of a commit, which is never tried again on top of another's."""
    from deltalake import CommitProperties, Transaction

    named = [Transaction(name, number) for name, number in transactions.items()]
    return CommitProperties(max_commit_retries=0, app_transactions=named)


def _is_known(bound: pa.Scalar) -> bool:
    """Return whether a bound of Delta's statistics is one, whoever has written it.

    Not a text that UTF-16 orders otherwise. A shortened largest value ends with such a character, which is not a
    bound of all texts if it is U+FFFD. delta-rs decodes an escaped character of plane 2, which earlier versions
    wrote, as one of plane 1.
    """
    value = bound.as_py() if _is_text(bound.type) else None
    return bool(bound.is_valid) and (value is None or has_one_order(value))


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _is_exact(type_: pa.DataType) -> bool:
    """Return whether Delta's statistics bound all values of a type: those of times and decimals are rounded."""
    return bool(pa.types.is_integer(type_) or _is_text(type_) or pa.types.is_date32(type_))


def _range(rows: pa.Table, key: str) -> dict[str, Any]:
    """Return the range of a column as Delta's statistics, for types that these have exactly; not with a null."""
    type_ = rows[key].type
    if not _is_exact(type_) or rows[key].null_count:
        return {}
    found = pc.min_max(rows[key])
    days = (
        [found[name].cast(pa.int32()).as_py() for name in ("min", "max")] if pa.types.is_date32(type_) else []
    )
    if any(not _FIRST_DAY <= one <= _LAST_DAY for one in days):
        return {}
    bounds = found.as_py()
    if _is_text(type_) and max(map(len, bounds.values())) > _LONGEST_TEXT:
        return {}
    texts = {name: one if isinstance(one, int | str) else one.isoformat() for name, one in bounds.items()}
    return {"minValues": {key: texts["min"]}, "maxValues": {key: texts["max"]}, "nullCount": {key: 0}}
