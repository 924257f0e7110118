"""The files of a table in a mirror: base files by hash bucket, and deltas, whose rows replace those before them.

In: the storage, the files that a version names, the current columns.  Out: Arrow tables with these columns.
Invariant: a reader has each key once, with the row of the newest file that names it, and no deleted row. In a table
without a key all files have rows of their own, and no row is replaced.
Must not: read or write the commit log; change a file.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdcd.columnar.keys import last_places
from cdcd.spark.decoding.events import ENDS
from cdcd.spark.storage.uri import Target, open_storage
from cdcd.spark.tables.data_file import DataFile, opened, opened_in_parts
from cdcd.spark.tables.fold import without_keys
from cdcd.spark.tables.footer_statistics import paths_with_statistics
from cdcd.spark.tables.key_ranges import EVERY_KEY, KeyRange, Part, parts_of, place_of, ranges_of
from cdcd.spark.target.commit_log import DATA
from cdcd.spark.target.large_columns import filtered, is_among, is_large, taken
from cdcd.spark.target.shape import (
    CHANGE,
    CHANGE_TYPE,
    KEY,
    MISSING,
    MISSING_TYPE,
    SPECIAL,
    TableShape,
    align,
    arrow_schema,
    as_complete,
    history_schema,
)
from cdcd.spark.target.versions import ALL_BUCKETS, BucketFile, TableEntry

DELETED = "__deleted_as_a_name_that_no_column_has_because_it_is_longer_than_63_bytes"
"""The last column of changed rows: whether a row is deleted."""
_DELETED_IN_FILE = "__deleted"
"""Its name in a file, unless the table has a column of this name. Readers find it by its place, the last one."""
GROUP_ROWS = 32_768
"""The rows of a row group: a look-up reads the groups whose range of keys has one of its keys."""
GROUP_BYTES = 32 << 20
"""About the most bytes of a row group in memory: a merge has one of each file in memory."""
_HISTORY_HINT = (
    "in a reader, open the mirror again: a newer version may have replaced the file. If the newest version names it, "
    "restore the file from a backup of the target; without one, begin a new history with a copy of the table: "
    "`python -m cdcd.spark drop-table --target TARGET --table SCHEMA.TABLE`, then "
    "`cdcd snapshot start --table SCHEMA.TABLE --recopy`"
)
"""The rows of a table are not in its history, so a copy of the table alone does not complete it."""


# --- write ---------------------------------------------------------------------------------------------------


def write_bucket(
    target: Target,
    shape: TableShape,
    bucket: int,
    rows: pa.Table,
    *,
    level: int = 0,
    from_key: bytes | None = None,
) -> BucketFile:
    """Write a bucket's rows, ordered by their keys, into a new file, and make it durable."""
    name = "base" if bucket == ALL_BUCKETS else f"{bucket:04d}"
    return _written(target, shape, bucket, name, in_order(rows), level, from_key)


def write_delta(
    target: Target,
    shape: TableShape,
    rows: pa.Table,
    *,
    bucket: int = ALL_BUCKETS,
    level: int = 0,
    from_key: bytes | None = None,
) -> BucketFile:
    """Write changed rows with `DELETED`, ordered by their keys, into a new file, and make it durable."""
    names = rows.column_names[:-1]
    last = DELETED if _DELETED_IN_FILE in names else _DELETED_IN_FILE
    renamed = in_order(rows).rename_columns([*names, last])
    return _written(target, shape, bucket, "delta", renamed, level, from_key)


def in_order(rows: pa.Table) -> pa.Table:
    """Return the rows in the order of their keys."""
    keys = rows[KEY]
    if not keys.null_count and pc.all(pc.less_equal(keys[:-1], keys[1:])).as_py() is not False:
        return rows
    return taken(rows, pc.sort_indices(keys))


