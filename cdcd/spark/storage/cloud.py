"""The files of a target in a bucket of S3, Azure or Google Cloud, by obstore.

In: a URI without credentials, options with references.  Out: a `Storage`.
Invariant: creation and replacement are conditional requests (If-None-Match, If-Match). Each request has a time-out
and few retries. An error has the storage's code and status, never its text, which may have signatures and tokens.
Must not: send a secret to an executor: a storage is pickled without its client, and each process reads the secrets
itself.

Credentials that no option gives are those of the environment, as the clouds' own tools read them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from cdcd.errors import StorageError
from cdcd.property_names import has_user
from cdcd.redaction import add_user_of
from cdcd.spark.clients.secret_reference import ResolvedProperties, referred_in
from cdcd.spark.storage.options import OF_CLIENT, Options, storage_options
from cdcd.spark.storage.remote import RemoteStorage, is_panic
from cdcd.spark.storage.remote_file import remote_file
from cdcd.spark.storage.uri import MAX_FILE_BYTES, MAX_FILES, StoredFile, Version, check_path

REQUEST_TIMEOUT = "60s"
CONNECT_TIMEOUT = "5s"
RETRIES: Any = {"max_retries": 1000, "retry_timeout": timedelta(seconds=60)}
"""The time limits the retries, not their number: pauses are random, from 0.1 s, and eight may take one second."""
PART_BYTES = 16 << 20
"""A larger file is read and written in parts, so that the time-out of a request suffices on a slow link."""
_DELETED_AT_ONCE = 1000
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_NO_FILE = ("NoSuchKey", "BlobNotFound", None)
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_REFUSED, _SILENT = "access is refused", "the storage does not answer"
_RIGHTS = (
    "correct the credentials (AWS_*, AZURE_*, GOOGLE_* in the environment, or the options of the target), and give "
    "them the rights to list, read, write and delete below the target"
)


def cloud_storage(uri: str, options: Mapping[str, str]) -> CloudStorage:
    """Return the storage of a bucket's URI. Raises StorageError without obstore, ConfigError for an option."""
    try:
        import obstore  # noqa: F401 - an optional library
    except ImportError:
        raise StorageError(
            "a target in a bucket needs the package obstore, which is not installed",
            hint="install cdcd with its extra `spark-cloud`, on the executors too",
            target=uri,
        ) from None
    return CloudStorage(uri, storage_options(urlsplit(uri).scheme, options))


