"""Run many simulations and shrink failing ones, for tests/simulator/regressions.py.

`python -m tests.simulator --first 7 --count 1` runs one seed.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.simulator.judge import drawn, simulate
from tests.simulator.shrink import shrunk

SHRUNK = 5
"""The number of failing cases to shrink: mostly all fail for the same reason."""


def main() -> int:
    """Run the seeds. Return 1 if any of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=10_000, help="how many seeds, one simulation each")
    options = parser.parse_args()
    failed, messages, begun_s = [], 0, time.monotonic()
    for seed in range(options.first, options.first + options.count):
        try:
            messages += simulate(seed)
        except Exception:  # noqa: BLE001 - after any error the other seeds are run
            failed.append(seed)
            print(f"seed {seed}:", file=sys.stderr)
            traceback.print_exc(limit=-3)
            if len(failed) <= SHRUNK:
                print(f"shrunk: {shrunk(drawn(seed))}", file=sys.stderr)
    took_s = time.monotonic() - begun_s
    print(f"{options.count} simulations, {messages} messages, {len(failed)} failed, {took_s:.0f} s")
    if failed:
        print(f"failed seeds: {' '.join(map(str, failed))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
