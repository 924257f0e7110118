"""The log of a table in an open format, Delta or Iceberg: what the mirror needs of it.

In: files that are complete and durable.  Out: versions of the table.
Invariant: a commit succeeds only as the successor of the version that this writer knows, so that two writers never
build on each other's rows; the other one gets StorageConflict.
Must not: know a format.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from cdcd.spark.target.versions import BucketFile

__all__ = [
    "CHANGED_HINT",
    "CHANGED_SINCE",
    "LABEL",
    "OTHER_FILES",
    "OTHER_FILES_HINT",
    "CommitLabel",
    "Part",
    "TableLog",
]

LABEL = "cdcd.version"
"""What each commit of a mirror has, in a log of each format."""
OTHER_FILES = "the log of the table does not have the files that the mirror's commit log names"
CHANGED_SINCE = (
    "another writer has changed the table since the mirror's version, so other readers may find other rows; the "
    "mirror takes that back with its next change of the table, or at its next start"
)

CHANGED_HINT = (
    "stop the other writer; the mirror restores the version of its commit log when it tries again, or starts"
)
OTHER_FILES_HINT = "restore both from one backup, or mirror into an empty target"


@dataclass(frozen=True, slots=True)
class Part:
    """A file that a commit adds."""

    file: BucketFile
    size_bytes: int
    statistics: Mapping[str, Any] = field(default_factory=dict)
    """Of a file of a Delta table, those that its log has."""


@dataclass(frozen=True, slots=True)
class CommitLabel:
    """What a commit says about itself: the topic, the number of the mirror's version, and its commit LSN."""

    topic: str
    number: int
    commit_lsn: str

    @property
    def texts(self) -> dict[str, str]:
        """The number and the LSN under the names that they have in a log."""
        return {LABEL: str(self.number), "cdcd.commit_lsn": self.commit_lsn}


class TableLog(Protocol):
    """The log of one table. All methods raise StorageError; a commit of another writer is StorageConflict."""

    @property
    def version(self) -> int | None:
        """The newest version, None before this writer has opened or made the table."""

    def restore(
        self,
        version: int,
        files: Collection[BucketFile],
        label: CommitLabel,
        check_owner: Callable[[], object] = lambda: None,
        *,
        is_parked: bool = False,
    ) -> None:
        """Open the table; make the rows and columns of a version the newest ones, if they are not.

        Later versions are those of a batch before a crash, or of another writer. Raises TableLogUnreadable if the log
        is damaged, StorageError if that version does not have these files. `check_owner` is called before a commit.
        `is_parked`: for a damaged log before; then the folder may have another table, of a copy that was not
        published, and that is TableLogUnreadable, too.
        """

    def other_rows(self, version: int, files: Collection[BucketFile]) -> str:
        """Return why readers of the newest version may find other rows than those of a version with these files.

        "" if that version has them, and the newest one is a mirror's, which builds on no other writer's. It opens
        nothing for a commit.
        """

    def create(
        self,
        schema: pa.Schema,
        parts: Sequence[Part],
        label: CommitLabel,
        named: int = -1,
        check_owner: Callable[[], object] = lambda: None,
    ) -> None:
        """Make the table with these files, or replace all of its columns and files.

        `named`: the version that the mirror names, -1: none. What a crash has left after it is removed from a table
        that this writer has not opened; `check_owner` is called before. Raises TableLogUnreadable for other damage.
        A table without that version is not the one that the mirror names.
        """

    def commit(
        self,
        schema: pa.Schema,
        parts: Sequence[Part],
        removed: Sequence[BucketFile],
        label: CommitLabel,
        *,
        changes_rows: bool = True,
    ) -> None:
        """Add and remove files, and add the columns that the table does not have; its other rows have null there.

        `changes_rows`: whether the table has other rows afterwards.
        """

    def has_expired(self, until_s: float) -> bool:
        """Return whether the newest version names earlier ones that ended before a time (Unix epoch)."""

    def expire(self, until_s: float) -> None:
        """Commit a version that does not name them, before their files are removed."""

    def remove_old_versions(self, first: Callable[[], int]) -> None:
        """Remove versions that no reader needs. `first` returns the first one that a version of the mirror names.

        The mirror's commit log has to name the newest version.
        """
