"""The files of a target, by its URI: a local folder, a prefix of a bucket, or a folder of HDFS.

In: a path or URI, and options of the storage.  Out: a `Storage`, whose paths are relative to the URI.
Invariant: a reader sees a file complete or not at all. Of several writers that create one file, or replace one
version of it, exactly one succeeds; the others get StorageConflict. An error names the URI without credentials.
Must not: know what is in the files, connect, read a secret (each storage does, at its first request).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

from cdcd.errors import StorageError

CLOUD_SCHEMES = ("s3", "s3a", "gs", "abfs", "abfss")
FORMS = (
    "a local path, file:///PATH, s3://BUCKET/PATH, gs://BUCKET/PATH, "
    "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH, hdfs://NAME_NODE:PORT/PATH"
)
MAX_FILE_BYTES = 8 << 30
MAX_FILES = 5_000_000
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


@dataclass(frozen=True, slots=True)
class Version:
    """The version of a file: an entity tag, in a storage that has them also a generation."""

    tag: str | None
    generation: str | None = None


def version_of_content(data: bytes) -> Version:
    """Return the version of a file in a storage that gives files none: the hash of the content."""
    return Version(hashlib.blake2b(data, digest_size=16).hexdigest())


@dataclass(frozen=True, slots=True)
class StoredFile:
    """The content of a file, and its version."""

    data: bytes
    version: Version


class Storage(Protocol):
    """Files below a URI. All methods raise StorageError; a conflict is StorageConflict."""

    @property
    def uri(self) -> str:
        """The URI, without credentials."""

    @property
    def folder(self) -> Path | None:
        """The local folder, None if the files are elsewhere."""

    def client_options(self) -> Mapping[str, str]:
        """Return the options of another client of these files, with the secrets. Raises SecretUnreadable."""

    def read(self, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return the content of a file. Raises StorageError also if there is none."""

    def open(self, path: str) -> BinaryIO:
        """Return an open file, of which only the parts are read that a reader asks for."""

    def read_versioned(self, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> StoredFile | None:
        """Return content and version of a file, None if there is none."""

    def exists(self, path: str) -> bool:
        """Return whether there is a file of this path."""

    def put_new(self, path: str, data: bytes) -> Version:
        """Create a file. Raises StorageConflict if there is one of this path."""

    def replace(self, path: str, data: bytes, version: Version) -> Version:
        """Replace this version of a file. Raises StorageConflict if the file has another version, or is gone."""

    def write(self, path: str, data: bytes | memoryview) -> None:
        """Create or replace a file, whatever its version is."""

    def paths(self, prefix: str = "") -> Iterator[str]:
        """Yield the paths of all files, or of those in the folder `prefix`, in no order."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; ignore those that do not exist."""


Target = str | Path | Storage
"""A target as callers name it."""


def open_storage(target: Target, options: Mapping[str, str] | None = None) -> Storage:
    """Return the storage of a path or URI, without a request to it.

    `options` are those of the storage's client, such as aws_endpoint; a secret is a reference (file:PATH, env:NAME).
    Raises StorageError for a URI, ConfigError for an option that cannot be used.
    """
    if not isinstance(target, str | Path):
        return target
    found = _SCHEME.match(target) if isinstance(target, str) else None
    scheme = found[1].lower() if found else "file"
    if scheme in CLOUD_SCHEMES:
        from cdcd.spark.storage.cloud import cloud_storage  # its library is optional

        return cloud_storage(_bucket_uri(str(target), scheme), options or {})
    if scheme == "hdfs":
        from cdcd.spark.storage.hdfs import hdfs_storage  # its library is optional

        return hdfs_storage(_hdfs_uri(str(target)), options or {})
    if scheme in ("webhdfs", "swebhdfs"):
        raise StorageError(
            "HDFS is reached by its own protocol, not by HTTP",
            hint="use hdfs://NAME_NODE:PORT/PATH",
            scheme=scheme,
        )
    if scheme != "file":
        raise StorageError("the scheme of the target is unknown", hint=f"use {FORMS}", scheme=scheme)
    if options:
        raise StorageError(
            "a local target has no options", hint="remove them", options=", ".join(sorted(options))
        )
    from cdcd.spark.storage.local import LocalStorage

    return LocalStorage(_local_path(target) if found else Path(target))


def _local_path(uri: str | Path) -> Path:
    parts = urlsplit(str(uri))
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise StorageError("the target is not the URI of a local folder", hint="use file:///PATH")
    return Path(unquote(parts.path))


def _bucket_uri(text: str, scheme: str) -> str:
    """Return the URI without a slash at its end. Raises StorageError for one with credentials or without bucket."""
    parts = urlsplit(text)
    user, at, host = parts.netloc.rpartition("@")
    has_container = scheme.startswith("abfs")
    if parts.query or parts.fragment or ":" in user or (at and not has_container):
        raise StorageError(
            "the URI of the target has credentials or parameters in it",
            hint="remove them, and set the credentials in the environment or the options of the target",
            target=f"{scheme}://***",
        )
    if not host or (has_container and not user):
        raise StorageError("the URI of the target has no bucket", hint=f"use {FORMS}", target=text)
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _hdfs_uri(text: str) -> str:
    """Return the URI without a slash at its end, its path as it is: Hadoop decodes no %. Raises StorageError."""
    _, has_host, place = text.partition("://")
    if not has_host:
        raise StorageError("the URI of the target has no host", hint=f"use {FORMS}", target=text)
    host, _, path = place.partition("/")
    if "@" in host:
        raise StorageError(
            "the URI of the target has credentials in it",
            hint="remove them: the user is HADOOP_USER_NAME, or the principal of the Kerberos ticket",
            target="hdfs://***",
        )
    path = path.rstrip("/")
    if path:
        check_path(path)
    return f"hdfs://{host}/{path}".rstrip("/") if host else f"hdfs:///{path}"


def check_path(path: str) -> str:
    """Return a path below a target. Raises StorageError for one that leads out of it."""
    parts = path.split("/")
    if "" in parts or "." in parts or ".." in parts or "\0" in path:
        raise StorageError(
            "the path of a file leads out of the target, or is empty",
            hint="restore the record of the target that has the path from a backup",
            file=path,
        )
    return path