def write_part(
    target: Target, shape: TableShape, schema: pa.Schema, folder: str, rows: pa.Table, level: int = 0
) -> tuple[BucketFile, int]:
    """Write rows in the order of their keys into a new file, durably; return it and its bytes.

    `schema`: the columns as the format of the table has them.
    """
    path = f"{folder}/part-{uuid.uuid4().hex}.parquet"
    bounded = paths_with_statistics(schema)
    size_bytes = _write(target, path, rows.cast(schema), use_dictionary=True, write_statistics=bounded)
    numbers = tuple(one.number for one in shape.fields)
    return BucketFile(ALL_BUCKETS, path, rows.num_rows, numbers, level, rows.nbytes), size_bytes


def _written(
    target: Target,
    shape: TableShape,
    bucket: int,
    name: str,
    rows: pa.Table,
    level: int,
    from_key: bytes | None,
) -> BucketFile:
    path = f"{DATA}/{shape.topic}/{name}-{uuid.uuid4().hex}.parquet"
    _write(target, path, rows, use_dictionary=False, write_statistics=[KEY])
    numbers = tuple(one.number for one in shape.fields)
    low = None if from_key is None else from_key.hex()
    return BucketFile(bucket, path, rows.num_rows, numbers, level, rows.nbytes, from_key=low)


