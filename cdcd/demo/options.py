"""The options of `cdcd demo`.

In: the command line's words.  Out: `Options`, frozen.
Invariant: every number is checked here; a wrong one ends with argparse's message and exit status 2.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

KILL_AT_BULK: Literal["bulk"] = "bulk"


@dataclass(frozen=True, slots=True)
class Options:
    """One run. `kill_at` is seconds after the workload's start, or "bulk": when the large transaction commits.

    `is_chaos`: also cause repeated faults of cdcd and the mirror while rows change.
    """

    rows: int
    seconds: float
    seed: int
    kill_at: float | Literal["bulk"]
    keep: bool
    has_registry: bool
    is_chaos: bool
    mirror_format: Literal["parquet", "delta", "iceberg"]
    scd_type: Literal[1, 2]
    in_bucket: bool
    stop: Path | None


def parser() -> argparse.ArgumentParser:
    """Return the parser of `cdcd demo`."""
    made = argparse.ArgumentParser(
        prog="cdcd demo",
        description="The whole pipeline on real servers: a shop in PostgreSQL, its changes in Kafka, its mirror in"
        " Spark, and a comparison of source and mirror at the end.",
    )
    add = made.add_argument
    add("--rows", type=_whole, default=45_000, metavar="N", help="rows loaded before cdcd starts (45000)")
    add("--seconds", type=_positive, default=30.0, metavar="S", help="duration of the workload (30)")
    add("--seed", type=int, default=1, metavar="N", help="seed of the rows, the workload and the kill (1)")
    add(
        "--kill-at",
        type=_moment,
        metavar="SECONDS",
        help="time of the kill of cdcd: seconds after the workload's start, or 'bulk': when the transaction of"
        " 100,000 rows commits (default: by the seed)",
    )
    add(
        "--no-registry",
        dest="has_registry",
        action="store_false",
        help="without a schema registry: cdcd stores the schemas in a topic and serves them on its admin port",
    )
    add(
        "--chaos",
        dest="is_chaos",
        action="store_true",
        help="kill and stop (SIGSTOP) cdcd, end its walsender and kill the mirror repeatedly while rows change",
    )
    add(
        "--format",
        dest="mirror_format",
        choices=("parquet", "delta", "iceberg"),
        default="parquet",
        help="format of the mirror's tables (parquet); delta needs cdcd[spark-delta], iceberg cdcd[spark-iceberg]",
    )
    add(
        "--scd",
        dest="scd_type",
        type=int,
        choices=(1, 2),
        default=1,
        help="2: the mirror has the history of its tables, too, whose valid rows are compared as well (1)",
    )
    add(
        "--s3",
        dest="in_bucket",
        action="store_true",
        help="the mirror is in a bucket of an S3 server (VersityGW, which Go builds the first time) instead of a"
        " folder; needs cdcd[spark-cloud]",
    )
    add(
        "--keep",
        action="store_true",
        help="leave all processes running at the end, and print their addresses",
    )
    add(
        "--stop",
        type=Path,
        metavar="DIR",
        help="stop the processes of an earlier run with --keep, and remove DIR",
    )
    return made


def parse(words: Sequence[str]) -> Options:
    """Parse the command line. Raises SystemExit if it is wrong."""
    reading = parser()
    given = reading.parse_args(words)
    # text seeds are hashed the same in every process, tuples are not
    chance = Random(f"cdcd demo {given.seed} kill")  # noqa: S311
    kill_at = given.kill_at if given.kill_at is not None else given.seconds * chance.uniform(0.3, 0.85)
    if kill_at != KILL_AT_BULK and kill_at >= given.seconds:
        reading.error(f"--kill-at {kill_at:g} is not before the end of the workload at {given.seconds:g} s")
    return Options(
        rows=given.rows,
        seconds=given.seconds,
        seed=given.seed,
        kill_at=kill_at,
        keep=given.keep,
        has_registry=given.has_registry,
        is_chaos=given.is_chaos,
        mirror_format=given.mirror_format,
        scd_type=given.scd_type,
        in_bucket=given.in_bucket,
        stop=given.stop,
    )


def _whole(text: str) -> int:
    number = int(text)
    if not 100 <= number <= 100_000_000:
        raise argparse.ArgumentTypeError("must be between 100 and 100,000,000")
    return number


def _positive(text: str) -> float:
    number = float(text)
    if not 1 <= number <= 86_400:
        raise argparse.ArgumentTypeError("must be between 1 and 86,400")
    return number


def _moment(text: str) -> float | Literal["bulk"]:
    if text == KILL_AT_BULK:
        return KILL_AT_BULK
    number = float(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return number
