"""`cdcd verify --mirror`: compare a mirror with the topics, by the code of `python -m cdcd.spark verify`.

In: the configuration file, the mirror's target.  Out: the outcomes of its tables, in the form of those of the topics.
Invariant: the mirror is compared as of its own version with the topics up to the offsets of that version. The topics
are compared with the source by `cdcd.verify`; both comparisons together are one of the mirror with the source, if the
mirror has the commits with which the source was compared.
Must not: import PySpark before it is asked for.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cdcd.cli.spark_extra import imports_of_spark
from cdcd.errors import ConfigError, MirrorBehind, SparkReadError, StorageError
from cdcd.lsn import Lsn
from cdcd.verify.outcome import UNKNOWN, DifferentRow, TableOutcome

__all__ = ["limited", "require_mirror", "verify_mirror", "why_behind"]

_CORES, _MEMORY = "2", "1g"
_CANCELLED_EVERY_S = 1.0
_NO_MIRROR = "name the target of a mirror of these topics, as in the command of the mirror"


def require_mirror(target: str, target_options: Mapping[str, str]) -> None:
    """Raise ConfigError without the extra, or if there is no mirror. A storage that does not answer now may later."""
    require_spark()
    from cdcd.spark.reading.mirror import read_mirror
    from cdcd.spark.storage.uri import open_storage

    try:
        storage = open_storage(target, target_options)
    except StorageError as error:
        raise ConfigError(f"--mirror: {error}", hint=error.hint) from None
    try:
        read_mirror(storage)
    except StorageError:
        return
    except SparkReadError as error:
        raise ConfigError(f"--mirror: {error}", hint=_NO_MIRROR) from None


def require_spark() -> None:
    """Raise ConfigError without the extra."""
    with imports_of_spark():
        import cdcd.spark.mirroring.verify
        import cdcd.spark.session  # noqa: F401 - imported here to see whether it can be


def why_behind(
    target: str, target_options: Mapping[str, str], lsn: Lsn, timeout_s: float, *, slot: str
) -> str:
    """Wait until the mirror has a slot's commits below an LSN; return why it has not, "" if it has.

    A mirror that has stopped equals the topics as of its own version, but not the source.
    """
    require_spark()
    from cdcd.spark.reading.mirror import wait

    try:
        wait(
            target,
            lsn,
            timeout_s=timeout_s,
            target_options=target_options,
            slot=slot,
            loading=True,
            parked=True,
        )
    except MirrorBehind as behind:
        return f"it lacks commits with which the source was compared: {behind}"
    return ""


def verify_mirror(
    config_path: Path,
    target: str,
    target_options: Mapping[str, str],
    tables: Sequence[str],
    *,
    shows_keys: bool,
    most_rows: int,
    limit_s: float | None = None,
    outcomes: list[TableOutcome],
) -> None:
    """Add the outcomes of the mirror's tables, each as it is known. Raises ConfigError without the extra.

    `most_rows`: the most differing rows of a table that are listed. `limit_s`: for all tables; those after it are
    unknown. Raises SparkReadError, and errors of Spark; the outcomes before remain.
    """
    require_spark()
    from cdcd.spark.clients.connection_options import connection_from
    from cdcd.spark.mirroring.verify import verify
    from cdcd.spark.session import NO_LOG, session

    connection = connection_from({"config": str(config_path)})
    spark = session("cdcd verify", _CORES, memory=_MEMORY, log_level=NO_LOG)
    began_s = time.monotonic()
    try:
        with limited(spark, limit_s) as is_over:
            for result in verify(
                spark,
                connection,
                target,
                target_options=target_options,
                tables=tables or ("*",),
                shows_keys=shows_keys,
                most_keys=most_rows,
                is_over=is_over,
            ):
                outcomes.append(_outcome(result, time.monotonic() - began_s, most_rows))
                began_s = time.monotonic()
    finally:
        with contextlib.suppress(Exception):  # a JVM that has ended, too, is stopped
            spark.stop()


@contextlib.contextmanager
def limited(spark: Any, limit_s: float | None) -> Iterator[Callable[[], bool]]:
    """Cancel Spark's jobs in the block after so many seconds, and all later ones; yield whether that has begun."""
    is_over, has_ended = threading.Event(), threading.Event()

    def cancel() -> None:
        has_ended.wait(limit_s)
        while not has_ended.is_set():
            is_over.set()
            with contextlib.suppress(Exception):  # a JVM that has ended has no jobs
                spark.sparkContext.cancelAllJobs()
            has_ended.wait(_CANCELLED_EVERY_S)

    cancelling = threading.Thread(target=cancel, name="cdcd-verify-limit", daemon=True)
    cancelling.start()
    try:
        yield is_over.is_set
    finally:
        has_ended.set()
        cancelling.join()


def _outcome(result: Any, seconds: float, most_rows: int) -> TableOutcome:
    """Return the result of `cdcd.spark.mirroring.verify` as an outcome: `rows_in_source` are those of the topic."""
    outcome = TableOutcome(
        result.topic, result.status, reason=result.reason, lsn=result.lsn, seconds=round(seconds, 1)
    )
    if result.status == UNKNOWN:
        return outcome
    outcome.rows_in_source, outcome.rows_in_topics = result.rows_in_topic, result.rows_in_mirror
    outcome.missing, outcome.extra, outcome.different = result.missing, result.extra, result.different
    outcome.unknown_rows = result.unknown_rows
    rows = [DifferentRow(kind, key) for kind, keys in (result.keys or {}).items() for key in keys]
    outcome.rows = rows[:most_rows]
    return outcome
