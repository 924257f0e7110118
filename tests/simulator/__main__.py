"""`make faults`: many simulations, the seeds of those that fail. `python -m tests.simulator --first 7 --count 1`."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.simulator.judge import simulate


def main() -> int:
    """Run the seeds; 1 when any of them failed."""
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=10_000, help="how many seeds, one simulation each")
    options = parser.parse_args()
    failed, messages, begun_s = [], 0, time.monotonic()
    for seed in range(options.first, options.first + options.count):
        try:
            messages += simulate(seed)
        except Exception:  # noqa: BLE001 - whatever it is, the other seeds run on
            failed.append(seed)
            print(f"seed {seed}:", file=sys.stderr)
            traceback.print_exc(limit=-3)
    took_s = time.monotonic() - begun_s
    print(f"{options.count} simulations, {messages} messages, {len(failed)} failed, {took_s:.0f} s")
    if failed:
        print(f"failed seeds: {' '.join(map(str, failed))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
