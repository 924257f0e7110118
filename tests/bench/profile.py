"""`make profile`: the time that each function takes in a drain.

In: a case.  Out: a file of collapsed stacks (speedscope.app and flame graph tools read it), and the functions with
the most samples of their own. py-spy samples the process from outside, with the stacks of compiled code; it is in the
extra `bench`.
Must not: be used to measure speed: each sample stops the daemon for a moment.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from cdcd.demo.stack.accounts import make_run_folder, server_account
from cdcd.errors import CdcdError, StackError
from tests.bench.backlog import Backlog
from tests.bench.cases import CASES, Case
from tests.bench.runners import OWN, Running, RunProgress
from tests.bench.servers import Servers, started

SHOWN = 30
SHOWN_THREADS = 8
_THREAD = re.compile(r"^thread \(\d+\): ")
LOOK_S = 0.2
CDCD = {runner.name: runner for runner in OWN if runner.name not in ("unix", "tcp")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Drain under py-spy and print the most sampled functions."""
    options = _options(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # also a started daemon ends
    folder = make_run_folder("cdcd-bench-", server_account())
    try:
        program = py_spy()
        with started(folder) as servers:
            case = CASES[options.case].scaled(options.scale)
            _record(servers, case, options.runner, _command(program, options))
        print(top(options.output.read_text().splitlines()))
        print(f"\n{options.output}: collapsed stacks, for speedscope.app")
    except CdcdError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def py_spy() -> str:
    """Return the path of py-spy. Raises StackError when it is not installed."""
    installed = Path(sys.executable).with_name("py-spy")
    found = str(installed) if installed.exists() else shutil.which("py-spy")
    if found is None:
        raise StackError("py-spy is not installed", hint="pip install 'cdcd[bench]'")
    return found


def _command(program: str, options: argparse.Namespace) -> list[str]:
    command = [program, "record", "--format", "raw", "--output", str(options.output), "--duration", "3600"]
    command += ["--rate", str(options.rate), "--threads", "--function"]
    return [*command, "--native"] if options.native else command


def _record(servers: Servers, case: Case, runner: str, command: list[str]) -> None:
    with (
        Backlog(servers.postgres, case) as backlog,
        backlog.new_slot() as slot,
        CDCD[runner].run(servers, backlog, slot) as running,
    ):
        _await(running, RunProgress.WARM)
        recorder = subprocess.Popen([*command, "--pid", str(running.pid)])
        try:
            _await(running, RunProgress.ALL)
            recorder.send_signal(signal.SIGINT)  # py-spy writes its samples
            if status := recorder.wait(120):
                raise StackError(f"py-spy ended with {status}")
        finally:
            recorder.kill()


def _await(running: Running, wanted: RunProgress) -> None:
    while running.look(LOOK_S).value < wanted.value:
        pass


def top(stacks: Iterable[str]) -> str:
    """Return the functions most often on top of a stack, or anywhere in it, with their share; threads first. Pure.

    A line is: frames from the bottom up separated by semicolons, the first is the thread; a space; samples.
    """
    own: Counter[str] = Counter()
    with_called: Counter[str] = Counter()
    threads: Counter[str] = Counter()
    for line in stacks:
        frames, _, samples = line.rpartition(" ")
        thread, *names = frames.split(";")
        threads[_THREAD.sub("", thread)] += int(samples)
        own[names[-1] if names else "?"] += int(samples)
        with_called.update(dict.fromkeys(names, int(samples)))
    total = max(own.total(), 1)

    def shares(counts: Counter[str], most: int) -> list[str]:
        return [f"{count / total:7.1%}  {name}" for name, count in counts.most_common(most)]

    return "\n".join(
        (
            "threads:",
            *shares(threads, SHOWN_THREADS),
            "functions including their callees:",
            *shares(with_called, SHOWN),
            "functions alone:",
            *shares(own, SHOWN),
        )
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make profile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--case",
        default="insert-1000",
        choices=CASES,
        metavar="NAME",
        help="a case of make bench (insert-1000)",
    )
    add("--runner", default="cdcd", choices=CDCD, help="runner of cdcd (default cdcd)")
    add("--scale", type=float, default=1.0, help="a share of the case's rows (default 1)")
    add("--rate", type=int, default=100, help="samples a second (default 100)")
    add("--no-native", dest="native", action="store_false", help="Python's frames only: cheaper")
    add("--output", type=Path, default=Path("profile.folded"), help="output file (default profile.folded)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
