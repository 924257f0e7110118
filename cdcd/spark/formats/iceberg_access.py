"""The metadata of one Iceberg table in a storage, in the layout of Hadoop tables: `metadata/v<number>.metadata.json`.

In: the storage of a target, the table's folder.  Out: versions of the metadata, and the files that these name.
Invariant: a version is created by the first writer of its number; for any other one that is StorageConflict.
`version-hint.text`, with which readers begin, never goes back to an earlier version of this writer.
Must not: know what is in the metadata; put a library's text into an error, which may have names of columns.
"""

from __future__ import annotations

import io
import json
import re
import struct
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import fastavro

from cdcd.errors import ConfigError, StorageConflict, StorageError
from cdcd.spark.formats.table_log import CHANGED_HINT
from cdcd.spark.storage.uri import Storage, Version

__all__ = ["IcebergAccess", "MetadataFile", "require_iceberg"]

METADATA = "metadata"
HINT = "version-hint.text"
MAX_BYTES = 256 << 20
_MADE = re.compile(
    r"(?:v(\d{1,18})\.metadata\.json|(?:manifest|snap)-(\d{1,18})-[0-9a-f]{32}\.avro)(?:\.[0-9a-f]{32})?"
)
"""The files of this writer, and what a crash leaves in a local folder; the number is that of the version."""
_CHANGED = "the Iceberg table has another version than this mirror has written: another writer changes it"
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zlib.error, struct.error)
_NAME = re.compile(r"\w[\w.%=+-]{0,199}", re.ASCII)
"""The name of a file of the metadata, also of another writer."""


def require_iceberg() -> None:
    """Raise ConfigError if PyIceberg is not installed."""
    try:
        import pyiceberg  # noqa: F401 - an optional library
    except ImportError:
        raise ConfigError(
            "the format iceberg needs the package pyiceberg, which is not installed",
            hint="install cdcd with its extra `spark-iceberg` where the mirror is started",
        ) from None


class MetadataFile:
    """A file in memory, with the methods of PyIceberg's InputFile and OutputFile."""

    def __init__(self, location: str, data: bytes = b"") -> None:
        self.location, self.data = location, data

    def __len__(self) -> int:
        return len(self.data)

    def create(self, overwrite: bool = False) -> io.BytesIO:
        """Return a stream whose bytes are those of the file once it is closed."""
        return _Written(self)

    def open(self, seekable: bool = True) -> io.BytesIO:
        """Return a stream of the bytes."""
        return io.BytesIO(self.data)


class _Written(io.BytesIO):
    def __init__(self, file: MetadataFile) -> None:
        super().__init__()
        self._file = file

    def close(self) -> None:
        if not self.closed:
            self._file.data = self.getvalue()
        super().close()


