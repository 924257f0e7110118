"""`make matrix`: every major and every combination of options, compared with PostgreSQL's own account.

In: --majors, --seed, --batch, --large-rows.  Out: a line for each batch of cells that read one workload, then the
counts of each major; exit status 1 when any cell differed. `--seed N --only K` runs one batch again.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator

from cdcd.demo.stack.accounts import make_run_folder, server_account
from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.registry import SchemaRegistry
from tests.matrix.batch import Outcome, Plan, run
from tests.matrix.cells import MAJORS, Cell, cells_of, few_of
from tests.support.stack import PostgresServers, Stack

Batch = tuple[int, Plan, tuple[Cell, ...]]


def main() -> int:
    """Run the requested batches."""
    options = _options()
    totals: dict[int, Counter[str]] = {major: Counter() for major in options.majors}
    cache, folder = Cache(), make_run_folder("cdcd-matrix-", server_account())
    servers = PostgresServers(cache, folder)
    try:
        with (
            KafkaBroker(folder / "kafka", cache=cache) as kafka,
            SchemaRegistry(folder / "registry", cache=cache) as registry,
        ):
            for number, (major, plan, cells) in enumerate(_batches(options)):
                if options.only in (None, number):
                    stack = Stack(servers(major), kafka, registry, folder)
                    began_s = time.monotonic()
                    outcomes = run(stack, cells, plan)
                    _say(number, major, plan, outcomes, time.monotonic() - began_s)
                    _count(totals[major], outcomes)
    finally:
        servers.stop()
    failed = sum(one["failed"] for one in totals.values())
    if not failed:
        shutil.rmtree(folder, ignore_errors=True)
    for major, counted in totals.items():
        print(f"PostgreSQL {major}: " + ", ".join(f"{counted[one]} {one}" for one in _COUNTED), flush=True)
    print(f"{failed} failed" + (f"; the statements of each workload are in {folder}" if failed else ""))
    return 1 if failed else 0


_COUNTED = ("cells", "equal", "failed", "transactions", "streamed", "changes", "kills")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make matrix", description=__doc__)
    parser.add_argument(
        "--majors", type=lambda text: [int(one) for one in text.split(",")], default=list(MAJORS)
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of the first batch; each further batch has its own"
    )
    parser.add_argument("--batch", type=int, default=4, help="number of cells that read one workload at once")
    parser.add_argument("--steps", type=int, default=900, help="number of steps of each workload")
    parser.add_argument(
        "--large-rows", type=int, default=1_000_000, help="number of rows of each major's large transaction"
    )
    parser.add_argument("--few", action="store_true", help="three cells of each major instead of all")
    parser.add_argument("--only", type=int, default=None, help="the number of one batch")
    return parser.parse_args()


def _batches(options: argparse.Namespace) -> Iterator[Batch]:
    seeds = itertools.count(options.seed)
    for major in options.majors:
        if options.large_rows:
            yield major, Plan(next(seeds), 120, options.large_rows), few_of(major)[:2]
        cells = few_of(major) if options.few else tuple(cells_of(major))
        for first in range(0, len(cells), options.batch):
            yield major, Plan(next(seeds), options.steps), cells[first : first + options.batch]


def _say(number: int, major: int, plan: Plan, outcomes: list[Outcome], took_s: float) -> None:
    first = next((one.counts for one in outcomes if one.counts), None)
    reported = f"{first.transactions} transactions, {first.changes} changes, " if first else ""
    kills = sum(one.kills for one in outcomes)
    equal = sum(not one.error for one in outcomes)
    print(
        f"batch {number}, seed {plan.seed}, PostgreSQL {major}: {reported}{kills} kills, "
        f"{equal} of {len(outcomes)} cells equal, {took_s:.0f} s",
        flush=True,
    )
    for one in outcomes:
        if one.error:
            print(f"  NOT EQUAL: {one.cell}\n    {one.error[:2000]}", flush=True)


def _count(total: Counter[str], outcomes: list[Outcome]) -> None:
    for one in outcomes:
        total["cells"] += 1
        total["equal" if one.counts else "failed"] += 1
        total["kills"] += one.kills
        total["streamed"] += one.streamed
        if one.counts:
            total["transactions"] += one.counts.transactions
            total["changes"] += one.counts.changes


if __name__ == "__main__":
    sys.exit(main())
