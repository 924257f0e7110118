"""The log of one Delta table, by delta-rs: files are added and removed in one commit.

In: the storage of a target, the table's folder, files that are complete and durable.  Out: versions of the table.
Invariant: a commit succeeds only as the successor of the version that this writer knows, so that two writers never
build on each other's rows; the other one gets StorageConflict. A commit in a local folder is synchronised.
Must not: write or read rows; decide which version is the mirror's (its commit log does).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from cdcd.errors import StorageError, TableLogUnreadable
from cdcd.spark.formats.delta_access import DeltaAccess
from cdcd.spark.formats.delta_damage import DeltaDamage
from cdcd.spark.formats.delta_statistics import as_json
from cdcd.spark.formats.table_log import (
    CHANGED_HINT,
    CHANGED_SINCE,
    LABEL,
    OTHER_FILES,
    OTHER_FILES_HINT,
    CommitLabel,
    Part,
)
from cdcd.spark.storage.uri import Storage
from cdcd.spark.target.versions import BucketFile

__all__ = ["DeltaLog"]

_RETENTIONS = ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration")
"""How long the log has former versions, and a checkpoint the names of files that were removed (a week by default)."""
_CHANGED = "the Delta table has another version than this mirror has written: another writer changes it"


class DeltaLog:
    """The `TableLog` of a Delta table."""

    def __init__(self, target: Storage, folder: str, retain_s: float) -> None:
        self._target, self._folder = target, folder
        self._access = DeltaAccess(target, folder, _CHANGED, CHANGED_HINT)
        self._damage = DeltaDamage(target, folder)
        retention = f"interval {max(1, int(retain_s // 86_400) + 1)} days"
        self._retentions = dict.fromkeys(_RETENTIONS, retention)
        self._table: Any = None

    @property
    def version(self) -> int | None:
        """The version that this writer knows."""
        return None if self._table is None else int(self._table.version())

    def restore(
        self,
        version: int,
        files: Collection[BucketFile],
        label: CommitLabel,
        check_owner: Callable[[], object] = lambda: None,
        *,
        is_parked: bool = False,
    ) -> None:
        """Do what `TableLog.restore` says."""
        with self._errors("restore"):
            table = self._newest(version, check_owner)
            recorded = table if table.version() <= version else self._opened(version, check_owner)
            if recorded.version() < version or _live(recorded) != {
                one.path.rpartition("/")[2] for one in files
            }:
                self._damage.refuse_commits()  # delta-rs takes an empty file for a commit that changes nothing
                raise (TableLogUnreadable if is_parked else StorageError)(
                    "the Delta table does not have the files that the mirror's commit log names",
                    hint=None if is_parked else OTHER_FILES_HINT,
                    target=self._target.uri,
                    table=self._folder,
                    version=version,
                )
            if _live(table) != _live(recorded) or table.schema() != recorded.schema():
                check_owner()
                # As the successor of the version that was opened before: a commit since then is a conflict.
                # A missing file parks the table when it is needed; here it would end the whole mirror.
                table.restore(
                    version, ignore_missing_files=True, protocol_downgrade_allowed=True, **_properties(label)
                )
            # Also if --retain is another one than before.
            if not self._retentions.items() <= table.metadata().configuration.items():
                check_owner()
                table.alter.set_table_properties(self._retentions, **_properties(label))
            self._table = table  # not updated: a newer version has other files than the caller knows
            self._synchronise()

    def other_rows(self, version: int, files: Collection[BucketFile]) -> str:
        """Do what `TableLog.other_rows` says."""
        with self._errors("read"):
            newest = self._access.open()
            if newest.version() < version or _live(self._access.open(version)) != {
                _name(one) for one in files
            }:
                return OTHER_FILES
            return "" if LABEL in newest.history(1)[0] else CHANGED_SINCE

    def _newest(self, named: int, check_owner: Callable[[], object]) -> Any:
        """Open the newest version, without what a crash has left after the one that the mirror names.

        Raises TableLogUnreadable if what is needed is not readable.
        """
        table = self._without_left(named, check_owner)
        return self._opened(None, check_owner) if table is None else table

    def _without_left(self, named: int, check_owner: Callable[[], object]) -> Any:
        """Remove what a crash has left; return the newest version if it was opened and has remained the newest."""
        from deltalake.exceptions import DeltaError

        try:
            table = self._access.open()
        except (DeltaError, ValueError):
            table = None
        if table is not None and table.version() <= named:
            return table
        is_changed = self._damage.remove_commits(named, check_owner, is_opened=table is not None)
        return None if is_changed else table

    def _opened(self, version: int | None, check_owner: Callable[[], object]) -> Any:
        """Open a version, None: the newest one; if it is not readable, without checkpoints that are not."""
        from deltalake.exceptions import DeltaError

        try:
            return self._access.open(version)
        except (DeltaError, ValueError):
            self._damage.refuse_commits()
            self._damage.remove_checkpoints(version, check_owner)
        try:
            return self._access.open(version)
        except (DeltaError, ValueError):
            raise self._damage.unreadable() from None

    def create(
        self,
        schema: pa.Schema,
        parts: Sequence[Part],
        label: CommitLabel,
        named: int = -1,
        check_owner: Callable[[], object] = lambda: None,
    ) -> None:
        """Do what `TableLog.create` says."""
        known = self.version
        self._check(known)
        with self._errors("create"):
            if known is None and self._access.exists():
                self._repair(named, check_owner)
            self._create(schema, parts, label)
        self._check(None if known is None else known + 1)
        self._synchronise()

    def _repair(self, named: int, check_owner: Callable[[], object]) -> None:
        """Make a table readable that this writer has not opened, unless nothing of it is left."""
        if self._damage.newest() < named:
            named = -1
        if self._without_left(named, check_owner) is None and self._access.exists():
            self._opened(None, check_owner)

    def _create(self, schema: pa.Schema, parts: Sequence[Part], label: CommitLabel) -> None:
        from deltalake import Schema
        from deltalake.transaction import create_table_with_add_actions

        create_table_with_add_actions(
            self._access.uri,
            Schema.from_arrow(schema),
            [_added(one, changes_rows=True) for one in parts],
            mode="overwrite",
            configuration=self._retentions,
            storage_options=self._access.options,
            **_properties(label),
        )
        self._table = self._access.open()

    def commit(
        self,
        schema: pa.Schema,
        parts: Sequence[Part],
        removed: Sequence[BucketFile],
        label: CommitLabel,
        *,
        changes_rows: bool = True,
    ) -> None:
        """Do what `TableLog.commit` says; new columns are a commit of their own."""
        from deltalake import Schema
        from deltalake.transaction import RemoveAction

        self._add_columns(schema, label)
        if not parts and not removed:
            return
        known, now_ms = self.version, int(time.time() * 1000)
        gone = [RemoveAction(_name(one), changes_rows, now_ms, None, {}) for one in removed]
        with self._errors("change"):
            self._table.create_write_transaction(
                [*(_added(one, changes_rows=changes_rows) for one in parts), *gone],
                "append",
                Schema.from_arrow(schema),
                **_properties(label),
            )
        self._committed(known)

    def _add_columns(self, schema: pa.Schema, label: CommitLabel) -> None:
        from deltalake import Schema

        known = self.version
        with self._errors("change"):
            names = {one.name for one in self._table.schema().fields}
            new = [one for one in Schema.from_arrow(schema).fields if one.name not in names]
            if not new:
                return
            self._table.alter.add_columns(new, **_properties(label))
        self._committed(known)

    def has_expired(self, until_s: float) -> bool:
        """Return False: a version of Delta names its own files only."""
        return False

    def expire(self, until_s: float) -> None:
        """Do nothing."""

    def remove_old_versions(self, first: Callable[[], int]) -> None:
        """Remove the versions before the last checkpoint that are older than the table keeps them, days at least."""
        with self._errors("change"):
            self._table.cleanup_metadata()

    def _synchronise(self) -> None:
        assert self.version is not None
        self._access.synchronise(self.version)

    def _committed(self, known: int | None) -> None:
        assert known is not None
        self._check(known + 1)
        self._synchronise()

    def _check(self, version: int | None) -> None:
        """Raise StorageConflict if the table's newest version is not this one; None: it may be any."""
        if self._table is None or version is None:
            return
        with self._errors("read"):
            self._table.update_incremental()
        if self.version != version:
            raise self._access.changed(version=version)

    @contextmanager
    def _errors(self, action: str) -> Iterator[None]:
        with self._access.errors(action, lambda: self.version):
            yield


def _properties(label: CommitLabel) -> dict[str, Any]:
    """Return a commit's properties: it is never tried again on top of another's, and removes no version."""
    from deltalake import CommitProperties, PostCommitHookProperties, Transaction

    of_commit = CommitProperties(
        custom_metadata=label.texts,
        max_commit_retries=0,
        app_transactions=[Transaction(label.topic, label.number)],
    )
    hooks = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
    return {"commit_properties": of_commit, "post_commithook_properties": hooks}


def _live(table: Any) -> set[str]:
    return {uri.rpartition("/")[2] for uri in table.file_uris()}


def _name(file: BucketFile) -> str:
    return file.path.rpartition("/")[2]


def _added(part: Part, *, changes_rows: bool) -> Any:
    from deltalake.transaction import AddAction

    return AddAction(
        path=_name(part.file),
        size=part.size_bytes,
        partition_values={},
        modification_time=int(time.time() * 1000),
        data_change=changes_rows,
        stats=as_json({"numRecords": part.file.rows, **part.statistics}),
    )