@dataclass
class IcebergAccess:
    """Where an Iceberg table is."""

    target: Storage
    folder: str
    _hint: Version | None = field(default=None, init=False)
    """The version of the hint that this writer has written."""

    @property
    def location(self) -> str:
        """The table's URI, or its path in a local folder: the metadata has absolute paths."""
        local = self.target.folder
        return str(local / self.folder) if local is not None else f"{self.target.uri}/{self.folder}"

    def location_of(self, path: str) -> str:
        """Return the location of a file of the target."""
        return f"{self.location}/{path.removeprefix(f'{self.folder}/')}"

    def new_file(self, kind: str, number: int) -> MetadataFile:
        """Return a file with a name of its own for a version."""
        return MetadataFile(f"{self.location}/{METADATA}/{kind}-{number}-{uuid.uuid4().hex}.avro")

    def write(self, file: MetadataFile) -> None:
        """Store a file, durably."""
        self.target.write(self._path(file.location.rpartition("/")[2]), file.data)

    def new_input(self, location: str) -> MetadataFile:
        """Return an Avro file that the metadata names. It is looked up by its name, wherever the target was before.

        Raises an error for other bytes: PyIceberg's decoder reads behind their end, which ends the process.
        """
        name = location.rpartition("/")[2]
        if _NAME.fullmatch(name) is None:  # of damaged bytes; the storage would refuse it
            raise ValueError("the metadata has a name that no file has")
        data = self._content(self._path(name))
        for _ in fastavro.reader(io.BytesIO(data)):
            pass
        return MetadataFile(location, data)

    def metadata(self, number: int) -> bytes:
        """Return the metadata of a version. Raises FileNotFoundError if there is none, StorageError."""
        return self._content(self._path_of(number))

    def _content(self, path: str) -> bytes:
        found = self.target.read_versioned(path, max_bytes=MAX_BYTES)
        if found is None:
            raise FileNotFoundError(path)
        return found.data

    def file_of(self, number: int) -> str:
        """Return the path of the metadata of a version, or the folder of the metadata if that one is readable."""
        with suppress(OSError, ValueError):
            if isinstance(json.loads(self.metadata(number)), dict):
                return f"{self.folder}/{METADATA}"
        return self._path_of(number)

    def newest(self, known: int | None = None) -> int | None:
        """Return the newest version, None if there is no table. `known`: one that exists."""
        if known is None:
            numbers = [number for number, path in self._made() if path == self._path_of(number)]
            return max(numbers, default=None)
        while self.target.exists(self._path_of(known + 1)):
            known += 1
        return known

    def put(self, number: int, data: bytes) -> None:
        """Create the metadata of a version. Raises StorageConflict if another writer was first."""
        path = self._path_of(number)
        try:
            self.target.put_new(path, data)
        except StorageError:
            # The answer to a successful request may be lost, and its repetition fails then.
            found = self.target.read_versioned(path, max_bytes=MAX_BYTES)
            if found is None:
                raise
            if found.data != data:
                raise self.changed() from None

    def write_hint(self, number: int) -> None:
        """Write the number of the newest version for readers, unless the hint has a higher one that exists."""
        path, data = self._path(HINT), str(number).encode()
        if self._hint is not None:
            try:
                self._hint = self.target.replace(path, data, self._hint)
                return
            except StorageConflict:
                pass
        found = self.target.read_versioned(path, max_bytes=MAX_BYTES)
        if found is None:
            self._hint = self.target.put_new(path, data)
        elif found.data == data:
            self._hint = found.version
        elif not self._is_higher(found.data, number):
            self._hint = self.target.replace(path, data, found.version)

    def _is_higher(self, hint: bytes, number: int) -> bool:
        return (
            hint.isdigit()
            and len(hint) < 19
            and int(hint) > number
            and self.target.exists(self._path_of(int(hint)))
        )

    def remove_before(self, number: int, needed: set[str]) -> None:
        """Remove the files of earlier versions, except those of which the names are needed."""
        old = [path for of, path in self._made() if of < number and path.rpartition("/")[2] not in needed]
        self.target.delete(old)

    def changed(self, **context: object) -> StorageConflict:
        """Return the error for a table that another writer has changed."""
        return StorageConflict(
            _CHANGED, hint=CHANGED_HINT, target=self.target.uri, table=self.folder, **context
        )

    @contextmanager
    def errors(self, action: str) -> Iterator[None]:
        """Translate errors of the library, and those of files that are not metadata."""
        from pyiceberg.exceptions import ValidationError

        try:
            yield
        except (*_UNREADABLE, ValidationError) as error:
            raise StorageError(
                f"cannot {action} an Iceberg table of the target ({type(error).__name__})",
                hint="restore the folder metadata of the table from a backup, or mirror into an empty target",
                target=self.target.uri,
                table=self.folder,
            ) from error

    def _made(self) -> Iterator[tuple[int, str]]:
        """Yield the files of this writer, each with the number of its version."""
        for path in self.target.paths(f"{self.folder}/{METADATA}"):
            found = _MADE.fullmatch(path.rpartition("/")[2])
            if found is not None:
                yield int(found[1] or found[2]), path

    def _path_of(self, number: int) -> str:
        return self._path(f"v{number}.metadata.json")

    def _path(self, name: str) -> str:
        return f"{self.folder}/{METADATA}/{name}"
