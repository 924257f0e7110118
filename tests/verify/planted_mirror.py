"""Does `cdcd verify --mirror` find each difference that is planted in a mirror, and none in an untouched one?

In: a source with `mirrored_table`, its daemon; how a mirror is run and verified.
Out: for each format the differences found of those planted, by kind, and what was found that nobody has planted.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.spark.clients.connection_options import connection_from
from cdcd.spark.mirroring.start import mirror
from cdcd.spark.mirroring.verify import verify as verify_mirror
from cdcd.spark.reading.mirror import Mirror, read_mirror
from cdcd.spark.session import NO_LOG, run_to_end, session
from cdcd.spark.target.versions import TableFormat
from tests.support.daemon import Daemon, await_confirmed
from tests.verify.mirror_planting import Planted, plant, rows_of
from tests.verify.mirrored_table import PLANTED, changed, filled, judge

MOST_S = 4 * 3600
MOST_KEYS = 100_000
MODULUS = 3
"""The changes are of two thirds of the rows."""


class Found(NamedTuple):
    """What verify has said: the state of each table, and the rows that differ, by kind and id."""

    states: dict[str, str]
    rows: set[tuple[str, int]]


class Ways(NamedTuple):
    """How a mirror is run into a target until it has all records, and how it is verified."""

    run: Callable[[], Mirror]
    verify: Callable[[], Found]


class Result(NamedTuple):
    """What was planted, and what was found before and afterwards."""

    planted: list[Planted]
    before: Found
    after: Found


@dataclass
class Source:
    """The source of the mirrors. `rows`: the highest key so far."""

    server: PostgresServer
    database: str
    daemon: Daemon
    rows: int = 0

    def add(self, rows: int) -> None:
        """Insert rows, and wait until they are in the topics."""
        self._run(filled(self.rows + 1, self.rows + rows))
        self.rows += rows

    def change(self) -> None:
        """Change and delete rows, and wait until that is in the topics."""
        self._run(changed(MODULUS))

    def _run(self, statements: Iterable[str]) -> None:
        for statement in statements:
            self.server.execute(statement, dbname=self.database)
        await_confirmed(self.server, self.daemon)

    def try_mirror(self, ways: Ways, draw: random.Random, *, each: int, values: int) -> Result:
        """Mirror, change the source, mirror; verify, plant differences, verify."""
        self.add((each * 8 + values) * 2)
        topic = f"{self.daemon.name}.public.{PLANTED}"
        old = rows_of(ways.run(), topic)
        self.change()
        self.add(each * 2 + 20)
        opened = ways.run()
        before = ways.verify()
        with judge(self.server.dsn(self.database)) as judging:
            planted = plant(opened, topic, old, judging, draw, each, values)
        return Result(planted, before, ways.verify())


def in_session(spark: SparkSession, daemon: Daemon, target: Path, table_format: TableFormat) -> Ways:
    """Return the ways in one session of Spark: what the commands run, without their start."""
    connection = connection_from({"config": str(daemon.config_path)})
    start = partial(mirror, spark, connection, str(target), format=table_format, on_error="fail")

    def run() -> Mirror:
        if failure := run_to_end(start):
            raise failure
        return read_mirror(target)

    def verified() -> Found:
        results = list(verify_mirror(spark, connection, str(target), shows_keys=True, most_keys=MOST_KEYS))
        keys = [(kind, key) for one in results for kind, found in (one.keys or {}).items() for key in found]
        rows = {(kind, json.loads(key)["id"]) for kind, key in keys}
        return Found({one.topic: one.status for one in results}, rows)

    return Ways(run, verified)


def run_mirror(daemon: Daemon, target: Path, table_format: str) -> Mirror:
    """Mirror all records that are in the topics now, and open the mirror. Fails if the command does."""
    words = ["--target", str(target), "--format", table_format, "--available-now", "--on-error", "fail"]
    command = [sys.executable, "-m", "cdcd.spark", "mirror", "--config", str(daemon.config_path), *words]
    done = daemon.run_command(command, daemon.folder, MOST_S)
    assert done.returncode == 0, done.stderr[-4000:]
    return read_mirror(target)


def print_found(
    source: Source,
    folder: Path,
    formats: Sequence[TableFormat],
    draw: random.Random,
    *,
    each: int,
    values: int,
) -> int:
    """Try a mirror of each format by commands; print what was found of what was planted. Return the exit status."""
    planted: list[tuple[str, Planted]] = []
    found: list[tuple[str, Planted]] = []
    false_alarms = 0
    spark = session("cdcd verify-load", log_level=NO_LOG)
    for table_format in formats:
        ways = in_session(spark, source.daemon, folder / table_format, table_format)
        result = source.try_mirror(ways, draw, each=each, values=values)
        hits = [one for one in result.planted if (one.difference, one.id) in result.after.rows]
        nowhere = result.after.rows - {(one.difference, one.id) for one in result.planted}
        alarms = len(nowhere) + sum(state != "equal" for state in result.before.states.values())
        print(
            f"{table_format}: {len(hits):,} of {len(result.planted):,} found, {alarms} false alarms",
            flush=True,
        )
        for one in set(result.planted) - set(hits):
            print(f"missed: {one}")
        planted += [(table_format, one) for one in result.planted]
        found += [(table_format, one) for one in hits]
        false_alarms += alarms
    spark.stop()
    print(*table_of(planted, found), sep="\n")
    print(f"{len(found):,} of {len(planted):,} found, {false_alarms} false alarms")
    return 1 if false_alarms or len(found) < len(planted) else 0


def table_of(planted: Iterable[tuple[str, Planted]], found: Iterable[tuple[str, Planted]]) -> list[str]:
    """Return a table of Markdown: found of planted, by format and kind; those of one type are one line."""
    kinds: dict[str, set[str]] = {}
    counts: Counter[tuple[str, str]] = Counter()
    hits: Counter[tuple[str, str]] = Counter()
    for counted, several in ((counts, planted), (hits, found)):
        for table_format, one in several:
            of_type, _, rest = one.kind.partition(": ")
            counted[table_format, of_type] += 1
            kinds.setdefault(of_type, set()).update({rest} - {""})
    formats = list(dict.fromkeys(table_format for table_format, _ in counts))
    rows = [
        f"| {of_type}{': ' if rests else ''}{', '.join(sorted(rests))} |"
        + "".join(f" {hits[one, of_type]:,} of {counts[one, of_type]:,} |" for one in formats)
        for of_type, rests in sorted(kinds.items())
    ]
    return [f"| what was changed | {' | '.join(formats)} |", "|---|" + "---:|" * len(formats), *rows]