def _write(target: Target, path: str, rows: pa.Table, **options: Any) -> int:
    written = pa.BufferOutputStream()
    most = max(1, min(GROUP_ROWS, GROUP_BYTES * rows.num_rows // max(1, rows.nbytes)))
    pq.write_table(rows, written, compression="snappy", row_group_size=most, **options)
    data = memoryview(written.getvalue())
    open_storage(target).write(path, data)
    return data.nbytes


def write_history(target: Target, shape: TableShape, rows: pa.Table, *, level: int = 0) -> BucketFile:
    """Write changes of a table, ordered by their keys, into a new file of its history, and make it durable."""
    path = f"{DATA}/{shape.topic}/history-{uuid.uuid4().hex}.parquet"
    _write(target, path, in_order(rows), use_dictionary=True, write_statistics=[f"{CHANGE}.op"])
    numbers = tuple(one.number for one in shape.fields)
    last_us = pc.max(pc.struct_field(rows[CHANGE], "commit_us")).as_py() or 0
    return BucketFile(ALL_BUCKETS, path, rows.num_rows, numbers, level, rows.nbytes, last_us)


def changed_rows(rows: pa.Table, keys: pa.Array) -> pa.Table:
    """Return the complete rows, and the keys without one as deleted rows. `keys`: has the key of each row, too."""
    if len(keys) == rows.num_rows:
        return added_rows(rows)
    gone = keys.filter(pc.invert(is_among(keys, rows[KEY])))
    columns: list[Any] = [
        gone if field.name == KEY else pa.nulls(len(gone), field.type) for field in rows.schema
    ]
    deleted = pa.Table.from_arrays(columns, schema=rows.schema)
    marks = [pa.repeat(pa.scalar(False), rows.num_rows), pa.repeat(pa.scalar(True), len(gone))]
    return pa.concat_tables([rows, deleted]).append_column(DELETED, pa.chunked_array(marks))


def added_rows(rows: pa.Table) -> pa.Table:
    """Return the rows of a delta that replaces no rows."""
    return rows.append_column(DELETED, pa.repeat(pa.scalar(False), rows.num_rows))


# --- read ----------------------------------------------------------------------------------------------------


def read_bucket(target: Target, shape: TableShape, file: BucketFile | None) -> pa.Table:
    """Return the rows of a base file with the current columns."""
    if file is None:
        return arrow_schema(shape.fields).empty_table()
    return with_current_columns(opened(target, file.path).read(), file, shape)


def read_keys(target: Target, file: BucketFile, *, hint: str | None = None) -> pa.ChunkedArray:
    """Return the keys in a file. `hint`: as that of `opened`."""
    return opened(target, file.path, hint=hint).read(columns=[KEY])[KEY]


def read_incomplete(target: Target, shape: TableShape, file: BucketFile | None) -> pa.Table:
    """Return a bucket's incomplete rows with the current columns and `__missing`."""
    if file is None:
        return as_complete(read_bucket(target, shape, None))
    rows = opened(target, file.path).read()
    current = with_current_columns(rows.drop_columns([MISSING]), file, shape)
    return current.append_column(MISSING, rows.column(MISSING).cast(MISSING_TYPE))


def read_deltas(
    target: Target,
    shape: TableShape,
    deltas: Iterable[BucketFile],
    keys: pa.Array | None = None,
    *,
    between: KeyRange = EVERY_KEY,
) -> pa.Table:
    """Return the rows of deltas with the current columns and `DELETED`: of a key the newest one.

    `keys`: only the rows of these keys, None: all. `between`: only those of a range.
    """
    parts = []
    for file in deltas:
        rows = between.of(_read_between(opened(target, file.path), between))
        if keys is not None:
            rows = rows.filter(pc.is_in(rows[KEY], value_set=keys))
        parts.append(delta_rows(rows, file, shape))
    return newest(parts, shape)


def delta_rows(rows: pa.Table, file: BucketFile, shape: TableShape) -> pa.Table:
    """Return rows of a delta with the current columns and `DELETED`."""
    last = rows.num_columns - 1
    current = with_current_columns(rows.remove_column(last), file, shape)
    return current.append_column(DELETED, rows.column(last))


def newest(parts: Sequence[pa.Table], shape: TableShape) -> pa.Table:
    """Return of each key the row of the last part that has it; of a table without a key all rows."""
    if not parts:
        return added_rows(arrow_schema(shape.fields).empty_table())
    return _newest(parts) if shape.keyed else pa.concat_tables(parts)


def _read_between(source: DataFile, between: KeyRange, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of the row groups that may have keys of a range."""
    if between == EVERY_KEY:
        return source.read(columns=columns)
    groups = [
        number
        for number, statistics, _ in _key_statistics(source)
        if statistics is None or between.has_between(statistics.min, statistics.max)
    ]
    return source.read_row_groups(groups, columns=columns)


def groups_of(source: DataFile) -> Iterator[tuple[int, bytes, int, int]]:
    """Yield number, lowest key (if it is not known, a lower one), rows and bytes in the file of each row group."""
    for number, statistics, group in _key_statistics(source):
        low = b"" if statistics is None else statistics.min
        yield number, low, group.num_rows, group.total_byte_size


def _key_statistics(source: DataFile) -> Iterator[tuple[int, Any, Any]]:
    """Yield number, statistics of the key if it has both bounds, and footer of each row group.

    Parquet leaves out a bound of more than 4 KiB, which is b"" for pyarrow 17 if there is the other one. So a highest
    key that is not above the lowest one is not known, unless there is one key.
    """
    footer = source.metadata
    (place,) = (n for n in range(footer.num_columns) if footer.schema.column(n).path == KEY)
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        statistics = group.column(place).statistics
        is_known = statistics is not None and statistics.has_min_max
        is_known = is_known and (statistics.min < statistics.max or group.num_rows == 1)
        yield number, statistics if is_known else None, group


def read_history(target: Target, shape: TableShape, file: BucketFile) -> pa.Table:
    """Return the changes in a file of the history, with the columns of `history_schema`."""
    rows = opened(target, file.path, hint=_HISTORY_HINT).read()
    count = len(file.columns) + 2
    current = with_current_columns(rows.select(list(range(count))), file, shape)
    changes = rows.column(count).cast(CHANGE_TYPE)
    return pa.Table.from_arrays([*current.columns, changes], schema=history_schema(shape.fields))


def read_history_keys(target: Target, file: BucketFile) -> pa.Array:
    """Return the keys in a file of the history, each once; those of the lines that have one."""
    return pc.drop_null(pc.unique(read_keys(target, file, hint=_HISTORY_HINT)))


def read_history_changes(target: Target, file: BucketFile) -> pa.Table:
    """Return the changes in a file of the history, as the one column of the change."""
    rows = opened(target, file.path, hint=_HISTORY_HINT).read(columns=[CHANGE])
    return rows.cast(pa.schema([(CHANGE, CHANGE_TYPE)]))


def read_ends(target: Target, file: BucketFile) -> pa.Table:
    """Return the changes in a file of the history that end all rows, as `read_history_changes` does."""
    rows = read_history_changes(target, file)
    return rows.filter(pc.is_in(pc.struct_field(rows[CHANGE], "op"), pa.array(ENDS)))


def _newest(parts: Sequence[pa.Table]) -> pa.Table:
    """Return of each key the row of the last part; a part has each key once."""
    rows = pa.concat_tables(parts)
    if len(parts) == 1:
        return rows
    if is_large(rows[KEY]):  # one array cannot hold all keys
        later = [_one_column(one[KEY] for one in parts[place + 1 :]) for place in range(len(parts))]
        return pa.concat_tables(map(without_keys, parts, later))
    last = last_places(rows[KEY].combine_chunks())
    return rows if len(last) == rows.num_rows else taken(rows, pa.array(last))


def _one_column(columns: Iterable[pa.ChunkedArray]) -> pa.ChunkedArray:
    return pa.chunked_array([chunk for one in columns for chunk in one.chunks], pa.binary())


def without_deleted(deltas: pa.Table) -> pa.Table:
    """Return the rows of `read_deltas` that are not deleted."""
    return filtered(deltas, pc.invert(deltas[DELETED])).drop_columns([DELETED])


def read_table(target: Target, entry: TableEntry) -> pa.Table:
    """Return all rows of a table, with `__special` and `__key`."""
    shape = entry.shape()
    return read_rows(target, shape, entry.files, entry.deltas)


def read_rows(
    target: Target, shape: TableShape, files: Iterable[BucketFile], deltas: Sequence[BucketFile]
) -> pa.Table:
    """Return the rows of base files under the deltas, and the rows of the deltas."""
    changed = read_deltas(target, shape, deltas)
    parts = [without_replaced(read_bucket(target, shape, file), changed, shape) for file in files]
    return pa.concat_tables([*parts, without_deleted(changed)])


def without_replaced(rows: pa.Table, changed: pa.Table, shape: TableShape) -> pa.Table:
    """Return the rows of a base file that the changed rows do not replace."""
    if not shape.keyed or not changed.num_rows:
        return rows
    return without_keys(rows, changed[KEY])


def read_part(target: Target, shape: TableShape, part: Part) -> pa.Table:
    """Return the rows of a part of a table."""
    if part.has_changes:
        changed = read_deltas(target, shape, part.deltas, between=part.keys)
        base = without_replaced(read_bucket(target, shape, part.file), changed, shape)
        return pa.concat_tables([base, without_deleted(changed)])
    rows = read_bucket(target, shape, part.file)
    if not shape.keyed or not part.deltas:
        return rows
    return without_keys(rows, _one_column(read_keys(target, one) for one in part.deltas))


def count_rows(target: Target, entry: TableEntry) -> int:
    """Return the number of rows; it reads the keys only, and of a table without deltas nothing."""
    if not entry.deltas:
        return sum(file.rows for file in entry.files)
    if not entry.keyed:
        return sum(file.rows for file in (*entry.files, *entry.deltas))
    return sum(_count(target, part) for part in parts_of(entry))


def _count(target: Target, part: Part) -> int:
    changed = _newest([_marks(target, file, part.keys) for file in part.deltas]) if part.deltas else None
    held = None if part.file is None else read_keys(target, part.file)
    found = 0 if held is None else len(held)
    if changed is not None and held is not None:
        found -= int(pc.sum(is_among(held, changed[KEY])).as_py() or 0)
    if changed is not None and part.has_changes:
        found += changed.num_rows - int(pc.sum(changed[DELETED]).as_py() or 0)
    return found


def _marks(target: Target, file: BucketFile, between: KeyRange) -> pa.Table:
    """Return the keys of a range in a delta, with `DELETED`."""
    source = opened(target, file.path)
    found = between.of(_read_between(source, between, [KEY, source.schema.names[-1]]))
    return pa.table({KEY: found[KEY], DELETED: found.column(found.num_columns - 1)})


def look_up(
    target: Target,
    shape: TableShape,
    files: Iterable[BucketFile],
    deltas: Sequence[BucketFile],
    keys: pa.Array,
) -> pa.Table:
    """Return the present rows of these keys. Of the base files it reads the row groups that may have one."""
    keys = keys.drop_null()  # of a TRUNCATE
    if not len(keys):
        return arrow_schema(shape.fields).empty_table()
    changed = read_deltas(target, shape, _with_keys(deltas, keys), keys)
    left = keys.filter(pc.invert(is_among(keys, changed[KEY])))
    parts = [_found(target, shape, file, left) for file in _with_keys(tuple(files), left)]
    return pa.concat_tables([*parts, without_deleted(changed)])


def _with_keys(files: Sequence[BucketFile], keys: pa.Array) -> list[BucketFile]:
    """Return the files that may have one of the keys, by their ranges."""
    found = keys.take(pc.sort_indices(keys))
    places = [
        (place_of(found, its.low), len(found) if its.high is None else place_of(found, its.high))
        for its in ranges_of(files)
    ]
    return [one for one, (first, end) in zip(files, places, strict=True) if first < end]


def possible_keys(target: Target, file: BucketFile, keys: pa.Array | None = None) -> pa.ChunkedArray:
    """Return the keys of a base file; if others are given, those of the row groups that may have one of them."""
    with opened_in_parts(target, file.path) as source:
        if keys is None:
            return source.read(columns=[KEY])[KEY]
        return source.read_row_groups(_groups_with(source, keys), columns=[KEY])[KEY]


def has_texts(target: Target, file: BucketFile) -> bool:
    """Return whether a row of a file may have special texts, by the statistics of the file."""
    with opened_in_parts(target, file.path) as source:
        footer = source.metadata
    leaves = [n for n in range(footer.num_columns) if _is_of(footer.row_group(0).column(n), SPECIAL)]
    return any(
        _has_values(footer.row_group(group).column(n))
        for group in range(footer.num_row_groups)
        for n in leaves
    )


def _is_of(column: Any, name: str) -> bool:
    return bool(column.path_in_schema.partition(".")[0] == name)


def _has_values(column: Any) -> bool:
    statistics = column.statistics
    return statistics is None or not statistics.has_null_count or statistics.null_count < column.num_values


def _found(target: Target, shape: TableShape, file: BucketFile, keys: pa.Array) -> pa.Table:
    source = opened(target, file.path)
    rows = source.read_row_groups(_groups_with(source, keys))
    rows = rows.filter(pc.is_in(rows[KEY], value_set=keys))
    return with_current_columns(rows, file, shape)


def _groups_with(source: DataFile, keys: pa.Array) -> list[int]:
    """Return the row groups that may have one of the keys."""
    return [number for number, statistics, _ in _key_statistics(source) if _may_have(statistics, keys)]


def _may_have(statistics: Any, keys: pa.Array) -> bool:
    if statistics is None:
        return True
    low, high = (pa.scalar(one, pa.binary()) for one in (statistics.min, statistics.max))
    return bool(pc.any(pc.and_(pc.greater_equal(keys, low), pc.less_equal(keys, high))).as_py())


def with_current_columns(rows: pa.Table, file: BucketFile, shape: TableShape) -> pa.Table:
    """Return rows of a file, without further columns, with the current columns."""
    numbers = tuple(one.number for one in shape.fields)
    if rows.schema.equals(arrow_schema(shape.fields)) and file.columns == numbers:
        return rows
    return align(rows, file.columns, shape)
