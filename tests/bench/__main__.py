"""`make bench`: how fast a backlog is drained, against what PostgreSQL can send at most.

In: options.  Out: a line for each run, a table for each case, and with --json all of it for `tests.bench.report`.
CPU in the tables is in seconds per million rows, user and system, over the time of the rate.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cdcd.demo.stack.accounts import make_run_folder, server_account
from cdcd.errors import CdcdError, ConfigError
from tests.bench.cases import CASES, chosen
from tests.bench.pairs import drain_case
from tests.bench.runners import DEFAULT_RUNNERS, LIMIT, RUNNERS, Runner
from tests.bench.servers import Servers, cdcd_version, started
from tests.bench.table import case_table

SCALES = {"tiny": 0.001, "small": 0.1, "full": 1.0}
FORMAT = 1
WARM_UP_SHARE = 0.1


def main(arguments: Sequence[str] | None = None, servers: Servers | None = None) -> int:
    """Run what was asked for, on these servers or on some of its own."""
    options = _options(arguments)
    if options.list:
        _list()
        return 0
    try:
        chosen(options.cases)
        _runners(options)
        if servers is not None:
            _run(options, servers)
        else:
            _run_on_own_servers(options)
    except CdcdError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _run_on_own_servers(options: argparse.Namespace) -> None:
    folder = options.folder or make_run_folder("cdcd-bench-", server_account())
    try:
        with started(folder) as servers:
            _run(options, servers)
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


def _run(options: argparse.Namespace, servers: Servers) -> None:
    runners = _runners(options)
    document: dict[str, Any] = {
        "format": FORMAT,
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "scale": options.scale,
        "machine": servers.description(),
        "cdcd": cdcd_version(),
        "limit": LIMIT,
        "runners": {one.name: {"about": one.about, "settings": dict(one.settings)} for one in runners},
        "cases": {},
        "runs": [],
    }
    if options.warm_up:
        _warm_up(servers, options.scale)
    for case in (case.scaled(options.scale) for case in chosen(options.cases)):
        document["cases"][case.name] = {"about": case.about, "rows": case.rows}
        found = drain_case(servers, case, runners, options.pairs, options.repeats, _say)
        runs = []
        for run in found:
            runs.append(run.document())
            document["runs"].append(runs[-1])
            _write(options.json, document)  # what is there is kept, whatever becomes of the next one
        print(f"\n{case.name}: {case.about}\n{case_table(runs, LIMIT)}\n", flush=True)


def _warm_up(servers: Servers, scale: float) -> None:
    """Let the broker's and the registry's Java compile what it will run: the first run would pay for all."""
    case = CASES["insert-1000"].scaled(WARM_UP_SHARE * scale)
    for _ in drain_case(servers, case, [RUNNERS["cdcd"]], pairs=1, repeats=0, say=lambda _: None):
        _say("warmed up")


def _write(path: Path | None, document: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(document, indent=1) + "\n")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _runners(options: argparse.Namespace) -> list[Runner]:
    """The runners that were asked for. Raises ConfigError for one that there is not."""
    for name in options.runners:
        if name not in RUNNERS:
            raise ConfigError(f"no runner is named {name}; --list shows them")
    return [RUNNERS[name] for name in options.runners]


def _list() -> None:
    print("cases:")
    for case in CASES.values():
        print(
            f"  {case.name:20} {case.about} ({case.rows:,} rows){' (only when named)' if case.is_long else ''}"
        )
    print("runners:")
    for runner in RUNNERS.values():
        print(
            f"  {runner.name:20} {runner.about}{'' if runner.name in DEFAULT_RUNNERS else ' (only when named)'}"
        )


def _scale(text: str) -> float:
    return SCALES[text] if text in SCALES else float(text)


def _names(text: str) -> list[str]:
    return [one for one in text.split(",") if one]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="the cases and the runners, and nothing else")
    parser.add_argument(
        "--cases",
        type=_names,
        default=[],
        metavar="A,B*",
        help="names or patterns (default: all but the long ones)",
    )
    parser.add_argument(
        "--runners",
        type=_names,
        default=list(DEFAULT_RUNNERS),
        metavar="A,B",
        help=f"in the order of their turns (default: {','.join(DEFAULT_RUNNERS)})",
    )
    parser.add_argument("--pairs", type=int, default=3, help="how often each runner has its turn (default 3)")
    parser.add_argument(
        "--scale",
        type=_scale,
        default=1.0,
        help="a share of the rows: a number, tiny (0.001), small (0.1) or full (default)",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=2,
        help="how often a run is repeated when others have used more than a tenth of the machine (default 2)",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything there, for tests.bench.report"
    )
    parser.add_argument(
        "--no-warm-up",
        dest="warm_up",
        action="store_false",
        help="do without the drain that counts for nothing",
    )
    parser.add_argument("--folder", type=Path, help="where the servers live; kept at the end")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
