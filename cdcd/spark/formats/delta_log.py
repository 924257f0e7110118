"""The log of one Delta table, by delta-rs: files are added and removed in one commit.

In: the storage of a target, the table's folder, files that are complete and durable.  Out: versions of the table.
Invariant: a commit succeeds only as the successor of the version that this writer knows, so that two writers never
build on each other's rows; the other one gets StorageConflict. A commit in a local folder is synchronised.
Must not: write or read rows; decide which version is the mirror's (its commit log does).
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from cdcd.errors import StorageError, TableLogUnreadable
from cdcd.spark.formats.delta_access import LOG, DeltaAccess
from cdcd.spark.formats.delta_statistics import as_json
from cdcd.spark.formats.table_log import CommitLabel, Part
from cdcd.spark.storage.uri import Storage
from cdcd.spark.target.versions import BucketFile

__all__ = ["DeltaLog"]

log = logging.getLogger("cdcd.spark.mirror")
_RETENTION = "delta.logRetentionDuration"
_CHANGED = "the Delta table has another version than this mirror has written: another writer changes it"
_COMMIT = re.compile(r"(\d{20})\.json")
_MOST_LOOKED_AT = 200
"""The most commits of a damaged log that are read to find the one that is not readable."""
_CHANGED_HINT = "stop the other writer; the next start of the mirror restores the version of its commit log"


class DeltaLog:
    """The `TableLog` of a Delta table."""

    def __init__(self, target: Storage, folder: str, retain_s: float) -> None:
        self._target, self._folder = target, folder
        self._access = DeltaAccess(target, folder, _CHANGED, _CHANGED_HINT)
        self._retention = f"interval {max(1, int(retain_s // 86_400) + 1)} days"
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
    ) -> None:
        """Do what `TableLog.restore` says."""
        with self._errors("restore"):
            table = self._newest(version, check_owner)
            recorded = table if table.version() <= version else self._access.open(version)
            if recorded.version() < version or _live(recorded) != {
                one.path.rpartition("/")[2] for one in files
            }:
                raise StorageError(
                    "the Delta table does not have the files that the mirror's commit log names",
                    hint="restore both from one backup, or mirror into an empty target",
                    target=self._target.uri,
                    table=self._folder,
                    version=version,
                )
            if _live(table) != _live(recorded) or table.schema() != recorded.schema():
                check_owner()
                # As the successor of the version that was opened before: a commit since then is a conflict.
                table.restore(version, protocol_downgrade_allowed=True, **_properties(label))
            if table.metadata().configuration.get(_RETENTION) != self._retention:  # --retain is another one
                check_owner()
                table.alter.set_table_properties({_RETENTION: self._retention}, **_properties(label))
            self._table = table  # not updated: a newer version has other files than the caller knows
            self._synchronise()

    def _newest(self, version: int, check_owner: Callable[[], object] = lambda: None) -> Any:
        """Open the newest version. One that is not readable, and later than a version of the mirror, is removed.

        A crash of the host leaves such a commit, of which nothing is needed. Raises TableLogUnreadable if an earlier
        one is not readable.
        """
        from deltalake.exceptions import DeltaError

        try:
            return self._access.open()
        except (DeltaError, ValueError):
            commits = self._commits()
            for number in sorted((one for one in commits if one > version), reverse=True):
                if _is_commit(self._target.read(commits[number])):
                    break
                check_owner()
                log.warning("%s: version %d of its log is not readable, and removed", self._folder, number)
                self._target.delete([commits.pop(number)])
            self._refuse_damaged(commits)
            return self._access.open()

    def _commits(self) -> dict[int, str]:
        """Return the paths of the commits by their numbers."""
        found = {_COMMIT.fullmatch(path.rpartition("/")[2]): path for path in self._log_paths()}
        return {int(one[1]): path for one, path in found.items() if one is not None}

    def _log_paths(self) -> Iterator[str]:
        return self._target.paths(f"{self._folder}/{LOG}")

    def _refuse_damaged(self, commits: Mapping[int, str]) -> None:
        """Raise TableLogUnreadable if a commit is not readable, or if there is none."""
        newest = sorted(commits, reverse=True)[:_MOST_LOOKED_AT]
        paths = (commits[number] for number in newest)
        broken = next((path for path in paths if not _is_commit(self._target.read(path))), None)
        if broken is not None or not commits:
            raise TableLogUnreadable(
                "the log of a Delta table of the target is damaged",
                target=self._target.uri,
                table=self._folder,
                file=broken or f"{self._folder}/{LOG}",
            )

    def create(self, schema: pa.Schema, parts: Sequence[Part], label: CommitLabel) -> None:
        """Make the table with these files, or replace all of its columns and files."""
        from deltalake import Schema
        from deltalake.transaction import create_table_with_add_actions

        known = self.version
        self._check(known)
        with self._errors("create"), self._damage_found():
            create_table_with_add_actions(
                self._access.uri,
                Schema.from_arrow(schema),
                [_added(one, changes_rows=True) for one in parts],
                mode="overwrite",
                configuration={_RETENTION: self._retention},
                storage_options=self._access.options,
                **_properties(label),
            )
            self._table = self._access.open()
        self._check(None if known is None else known + 1)
        self._synchronise()

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
    def _damage_found(self) -> Iterator[None]:
        """Raise TableLogUnreadable for an error of a table that this writer has not opened, if its log is damaged."""
        from deltalake.exceptions import DeltaError

        try:
            yield
        except (DeltaError, ValueError):
            if self.version is None and (commits := self._commits()):
                self._refuse_damaged(commits)
            raise

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


def _is_commit(data: bytes) -> bool:
    """Return whether bytes are a commit: a JSON object in each line."""
    try:
        actions = [json.loads(line) for line in data.splitlines() if line.strip()]
    except ValueError:
        return False
    return bool(actions) and all(isinstance(one, dict) for one in actions)


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
