"""The ownership of a mirror's target: one prefix of one Kafka cluster, and one writing process at a time.

In: the storage, the prefix and the cluster's id.  Out: the version to continue from, and a lock, held until it is
released or the process ends. A bucket has no lock: there a start takes over the commit log
(`target_writer.take_over`), and the earlier writer cannot publish any more.
Invariant: offsets and LSNs of two clusters are not comparable, so a target of another cluster or prefix is refused. A
start whose topics lack a table of the target is refused: the table would not change any more, and yet seem to be
complete as of the mirror's commit. A folder with other files is refused, too, because a mirror removes all files that
are not its own. A start removes the files that no version names, also those that another process is about to name:
this is the reason for the lock, and for taking over the commit log before (F80).
Must not: publish a version.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

from cdcd.errors import SparkReadError, StorageConflict
from cdcd.spark.storage.uri import Storage, Target, open_storage
from cdcd.spark.target.commit_log import has_version, read_latest
from cdcd.spark.target.left_files import is_of_a_mirror
from cdcd.spark.target.versions import ScdType, TableFormat, TargetVersion

LOCK = "_lock"
CHECKPOINT = "_checkpoint"
_SHOWN = 5
_LOOKED_AT = 100
_WITHIN_S = 5.0
"""Maximum time until the lock of a killed process is released."""
_LOOK_AGAIN_S = 0.1
log = logging.getLogger("cdcd.spark.mirror")


class Query(Protocol):
    """The part of a streaming query that this module uses."""

    @property
    def isActive(self) -> bool: ...  # noqa: D102, N802 - the name that Spark gives it


@dataclass
class Held:
    """A lock of this process; `query` is the query that writes under it. `file` None: the storage has no locks."""

    file: int | None
    query: Query | None = None


_held: dict[str, Held] = {}


def refuse_anothers(target: Target) -> None:
    """Raise SparkReadError for a target that has no version, but other files than an interrupted first start.

    A mirror removes unknown files in its folder, and first of all Spark's checkpoint (F79).
    """
    storage = open_storage(target)
    if has_version(storage):
        return
    is_begun = storage.exists(LOCK)
    strangers = (path for path in storage.paths() if not (is_begun and _is_of_a_beginning(path)))
    shown = {path.partition("/")[0] for path in islice(strangers, _LOOKED_AT)}
    if shown:
        raise SparkReadError(
            "the target is not a mirror, and is not empty",
            hint="choose an empty folder, because a mirror removes unknown files from its target",
            target=storage.uri,
            has=", ".join(sorted(shown)[:_SHOWN]),
        )


def _is_of_a_beginning(path: str) -> bool:
    return path.partition("/")[0] in (LOCK, CHECKPOINT) or is_of_a_mirror(path)


def take(target: Target) -> Held:
    """Return the lock of a target for a new query. Raises SparkReadError while another query writes there."""
    storage = open_storage(target)
    folder = storage.folder
    name = str(folder.resolve()) if folder else storage.uri
    held = _held.get(name)
    if held is None:
        held = _held[name] = Held(_locked(folder.resolve()) if folder else None)
    elif held.query is not None and held.query.isActive:
        raise StorageConflict("another query of this process writes to the target", target=name)
    return held


def release(held: Held) -> None:
    """Give up a lock: its query has ended, or did not start. Then another process may write to the target."""
    for name in [name for name, one in _held.items() if one is held]:
        del _held[name]
    file, held.file = held.file, None
    if file is not None:
        os.close(file)


def _locked(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline_s = time.monotonic() + _WITHIN_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                os.close(file)
                raise StorageConflict(
                    "another mirror writes to the target",
                    hint="stop the other mirror first, or choose another target",
                    target=folder,
                ) from None
            time.sleep(_LOOK_AGAIN_S)
        except OSError as error:
            log.warning(
                "the target's file system has no locks (%s): make sure that only one mirror writes there",
                error,
            )
            return file


def starting_version(
    target: Target,
    prefix: str,
    buckets: int,
    cluster: str,
    *,
    accept_cluster: bool = False,
    table_format: TableFormat = "parquet",
    scd_type: ScdType = 1,
    topics: Collection[str] = (),
) -> TargetVersion:
    """Return the version to start from.

    Raises SparkReadError if the target mirrors another prefix or cluster, or has another format or SCD type, or a
    table that is not among the topics. `accept_cluster`: the topics were moved to this cluster with their offsets.
    `topics`: those that the mirror reads, empty: all.
    """
    target = open_storage(target)
    version = read_latest(target)
    if version is None:
        return TargetVersion(prefix, buckets, cluster=cluster, table_format=table_format, scd_type=scd_type)
    if version.prefix != prefix:
        raise SparkReadError(
            "the target mirrors another prefix",
            hint="choose another target",
            target=target.uri,
            has=version.prefix,
        )
    if version.table_format != table_format:
        raise SparkReadError(
            "the tables of the target have another format",
            hint=f"choose another target, or start with the format {version.table_format}",
            target=target.uri,
            has=version.table_format,
            asked=table_format,
        )
    if version.scd_type != scd_type:
        raise SparkReadError(
            "the target was created with another SCD type, which cannot be changed because a history has to be "
            "complete",
            hint=f"choose another target, or start with stored_as_scd_type={version.scd_type} "
            f"(--scd {version.scd_type})",
            target=target.uri,
            has=version.scd_type,
            asked=scd_type,
        )
    if version.cluster != cluster and not accept_cluster:
        raise SparkReadError(
            "the target mirrors another Kafka cluster",
            hint="choose another target; or, if the topics were moved with their offsets, start with "
            "accept_cluster (--accept-cluster)",
            target=target.uri,
            has=version.cluster,
            now=cluster,
        )
    _refuse_fewer(target, version, topics)
    return replace(version, cluster=cluster)


def _refuse_fewer(target: Storage, version: TargetVersion, topics: Collection[str]) -> None:
    """Raise SparkReadError for tables that the mirror would not update: they would seem to be those of its commit."""
    left = sorted(version.tables.keys() - set(topics)) if topics else []
    if left:
        raise SparkReadError(
            "the topics that the mirror is to read lack tables of the target",
            hint="start with their topics, too, or drop these tables: "
            "`python -m cdcd.spark drop-table --target TARGET --table SCHEMA.TABLE`",
            target=target.uri,
            tables=", ".join(left[:_SHOWN]),
        )
