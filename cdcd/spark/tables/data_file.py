"""One Parquet file of a mirror, opened for reading.

In: the storage, the path of a file.  Out: columns and row groups of it.
Invariant: a file that cannot be decoded, or is missing, is an error of its table only, which has the file's name and
no value.
Must not: know what the columns are; open a file outside of the target; take an error of the storage, or a lack of
memory, for such a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from cdcd.errors import MirrorInconsistent, StorageError, StorageUnavailable, TableFileMissing
from cdcd.spark.storage.uri import Storage, Target, check_path, open_storage
from cdcd.spark.target.commit_log import LATEST
from cdcd.spark.target.large_columns import lacks_room

__all__ = ["FILE_ERRORS", "DataFile", "opened", "opened_in_parts"]

FILE_ERRORS = (MirrorInconsistent, TableFileMissing)
"""The errors of a file that concern its table only."""
_HINT = (
    "copy the table again: `cdcd snapshot start --table SCHEMA.TABLE --recopy`; a mirror with --on-error fail, and a "
    "reader of an earlier version, need the file from a backup of the target"
)


class DataFile:
    """An open file. All methods raise MirrorInconsistent for bytes that are no Parquet file, StorageError."""

    def __init__(self, path: str, source: Path | BinaryIO | pa.BufferReader, hint: str | None = None) -> None:
        self._path, self._hint = path, hint or _HINT
        with self._errors():
            self._opened = pq.ParquetFile(source, memory_map=isinstance(source, Path))

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows."""
        groups = range(self._opened.num_row_groups)
        return self._read(lambda: self._opened.read(columns=columns), groups, columns)

    def read_row_groups(self, groups: Sequence[int], columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of some row groups."""
        return self._read(lambda: self._opened.read_row_groups(groups, columns=columns), groups, columns)

    def _read(
        self, read: Callable[[], pa.Table], groups: Sequence[int], columns: Sequence[str] | None
    ) -> pa.Table:
        """Return the rows of row groups; one by one if a list's texts in all of them have more than 2 GiB."""
        with self._errors():
            try:
                return read()
            except pa.ArrowNotImplementedError:
                return pa.concat_tables(
                    self._opened.read_row_groups([group], columns=columns) for group in groups
                )

    @property
    def metadata(self) -> Any:
        """The footer."""
        return self._opened.metadata

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        with self._errors():
            return self._opened.schema_arrow

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except MemoryError:  # Arrow's is an ArrowException
            raise
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno:  # of the disk, not of the decoder
                raise
            if isinstance(error, pa.ArrowException) and lacks_room(error):
                raise
            raise MirrorInconsistent(
                f"a file of the table cannot be decoded ({type(error).__name__})",
                hint=self._hint,
                file=self._path,
            ) from None


def opened(target: Target, path: str, *, hint: str | None = None) -> DataFile:
    """Open a file, to read most of it. `hint`: of the error if it is missing or not readable, None: the usual."""
    storage = open_storage(target)
    check_path(path)
    with _missing_as_such(storage, path, hint):
        if storage.folder is not None:
            with suppress(OSError):  # the storage raises the error
                return DataFile(path, storage.folder / path, hint)
        return DataFile(path, pa.BufferReader(storage.read(path)), hint)


@contextmanager
def opened_in_parts(target: Target, path: str) -> Iterator[DataFile]:
    """Open a file of which only the parts are requested that are read."""
    storage = open_storage(target)
    with _missing_as_such(storage, path, None), storage.open(path) as source:
        yield DataFile(path, source)


@contextmanager
def _missing_as_such(storage: Storage, path: str, hint: str | None) -> Iterator[None]:
    """Raise TableFileMissing for an error of the storage if it says that there is no such file.

    Without the records of the mirror all files are missing: the disk is not mounted, or the target was removed.
    """
    try:
        yield
    except StorageUnavailable:
        raise
    except StorageError:
        if storage.exists(path) or not storage.exists(LATEST):
            raise
        raise TableFileMissing(
            "a file of the table does not exist", hint=hint, target=storage.uri, file=path
        ) from None
