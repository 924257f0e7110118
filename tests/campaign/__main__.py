"""`make campaign SEEDS=20 FIRST=1`: seeds of faults under load, one line for each; see docs/proof.md.

`python -m tests.campaign --seeds 20 --first 1 --minutes 60 --results FILE`: ends after the seeds, or after the
minutes if they are over first. The servers stay up over the seeds. Of a seed with findings the daemon's log and the
history stay in the folder `--logs`, and the run ends with status 1.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

from tests.campaign.one_seed import HISTORY, Result, run_seed
from tests.campaign.plan import plan_of
from tests.campaign.servers import Servers, running

LOAD_S = 15.0
SEEDS_OF_SERVERS = 40
"""After this number of seeds all servers are new: what a seed left behind may slow down the later ones."""


def main() -> int:
    """Run the seeds that the arguments name. Return 1 after findings."""
    parser = argparse.ArgumentParser(prog="make campaign", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--minutes", type=float, default=24 * 60, help="no seed begins after this time")
    parser.add_argument("--load", type=float, default=LOAD_S, help="seconds of load in a seed")
    parser.add_argument("--major", type=int, default=18, help="PostgreSQL's major version")
    parser.add_argument("--results", type=Path, help="a file that a JSON line for each seed is appended to")
    parser.add_argument(
        "--logs", type=Path, default=Path("build/campaign"), help="logs of seeds with findings"
    )
    options = parser.parse_args()
    end_s = time.monotonic() + options.minutes * 60
    seeds = list(range(options.first, options.first + options.seeds))
    results: list[Result] = []
    while seeds and time.monotonic() < end_s:
        with running(options.major) as servers:
            for seed in seeds[:SEEDS_OF_SERVERS]:
                if time.monotonic() > end_s:
                    break
                results.append(one(servers, seed, options))
        seeds = seeds[SEEDS_OF_SERVERS:]
    failed = [result.seed for result in results if result.findings]
    print(f"{len(results)} seeds, {len(failed)} with findings{': ' if failed else ''}{str(failed)[1:-1]}")
    return 1 if failed else 0


def one(servers: Servers, seed: int, options: argparse.Namespace) -> Result:
    """Run a seed, print its line and its findings, and append its result to the file."""
    folder = servers.folder / f"seed-{seed}"
    result = run_seed(servers, plan_of(seed, options.load), folder)
    print(result.line(), *result.findings, sep="\n  ", flush=True)
    if options.results is not None:
        with options.results.open("a") as file:
            file.write(json.dumps(result.as_json()) + "\n")
    if result.findings:
        options.logs.mkdir(parents=True, exist_ok=True)
        for name in ("cdcd.log", HISTORY):
            if (folder / name).exists():
                shutil.copy(folder / name, options.logs / f"seed-{seed}.{name}")
    shutil.rmtree(folder, ignore_errors=True)
    return result


if __name__ == "__main__":
    sys.exit(main())
