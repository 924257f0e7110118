"""`make bench`: PostgreSQL's maximum send rate, the rates of cdcd and Debezium, their latency and their cost.

In: options.  Out: a line for each run, a table for each case, and with --json all results for `tests.bench.report`.
CPU in the tables is in seconds per million rows, user and system, over the interval of the rate; `others` is the
share of the machine used by processes outside the benchmark.
All cases with all rows take some hours: name some cases, or pass --scale small.
"""

from __future__ import annotations

import argparse
import fnmatch
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from cdcd.demo.stack.accounts import make_run_folder, server_account
from cdcd.errors import CdcdError, ConfigError
from tests.bench.cases import CASES, Case
from tests.bench.copying import COPIES, CopyCase
from tests.bench.floor import FLOORS, FloorCase
from tests.bench.latency import RATES, Rate
from tests.bench.peer import Debezium
from tests.bench.restart import STARTS, Start
from tests.bench.runners import BEFORE, DEFAULT_RUNNERS, Runner, of_checkout
from tests.bench.servers import Servers, started
from tests.bench.session import RUNNERS, Session

SCALES = {"tiny": 0.01, "small": 0.1, "full": 1.0}
Measured = Case | Rate | FloorCase | Start | CopyCase
ITEMS: dict[str, Measured] = {**CASES, **RATES, **FLOORS, **STARTS, **COPIES}
"""Everything that --cases may name, in the order of execution."""


def main(arguments: Sequence[str] | None = None, servers: Servers | None = None) -> int:
    """Run the requested cases, on these servers or on new ones."""
    options = _options(arguments)
    if options.list:
        _list()
        return 0
    try:
        items, runners = chosen(options.cases), _runners(options.runners, options.before)
        if servers is not None:
            return _run(options, items, runners, servers)
        return _run_on_own_servers(options, items, runners)
    except CdcdError as error:
        print(error, file=sys.stderr)
        return 1


def chosen(patterns: Sequence[str]) -> list[Measured]:
    """Return the items that match the patterns (`insert-*`), in order; without a pattern, all except the long ones.
    Raises ConfigError.
    """
    for pattern in patterns:
        if not fnmatch.filter(ITEMS, pattern):
            raise ConfigError(f"no case is named {pattern}; --list shows them")
    if not patterns:
        return [item for item in ITEMS.values() if not item.is_long]
    return [item for item in ITEMS.values() if any(fnmatch.fnmatch(item.name, one) for one in patterns)]


def _runners(names: Sequence[str], before: Path | None) -> list[Runner]:
    known = RUNNERS if before is None else {**RUNNERS, BEFORE: of_checkout(before)}
    for name in names:
        if name not in known:
            raise ConfigError(
                f"no runner is named {name}; --list shows them, and --before FOLDER makes {BEFORE}"
            )
    return [known[name] for name in names]


def _run_on_own_servers(
    options: argparse.Namespace, items: Sequence[Measured], runners: Sequence[Runner]
) -> int:
    folder = options.folder or make_run_folder("cdcd-bench-", server_account())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # also a started daemon ends
    try:
        with started(folder) as servers:
            return _run(options, items, runners, servers)
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


def _run(
    options: argparse.Namespace,
    items: Sequence[Measured],
    runners: Sequence[Runner],
    servers: Servers,
) -> int:
    asked = {name: getattr(options, name) for name in ("scale", "pairs", "repeats", "seconds")}
    session = Session(servers, options.json, asked)
    there = session.begin(runners)
    if options.warm_up:
        session.warm_up()
    for item in items:
        if isinstance(item, Case):
            session.drain(item.scaled(options.scale), there, options.pairs, options.repeats)
        elif isinstance(item, Rate):
            session.latency(item, there, options.seconds)
        elif isinstance(item, CopyCase):
            with_peer = any(isinstance(one, Debezium) for one in there)
            session.copy(item.scaled(options.scale), options.pairs, with_peer=with_peer)
        elif isinstance(item, FloorCase):
            session.floor(item, options.seconds)
        else:
            session.restart(item, options.pairs)
    session.end()
    return 1 if session.failures else 0


def _list() -> None:
    print("cases:")
    for item in ITEMS.values():
        rows = f" ({item.rows:,} rows)" if isinstance(item, Case) else ""
        print(f"  {item.name:20} {item.about}{rows}{' (only when named)' if item.is_long else ''}")
    print("runners:")
    for runner in RUNNERS.values():
        asked = "" if runner.name in DEFAULT_RUNNERS else " (only when named)"
        print(f"  {runner.name:20} {runner.about}{asked}")


def _scale(text: str) -> float:
    return SCALES[text] if text in SCALES else float(text)


def _names(text: str) -> list[str]:
    return [one for one in text.split(",") if one]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--list", action="store_true", help="the cases and the runners, and nothing else")
    add(
        "--cases",
        type=_names,
        default=[],
        metavar="A,B*",
        help="names or patterns (default: all but the long ones)",
    )
    add(
        "--runners",
        type=_names,
        default=list(DEFAULT_RUNNERS),
        metavar="A,B",
        help="in the order of their turns; latency is measured once for each time that a runner is named"
        f" (default: {','.join(DEFAULT_RUNNERS)})",
    )
    add(
        "--pairs",
        type=int,
        default=3,
        help="number of turns of each runner, or of starts (default 3)",
    )
    add(
        "--scale",
        type=_scale,
        default=1.0,
        help="a share of the rows: a number, tiny (0.01), small (0.1) or full (default)",
    )
    add(
        "--repeats",
        type=int,
        default=2,
        help="number of repeats of a run in which other processes used more than a tenth of the machine (default 2)",
    )
    add("--seconds", type=int, default=60, help="duration of a latency measurement in seconds (default 60)")
    add("--json", type=Path, metavar="FILE", help="write all results to this file, for tests.bench.report")
    add(
        "--no-warm-up",
        dest="warm_up",
        action="store_false",
        help="skip the warm-up drain, which is not measured",
    )
    add(
        "--before",
        type=Path,
        metavar="FOLDER",
        help=f"another checkout of cdcd with its C extensions, for the runner {BEFORE}",
    )
    add("--folder", type=Path, help="folder of the servers' data; not removed at the end")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
