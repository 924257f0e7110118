"""One Delta table of a storage, by delta-rs: opened, with the library's errors translated.

In: the storage of a target, the table's folder ("" is the target itself).  Out: delta-rs's table.
Invariant: an error names the target and the folder; never the library's text, which may have signatures and tokens.
A commit that another writer was before is StorageConflict.
Must not: read or write rows, commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from cdcd.errors import ConfigError, StorageConflict, StorageError, StorageUnavailable
from cdcd.spark.storage.local import sync
from cdcd.spark.storage.remote import is_panic
from cdcd.spark.storage.uri import Storage

__all__ = ["DeltaAccess", "check_delta_target", "require_delta"]

LOG = "_delta_log"
_S3 = ("s3://", "s3a://")


def require_delta(what: str = "the format delta", where: str = "the mirror is started") -> None:
    """Raise ConfigError if delta-rs is not installed."""
    try:
        import deltalake  # noqa: F401 - an optional library
    except ImportError:
        raise ConfigError(
            f"{what} needs the package deltalake, which is not installed",
            hint=f"install cdcd with its extra `spark-delta` where {where}",
        ) from None


def check_delta_target(target: Storage) -> None:
    """Raise ConfigError for a target in HDFS that delta-rs does not reach."""
    if target.uri.startswith("hdfs:"):
        target.client_options()  # it has no secrets


@dataclass(frozen=True, slots=True)
class DeltaAccess:
    """Where a Delta table is. `conflict` and `conflict_hint`: the text of StorageConflict."""

    target: Storage
    folder: str
    conflict: str
    conflict_hint: str

    @property
    def uri(self) -> str:
        """The table's URI, or its path in a local folder."""
        local = self.target.folder
        if local is not None:
            return str(local / self.folder)
        return f"{self.target.uri}/{self.folder}".rstrip("/")

    @property
    def options(self) -> dict[str, str]:
        """The options of delta-rs, with the secrets. Raises SecretUnreadable."""
        known = dict(self.target.client_options())
        return known | {"aws_conditional_put": "etag"} if self.target.uri.startswith(_S3) else known

    def open(self, version: int | None = None) -> Any:
        """Return the table at a version, None: the newest one."""
        from deltalake import DeltaTable

        with _panics_as_errors():
            return DeltaTable(self.uri, version=version, storage_options=self.options)

    def exists(self) -> bool:
        """Return whether there is a Delta table."""
        from deltalake import DeltaTable

        with _panics_as_errors():
            return bool(DeltaTable.is_deltatable(self.uri, self.options))

    def synchronise(self, version: int) -> None:
        """Make a commit durable in a local folder, where delta-rs leaves that to the system."""
        if self.target.folder is None:
            return
        log = self.target.folder / self.folder / LOG
        name = f"{version:020d}"
        for path in (log / f"{name}.json", log / f"{name}.checkpoint.parquet", log / "_last_checkpoint"):
            with suppress(FileNotFoundError):
                sync(path)
        for path in (log, log.parent, log.parent.parent):
            sync(path)

    @contextmanager
    def errors(self, action: str, version: Callable[[], int | None]) -> Iterator[None]:
        """Translate the library's errors. `version`: the newest version that this writer knows."""
        from deltalake.exceptions import CommitFailedError, DeltaError

        try:
            with _panics_as_errors():
                yield
        except (DeltaError, OSError, ValueError) as error:
            # A commit that cannot list the log, or write a checkpoint, ends with a DeltaError, and no OSError.
            if type(error) in (DeltaError, CommitFailedError):
                raise self._of_commit(error, action, version()) from None
            raise self._failure(error, action) from None

    def changed(self, **context: object) -> StorageConflict:
        """Return the error for a table that another writer has changed."""
        return StorageConflict(
            self.conflict, hint=self.conflict_hint, target=self.target.uri, table=self.folder, **context
        )

    def _of_commit(self, error: Exception, action: str, version: int | None) -> StorageError:
        """Return the error of a commit that failed: damage, another writer was first, or the storage does not answer.

        The log says which, once it is opened again. `version`: the one before the commit, None: unknown. After an
        error of the checkpoint alone the commit is durable: the caller has to find out which version is the newest.
        """
        from deltalake.exceptions import CommitFailedError, DeltaError

        try:
            table = self.open()
            with _panics_as_errors():
                table.file_uris()
        except (DeltaError, OSError, ValueError) as second:
            return self._failure(second if isinstance(second, OSError) else error, action)
        newest, is_refused = table.version(), isinstance(error, CommitFailedError)
        if newest == version or (not is_refused and version in (None, newest - 1)):
            return self._failure(error, action, may_heal=True)
        return self.changed() if is_refused else self._failure(error, action)

    def _failure(self, error: Exception, action: str, *, may_heal: bool = False) -> StorageError:
        may_heal |= isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
        return (StorageUnavailable if may_heal else StorageError)(
            f"cannot {action} a Delta table of the target ({type(error).__name__})",
            hint="check the storage of the target, and the folder _delta_log of the table",
            target=self.target.uri,
            table=self.folder,
        )


@contextmanager
def _panics_as_errors() -> Iterator[None]:
    """Raise ValueError for a panic of delta-rs, as some damaged logs cause it. It is no Exception."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise ValueError("a panic") from None
