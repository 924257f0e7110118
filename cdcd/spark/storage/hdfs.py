"""The files of a target in HDFS, with the guarantees of an object store.

In: a URI, options.  Out: a `Storage`.
Invariant: a file appears by the rename of a complete file, which is on the disks of its data nodes: the name node
renames atomically, and onto no other file unless asked to. Of several replacements of one version one succeeds.
Must not: wait without end (`hdfs_client`); show the text of an error of the server.

HDFS has no conditional replacement, and no lock that ends with its holder. But a rename fails if its source is gone:
who deletes the complete file that another writer is about to rename has stopped that writer, however late it is.
So a replacement is a candidate `<name>.<number><random>`, with a higher number than all others. It withdraws if it
then sees a higher one. Else it deletes the lower ones, compares the version, and renames itself. Of two candidates
the higher one sees the lower one and deletes it, or the lower one is there later, sees the higher one and withdraws;
what is gone already has been renamed, and is another version. A crash leaves a candidate, which the next one deletes:
no time-out is part of this. The other writes have the number 0, which nobody deletes.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from cdcd.errors import ConfigError, StorageError, StorageUnavailable
from cdcd.spark.clients.secret_reference import ResolvedProperties
from cdcd.spark.storage.hdfs_client import (
    OF_THE_LOGIN,
    PART_BYTES,
    PART_WITHIN_S,
    HdfsClient,
    Options,
    explained,
    hdfs_options,
    heals,
    kind_of,
    properties_of,
    repeated,
)
from cdcd.spark.storage.remote import RemoteStorage, is_panic
from cdcd.spark.storage.remote_file import remote_file
from cdcd.spark.storage.uri import (
    MAX_FILE_BYTES,
    MAX_FILES,
    StoredFile,
    Version,
    check_path,
    version_of_content,
)

_LISTED_AT_ONCE = 1000
_PLAIN = re.compile(r"[A-Za-z0-9._~/-]+")
"""Paths that a URL has as they are. delta-rs looks for another one under its encoded name, and finds nothing."""
_NOT_RENAMED = "the file was not renamed, or the answer of the name node was lost"


def hdfs_storage(uri: str, options: Mapping[str, str]) -> HdfsStorage:
    """Return the storage of a URI. Raises StorageError without hdfs-native, ConfigError for an option."""
    try:
        import hdfs_native  # noqa: F401 - an optional library
    except ImportError:
        raise StorageError(
            "a target in HDFS needs the package hdfs-native, which is not installed",
            hint="install cdcd with its extra `spark-hdfs`, on the executors too",
            target=uri,
        ) from None
    return HdfsStorage(uri, hdfs_options(urlsplit(uri).netloc, options))


class HdfsStorage(RemoteStorage):
    """A `Storage` of a folder of HDFS, which is created with the first file."""

    def __init__(self, uri: str, options: Options) -> None:
        super().__init__(uri, options)
        self._root = "/" + uri.partition("://")[2].partition("/")[2]
        self._client = HdfsClient(uri, options)

    def client_options(self) -> Mapping[str, str]:
        """Return the properties of delta-rs. Raises ConfigError for a path and for options that it does not have."""
        unknown = [name for name, _ in self._options if name in OF_THE_LOGIN or name == "config_dir"]
        if unknown:
            raise ConfigError(
                f"Delta tables in HDFS do not have the options {', '.join(unknown)}",
                hint="set HADOOP_CONF_DIR, and renew the ticket of Kerberos (kinit), on the driver",
            )
        if not _PLAIN.fullmatch(self._root):
            raise ConfigError(
                "Delta tables in HDFS need a path of letters without accents, digits and the characters . _ - ~",
                hint="choose another target, or the format parquet",
            )
        return ResolvedProperties(properties_of(urlsplit(self._uri).netloc, self._options))

    def read(self, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return the content of a file. Raises StorageError also if there is none."""
        with self._errors("read", path):
            return repeated(lambda: self._content(path, max_bytes))

    def open(self, path: str) -> BinaryIO:
        """Return an open file; each read is a request."""
        with self._errors("read", path):
            full = self._full(path)
            size = repeated(lambda: self._client.call(lambda hdfs: len(hdfs.read(full))))
        return remote_file(partial(self.read_range, path), size)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return a part of a file."""
        with self._errors("read", path):
            full = self._full(path)

            def part(hdfs: Any) -> bytes:
                return bytes(hdfs.read(full).read_range(start, length))

            return repeated(lambda: self._client.call(part, PART_WITHIN_S))

    def read_versioned(self, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> StoredFile | None:
        """Return content and version of a file, None if there is none."""
        with self._errors("read", path):
            try:
                data = repeated(lambda: self._content(path, max_bytes))
            except FileNotFoundError:
                return None
        return StoredFile(data, version_of_content(data))

    def exists(self, path: str) -> bool:
        """Return whether there is a file of this path."""
        with self._errors("read", path):
            full = self._full(path)
            try:
                found = repeated(lambda: self._client.call(lambda hdfs: hdfs.get_file_info(full)))
            except FileNotFoundError:
                return False
        return not found.isdir

    def put_new(self, path: str, data: bytes) -> Version:
        """Create a file. Raises StorageConflict if there is one of this path."""
        with self._errors("create", path), self._complete(path, data, 0) as complete:
            try:
                self._rename(complete, path, overwrite=False)
            except FileExistsError:
                raise self._conflict("another writer has created the file", path) from None
            except FileNotFoundError:
                raise self._lost(path) from None
        return version_of_content(data)

    def replace(self, path: str, data: bytes, version: Version) -> Version:
        """Replace this version of a file. Raises StorageConflict if the file has another version, or is gone."""
        with self._errors("replace", path):
            number = 1 + max((_number(one) for one in self._candidates(path)), default=0)
            try:
                with self._complete(path, data, number) as mine:
                    self._prevail(path, mine)
                    stored = self.read_versioned(path)
                    if stored is None or stored.version != version:
                        raise self._conflict("another writer has replaced the file", path)
                    self._rename(mine, path, overwrite=True)
            except FileNotFoundError:  # it is deleted while it is written, or afterwards
                raise self._conflict("another writer is replacing the file", path) from None
        return version_of_content(data)

    def _prevail(self, path: str, mine: str) -> None:
        """Delete the lower candidates. Raises StorageConflict if there is a higher one."""
        others = [one for one in self._candidates(path) if one != mine]
        if any(one > mine for one in others):
            raise self._conflict("another writer is replacing the file", path)
        self.delete(others)

    def _candidates(self, path: str) -> list[str]:
        """Return the paths of the candidates to replace a file. Their order as texts is that of their numbers."""
        folder, _, name = path.rpartition("/")
        pattern = re.compile(re.escape(name) + r"\.[0-9a-f]{32}")
        listed = (one for some in self._listed(folder, recursive=False) for one in some)
        return [one for one in listed if pattern.fullmatch(one.rpartition("/")[2]) and _number(one)]

    def write(self, path: str, data: bytes | memoryview) -> None:
        """Create or replace a file, whatever its version is."""
        with self._errors("write", path), self._complete(path, data, 0) as complete:
            try:
                self._rename(complete, path, overwrite=True)
            except FileNotFoundError:
                raise self._lost(path) from None

    def paths(self, prefix: str = "") -> Iterator[str]:
        """Yield the paths of all files, or of those in the folder `prefix`, in no order."""
        listed = 0
        with self._errors("list", prefix):
            for some in self._listed(check_path(prefix) if prefix else "", recursive=True):
                listed += len(some)
                if listed > MAX_FILES:
                    raise StorageError("the target has too many files", target=self._uri, limit=MAX_FILES)
                yield from some

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; ignore those that do not exist."""
        for path in paths:
            with self._errors("delete", path):
                self._remove(path)

    def _remove(self, path: str) -> None:
        full = self._full(path)
        repeated(lambda: self._client.call(lambda hdfs: hdfs.delete(full, False)))

    def _full(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{check_path(path)}"

    def _content(self, path: str, max_bytes: int) -> bytes:
        full = self._full(path)
        file = self._client.call(lambda hdfs: hdfs.read(full))
        size = len(file)
        if size > max_bytes:
            raise StorageError(
                "a file is too large", target=self._uri, file=path, bytes=size, limit=max_bytes
            )
        parts = []
        for start in range(0, size, PART_BYTES):
            length = min(PART_BYTES, size - start)
            parts.append(self._client.call(partial(_part, file, start, length), PART_WITHIN_S))
        return b"".join(parts)

    def _listed(self, folder: str, *, recursive: bool) -> Iterator[list[str]]:
        """Yield the paths of files, some at a time; nothing for a folder that does not exist.

        An error after the first of them is not repeated: the library cannot continue a listing.
        """
        start = self._full(folder) if folder else self._root
        skipped = len(self._root.rstrip("/")) + 1

        def begun() -> tuple[Iterator[Any], list[Any]]:
            found = self._client.call(lambda hdfs: iter(hdfs.list_status(start, recursive)))
            return found, self._client.call(partial(_some, found))

        try:
            repeated(lambda: self._client.call(lambda hdfs: hdfs.get_file_info(start)))
        except FileNotFoundError:
            return
        found, statuses = repeated(begun)
        while statuses:
            yield [one.path[skipped:] for one in statuses if not one.isdir]
            statuses = self._client.call(partial(_some, found))

    @contextlib.contextmanager
    def _complete(self, path: str, data: bytes | memoryview, number: int) -> Iterator[str]:
        """Yield the path of a complete file with the data, deleted afterwards unless it was renamed."""
        complete = repeated(lambda: self._written(path, memoryview(data).cast("B"), number))
        with self._deleted_after_an_error(complete):
            yield complete

    def _written(self, path: str, data: memoryview, number: int) -> str:
        """Write a file of another name, which each attempt has of its own; return its path."""
        complete = f"{path}.{number:016x}{uuid.uuid4().hex[:16]}"
        full = self._full(complete)
        with self._deleted_after_an_error(complete):
            writer = self._client.call(lambda hdfs: hdfs.create(full))
            for start in range(0, len(data), PART_BYTES):
                part = bytes(data[start : start + PART_BYTES])
                self._client.call(partial(_append, writer, part), PART_WITHIN_S)
            # The last packet of a block makes the data nodes synchronise their disks.
            self._client.call(lambda _: writer.close(), PART_WITHIN_S)
        return complete

    @contextlib.contextmanager
    def _deleted_after_an_error(self, complete: str) -> Iterator[None]:
        try:
            yield
        except BaseException:
            # A request to rename that is still on its way has no effect then.
            with contextlib.suppress(OSError, RuntimeError):
                self._client.call(lambda hdfs: hdfs.delete(self._full(complete), False))
            raise

    def _rename(self, source: str, path: str, *, overwrite: bool) -> None:
        old, new = self._full(source), self._full(path)
        repeated(lambda: self._client.call(lambda hdfs: hdfs.rename(old, new, overwrite)))

    @contextlib.contextmanager
    def _errors(self, action: str, path: str) -> Iterator[None]:
        """An error of the library becomes one of cdcd."""
        try:
            yield
        except (OSError, RuntimeError, NotImplementedError, ValueError) as error:
            raise self._translated(error, action, path) from None
        except BaseException as error:
            if not is_panic(error):
                raise
            raise self._translated(ValueError(), action, path) from None

    def _translated(self, error: Exception, action: str, path: str) -> StorageError:
        return self._failure(action, path, explained(error), heals=heals(error), code=kind_of(error))

    def _lost(self, path: str) -> StorageUnavailable:
        return StorageUnavailable(_NOT_RENAMED, target=self._uri, file=path)


def _some(found: Iterator[Any], _: Any) -> list[Any]:
    return [*islice(found, _LISTED_AT_ONCE)]


def _part(file: Any, start: int, length: int, _: Any) -> bytes:
    return bytes(file.read_range(start, length))


def _append(writer: Any, data: bytes, _: Any) -> None:
    writer.write(data)


def _number(candidate: str) -> int:
    return int(candidate[-32:-16], 16)