class CloudStorage(RemoteStorage):
    """A `Storage` of a prefix of a bucket."""

    def __init__(self, uri: str, options: Options) -> None:
        super().__init__(uri, options)
        self._client: Any = None

    def client_options(self) -> Mapping[str, str]:
        """Return the options of another client of these files, with the secrets. Raises SecretUnreadable."""
        return ResolvedProperties(_read(self._options), referred_in(self._options))

    def read(self, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return the content of a file. Raises StorageError also if there is none."""
        found = self.read_versioned(path, max_bytes=max_bytes)
        if found is None:
            raise StorageError(
                "a file of the target does not exist",
                hint="if a newer version of the mirror has replaced it, open the mirror again",
                target=self._uri,
                file=path,
            )
        return found.data

    def open(self, path: str) -> BinaryIO:
        """Return an open file; each read is a request."""
        import obstore

        with self._errors("read", path) as store:
            size = int(obstore.head(store, check_path(path))["size"])
        return remote_file(partial(self.read_range, path), size)

    def read_range(self, path: str, start: int, length: int) -> memoryview:
        """Return a part of a file."""
        import obstore

        with self._errors("read", path) as store:
            return memoryview(obstore.get_range(store, path, start=start, length=length))

    def read_versioned(self, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> StoredFile | None:
        """Return content and version of a file, None if there is none."""
        import obstore

        with self._errors("read", path) as store:
            try:
                answer = obstore.get(store, check_path(path))
            except FileNotFoundError as error:
                self._refuse_other(error)
                return None
            meta = answer.meta
            if meta["size"] > max_bytes:
                raise StorageError(
                    "a file is too large", target=self._uri, file=path, bytes=meta["size"], limit=max_bytes
                )
            if meta["size"] <= PART_BYTES:
                data = bytes(answer.bytes())
            else:
                data = b"".join(self._parts(store, path, meta["size"], meta["e_tag"]))
        return StoredFile(data, Version(meta["e_tag"], meta["version"]))

    def _parts(self, store: Any, path: str, size: int, tag: str | None) -> Iterator[bytes]:
        import obstore

        for start in range(0, size, PART_BYTES):
            wanted: Any = {"range": (start, min(start + PART_BYTES, size))}
            if tag is not None:
                wanted["if_match"] = tag
            yield bytes(obstore.get(store, path, options=wanted).bytes())

    def exists(self, path: str) -> bool:
        """Return whether there is a file of this path."""
        import obstore

        with self._errors("read", path) as store:
            try:
                obstore.get(
                    store, check_path(path)
                )  # the answer to HEAD does not say whether the bucket exists
            except FileNotFoundError as error:
                self._refuse_other(error)
                return False
        return True

    def put_new(self, path: str, data: bytes) -> Version:
        """Create a file. Raises StorageConflict if there is one of this path."""
        return self._put("create", path, data, "create")

    def replace(self, path: str, data: bytes, version: Version) -> Version:
        """Replace this version of a file. Raises StorageConflict if the file has another version, or is gone."""
        known = {"e_tag": version.tag, "version": version.generation}
        mode = {name: value for name, value in known.items() if value is not None}
        if not mode:
            raise StorageError("the storage does not return versions of files", target=self._uri, file=path)
        return self._put("replace", path, data, mode)

    def _put(self, action: str, path: str, data: bytes, mode: Any) -> Version:
        import obstore

        with self._errors(action, path) as store:
            try:
                written = obstore.put(store, check_path(path), data, mode=mode)
            except FileNotFoundError as error:
                self._refuse_other(error)
                raise self._conflict("another writer has removed the file", path) from None
        return Version(written["e_tag"], written["version"])

    def write(self, path: str, data: bytes | memoryview) -> None:
        """Create or replace a file, whatever its version is."""
        import obstore

        with self._errors("write", path) as store:
            whole = memoryview(data).cast("B")  # obstore takes a buffer of another format for an iterator
            obstore.put(store, check_path(path), whole, chunk_size=PART_BYTES, max_concurrency=4)

    def paths(self, prefix: str = "") -> Iterator[str]:
        """Yield the paths of all files, or of those in the folder `prefix`, in no order."""
        import obstore

        listed = 0
        with self._errors("list", prefix) as store:
            for some in obstore.list(store, check_path(prefix) if prefix else None):
                listed += len(some)
                if listed > MAX_FILES:
                    raise StorageError("the target has too many files", target=self._uri, limit=MAX_FILES)
                yield from (one["path"] for one in some)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; ignore those that do not exist."""
        left = iter(paths)
        while some := [check_path(path) for path in itertools.islice(left, _DELETED_AT_ONCE)]:
            if not self._deleted(some):  # one is gone already, which ends such a request in some storages
                for path in some:
                    self._deleted([path])

    def _deleted(self, paths: list[str]) -> bool:
        import obstore

        with self._errors("delete", paths[0]) as store:
            try:
                obstore.delete(store, paths)
            except FileNotFoundError as error:
                self._refuse_other(error)
                return False
        return True

    @contextlib.contextmanager
    def _errors(self, action: str, path: str) -> Iterator[Any]:
        """Yield the client. An error of the library becomes one of cdcd, without the text of the answer."""
        from obstore import exceptions

        try:
            if self._client is None:
                self._client = _client(self._uri, self._options)
            yield self._client
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
            if not _is_of_a_file(error):  # obstore takes each 404 of a conditional request for a removed file
                raise self._translated(error, action, path) from None
            done = "created" if action == "create" else "replaced"
            raise self._conflict(f"another writer has {done} the file", path) from None
        except (exceptions.BaseError, OSError, ValueError, NotImplementedError) as error:
            raise self._translated(error, action, path) from None
        except BaseException as error:
            if not is_panic(error):
                raise
            raise self._translated(ValueError(), action, path) from None

    @staticmethod
    def _refuse_other(error: FileNotFoundError) -> None:
        """Raise the error again, unless the file alone is missing, not the bucket or the user."""
        if not _is_of_a_file(error):
            raise error

    def _translated(self, error: Exception, action: str, path: str) -> StorageError:
        explained = _explained(error)
        if explained[0] == _REFUSED:  # the secret may have been rotated: the next request reads it again
            self._client = None
        of_answer = {"code": _code(error), "status": _status(error)}
        return self._failure(action, path, explained, heals=_heals(error, explained[0]), **of_answer)


def _client(uri: str, options: Options) -> Any:
    """Return a new client. Raises SecretUnreadable, and errors of the library."""
    from obstore.store import from_url

    read = _read(options)
    of_client: Any = {
        **{name: one for name, one in read.items() if name in (*OF_CLIENT, "connect_timeout")},
        "allow_http": read["allow_http"] == "true",
    }
    config: Any = {name: one for name, one in read.items() if name not in of_client}
    return from_url(uri, config=config, client_options=of_client, retry_config=RETRIES)


def _read(options: Options) -> dict[str, str]:
    """Return the options with their secrets, and with those of the client."""
    read = {name: one if isinstance(one, str) else one.read() for name, one in options}
    for name, value in read.items():
        if has_user(name, value):
            add_user_of(value)
    # Options of the client replace those of the environment, also this one.
    allowed = (os.environ.get(f"{name}_ALLOW_HTTP", "") for name in ("AWS", "AZURE", "GOOGLE"))
    allows_http = "true" in (read.get("allow_http", "").lower(), *map(str.lower, allowed))
    usual = {"timeout": REQUEST_TIMEOUT, "connect_timeout": CONNECT_TIMEOUT}
    return usual | read | {"allow_http": str(allows_http).lower()}


def _code(error: Exception) -> str | None:
    found = _CODE.search(str(error))
    return found[1] if found else None


def _status(error: Exception) -> str | None:
    found = _STATUS.search(str(error))
    return found[1] if found else None


def _is_of_a_file(error: Exception) -> bool:
    """Return whether an error is not that of a missing bucket or user, which also have the status 404."""
    return _status(error) != "404" or _code(error) in _NO_FILE


def _heals(error: Exception, message: str) -> bool:
    """Return whether a later request may succeed: with new credentials, or with a storage that is available again."""
    status = _status(error) or ""
    return message in (_REFUSED, _SILENT) or status in ("408", "429", "500") or status > "501"


def _explained(error: Exception) -> tuple[str, str]:
    """Return the cause and what to do, of the library's error."""
    from obstore import exceptions

    text, code, status = str(error), _code(error), _status(error)
    if code in _NO_BUCKET:
        return "the bucket does not exist", "create the bucket, or correct the URI of the target"
    if "/latest/api/token" in text or "metadata.google.internal" in text or "/metadata/identity" in text:
        return "there are no credentials", _RIGHTS
    if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
        return _REFUSED, _RIGHTS
    if status in ("401", "403") or not _is_of_a_file(error):
        return _REFUSED, _RIGHTS
    if isinstance(error, exceptions.NotSupportedError | NotImplementedError) or status == "501":
        return (
            "the storage does not have conditional requests",
            "choose a storage with If-Match and If-None-Match",
        )
    if "BadScheme" in text:
        return (
            "the endpoint is not HTTPS",
            "correct the endpoint, or allow HTTP (option allow_http of the target: true)",
        )
    if "HTTP error" in text:
        return _SILENT, "check the endpoint, the network and the proxy of this host"
    if status is None:
        return (
            "the client cannot make the request",
            "correct the URI, the options, and the variables and files of credentials: see docs/spark/storage.md",
        )
    return "the storage answers with an error", "look up the code in the storage's documentation, or its log"
