"""One Parquet file of a mirror, opened for reading.

In: the storage, the path of a file.  Out: columns and row groups of it.
Invariant: a file that cannot be decoded is an error of its table only, which has the file's name and no value.
Must not: know what the columns are; take an error of the storage, or a lack of memory, for such a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from cdcd.errors import MirrorInconsistent
from cdcd.spark.storage.uri import Target, open_storage
from cdcd.spark.target.large_columns import lacks_room

__all__ = ["DataFile", "opened", "opened_in_parts"]

_HINT = (
    "copy the table again: `cdcd snapshot start --table SCHEMA.TABLE --recopy`; a mirror with --on-error fail, and a "
    "reader of an earlier version, need the file from a backup of the target"
)


class DataFile:
    """An open file. All methods raise MirrorInconsistent for bytes that are no Parquet file, StorageError."""

    def __init__(self, path: str, source: Path | BinaryIO | pa.BufferReader) -> None:
        self._path = path
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
                f"a file of the table cannot be decoded ({type(error).__name__})", hint=_HINT, file=self._path
            ) from None


def opened(target: Target, path: str) -> DataFile:
    """Open a file, to read most of it."""
    storage = open_storage(target)
    if storage.folder is not None:
        with suppress(OSError):  # the storage raises the error
            return DataFile(path, storage.folder / path)
    return DataFile(path, pa.BufferReader(storage.read(path)))


@contextmanager
def opened_in_parts(target: Target, path: str) -> Iterator[DataFile]:
    """Open a file of which only the parts are requested that are read."""
    with open_storage(target).open(path) as source:
        yield DataFile(path, source)
