"""Run many simulations, one for each seed, and print what failed.

In: the program's name, the simulation, the usual number of seeds.  Out: an exit status.
"""

from __future__ import annotations

import argparse
import traceback
from collections import Counter
from collections.abc import Callable


def run_seeds(prog: str, about: str | None, simulate: Callable[[int], Counter[str]], usual_count: int) -> int:
    """Run the seeds of the command line. Return 1 if any of them failed."""
    parser = argparse.ArgumentParser(prog=prog, description=about)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=usual_count, help="how many seeds, one simulation each")
    options = parser.parse_args()
    failed, counts = [], Counter[str]()
    for seed in range(options.first, options.first + options.count):
        try:
            counts += simulate(seed)
        except Exception:  # noqa: BLE001 - after any error the other seeds are run
            failed.append(seed)
            traceback.print_exc(limit=-3)
    print(f"{options.count} simulations, {len(failed)} failed: {failed[:20]}; {dict(counts)}")
    return 1 if failed else 0
