"""`make copy-kills`: a large table is copied by an incremental snapshot while it changes, and cdcd is killed several
times: the topic's rows are the table's, and each kill repeats little work.

In: rows, transactions per second, kills.  Out: a line for each kill, the judgement; exit status 1 after a finding.
The judge is the table itself, and fastavro: neither the encoder nor a decoder of cdcd reads a record.
Repeated work: the rows that a killed process had passed to Kafka and that never became visible, and at most one chunk
that it had read and not passed on.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cdcd.demo.stack.accounts import make_run_folder, server_account
from cdcd.errors import StackError
from cdcd.snapshot.chunk_reader import MAX_CHUNK_BYTES
from tests.bench.backlog import Backlog
from tests.bench.cases import TEN, Case
from tests.bench.copied_table import TABLE, make_table
from tests.bench.folded_topic import Folded, folded_topic
from tests.bench.kafka import Watermarks
from tests.bench.latency import Writer
from tests.bench.runners import Cdcd
from tests.bench.servers import Servers, started
from tests.support.daemon import Daemon, await_confirmed
from tests.support.snapshot_commands import await_copied, copied_rows, start
from tests.support.waiting import eventually

ROWS, PER_SECOND, KILLS = 5_000_000, 1_000, 10
MIB = 1024 * 1024
MOST_REPEATED_BYTES = 64 * MIB
LOOK_S = 0.02
COPIED_WITHIN_S = 3600
LONGEST_S = 7200
"""The load ends with the copy, at the latest after this time."""


class Life(NamedTuple):
    """One process of the daemon: from when to when (milliseconds of the epoch), and the rows that it passed on."""

    from_ms: float
    to_ms: float
    rows: int


@dataclass(frozen=True, slots=True)
class Repeated:
    """The work of one kill that was done again."""

    rows: int
    size_bytes: int

    @property
    def most_bytes(self) -> int:
        """With the chunk that was read and not passed on."""
        return self.size_bytes + MAX_CHUNK_BYTES


def main(arguments: Sequence[str] | None = None) -> int:
    """Copy, kill and judge. Return 1 if the topic differs from the table or a kill repeated too much."""
    parser = argparse.ArgumentParser(prog="make copy-kills", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of the table")
    parser.add_argument("--per-second", type=int, default=PER_SECOND, help="transactions per second")
    parser.add_argument("--kills", type=int, default=KILLS, help="number of kills, spread over the copy")
    parser.add_argument("--seed", type=int, default=1, help="seed of the moments")
    options = parser.parse_args(arguments)
    folder = make_run_folder("cdcd-copy-kills-", server_account())
    try:
        with started(folder) as servers:
            found = run(servers, options.rows, options.per_second, options.kills, options.seed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for line in found:
        print(line)
    return 1 if found else 0


def run(servers: Servers, rows: int, per_second: int, kills: int, seed: int = 1) -> list[str]:
    """Return what is wrong. Raises StackError if a part of the run fails."""
    with Backlog(servers.postgres, Case("copy-kills", "", TEN, 0, 1)) as backlog:
        make_table(backlog, rows)
        _say(f"{rows:,} rows, {per_second:,} transactions/s")
        with backlog.emptied() as slot, Cdcd("cdcd", "").daemon(servers, backlog, slot) as daemon:
            lives = _killed(servers, backlog, daemon, rows, per_second, kills, seed)
            topic = f"{daemon.name}.public.{TABLE}"
            _say("judging ...")
            folded = folded_topic(servers, topic)
            return [*_unequal(backlog, folded), *_repeats(lives, folded), *folded.findings]


def _killed(
    servers: Servers, backlog: Backlog, daemon: Daemon, rows: int, per_second: int, kills: int, seed: int
) -> list[Life]:
    """Copy the table under load, with kills. Return the processes, the last one too."""
    dice, lives = random.Random(seed), []
    writer = Writer(servers, backlog, servers.folder / "copy-kills", rows)
    daemon.start().wait_state("streaming")
    watermarks = Watermarks(servers.kafka.bootstrap, (f"{daemon.name}.public.{TABLE}",))
    writing = writer.writing(per_second, LONGEST_S, ends_with_block=True)
    with writing, contextlib.closing(watermarks) as written:
        begun_ms = time.time() * 1000
        start(daemon, f"public.{TABLE}")
        for number in range(1, kills + 1):
            wanted = rows * (number - dice.random() / 2) / (kills + 1)
            _await_records(daemon, written, wanted)
            emitted = copied_rows(daemon)
            daemon.kill()
            lives.append(Life(begun_ms, time.time() * 1000, emitted))
            _say(
                f"kill {number} at {written.total():,} visible records, after {emitted:,} rows of this process"
            )
            begun_ms = time.time() * 1000
            daemon.start().wait_state("streaming")
        await_copied(daemon, COPIED_WITHIN_S)
        lives.append(Life(begun_ms, time.time() * 1000, copied_rows(daemon)))
    await_confirmed(servers.postgres, daemon)
    if daemon.stop() != 0:
        raise StackError(f"cdcd ended with an error:\n{daemon.log()[-4000:]}")
    return lives


def _await_records(daemon: Daemon, written: Watermarks, wanted: float) -> None:
    """Wait until so many records are visible."""

    def is_reached() -> bool:
        daemon.assert_alive()
        return written.total() >= wanted

    eventually(is_reached, f"{wanted:,.0f} records are visible", COPIED_WITHIN_S, LOOK_S)


def _unequal(backlog: Backlog, folded: Folded) -> Iterator[str]:
    """Yield the differences between the topic's rows and the table's."""
    different, missing, extra = folded.differences(backlog)
    _say(
        f"{folded.rows:,} rows of the topic: {different} differ, {missing} are missing, {extra} are too many"
    )
    if different or missing or extra:
        yield f"the topic is not the table: {different} differ, {missing} are missing, {extra} are too many"


def _repeats(lives: Sequence[Life], folded: Folded) -> Iterator[str]:
    """Print what each kill repeated; yield those that repeated too much."""
    found = repeated(lives, folded)
    for number, (life, one) in enumerate(zip(lives, found, strict=True), 1):
        _say(
            f"process {number}: {life.rows:,} rows copied, {one.rows:,} of them not durable"
            f" ({one.size_bytes / MIB:.1f} MB); with an unfinished chunk at most {one.most_bytes / MIB:.1f} MB"
        )
        if one.most_bytes > MOST_REPEATED_BYTES:
            yield f"kill {number} repeated up to {one.most_bytes / MIB:.1f} MB"
    if found[-1].rows:
        yield "rows that the last process copied are not in the topic"


def repeated(lives: Sequence[Life], folded: Folded) -> list[Repeated]:
    """Return the rows of each process that did not become visible. Pure.

    A process may copy a slice more between the last look at its counter and its kill: then more rows are visible.
    """
    return [
        Repeated(lost, round(lost * folded.bytes_per_row))
        for life in lives
        for lost in [max(0, life.rows - folded.copied_between(life.from_ms, life.to_ms))]
    ]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
