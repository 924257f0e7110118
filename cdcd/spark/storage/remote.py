"""What the storages of a bucket and of HDFS have in common: an identity that is sent to Spark's tasks, and errors.

In: the URI and the options of a target.  Out: the base of a `Storage`.
Invariant: a storage is pickled with its URI and its options only, never with a client or a secret.
Must not: connect; know a library.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cdcd.errors import StorageConflict, StorageError, StorageUnavailable

__all__ = ["RemoteStorage", "is_panic"]


class RemoteStorage:
    """A target that is not local. The class is made of its URI and its options."""

    def __init__(self, uri: str, options: Any) -> None:
        self._uri, self._options = uri, options

    def __reduce__(self) -> tuple[type[RemoteStorage], tuple[str, Any]]:
        return type(self), (self._uri, self._options)

    @property
    def uri(self) -> str:
        """The URI, which has no credentials."""
        return self._uri

    @property
    def folder(self) -> Path | None:
        """None: the files are not local."""
        return None

    def _conflict(self, message: str, path: str) -> StorageConflict:
        return StorageConflict(message, target=self._uri, file=path)

    def _failure(
        self, action: str, path: str, explained: tuple[str, str], *, heals: bool, **context: str | None
    ) -> StorageError:
        """Return the error of a request. `explained`: its cause, and what to do; `context` without what is None."""
        message, hint = explained
        shown = {"target": self._uri, "file": path, **context}
        kind = StorageUnavailable if heals else StorageError
        return kind(
            f"cannot {action} a file of the target: {message}",
            hint=hint,
            **{name: value for name, value in shown.items() if value},
        )


def is_panic(error: BaseException) -> bool:
    """Return whether an error is a panic of a library in Rust: it is no Exception, and of no module."""
    return type(error).__name__ == "PanicException"
