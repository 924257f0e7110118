"""Daemons that need no second for Python's imports: a process that has imported everything forks one for each start.

In: what `Daemon.start` would run; another module, or variables of its own but for the place to crash at, is run as a
process of its own.  Out: a process like subprocess's.
Invariant: what is forked has opened nothing and has no thread but the first; from `cdcd.cli.main` on it is a daemon
like any other. They end with the process that forks them, and that ends with the test.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import IO, Any

from cdcd import failpoints
from tests.support.daemon import as_process

PAUSE_S = 0.005


class Forks:
    """The process that forks; `spawn` is for `Daemon.spawn`. Use as a context manager."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forked"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def spawn(self, command: list[str], log: IO[bytes], environment: dict[str, str]) -> Any:
        """Start what `python -m cdcd` with these arguments is; anything else as a process of its own."""
        others = {name for name, value in environment.items() if os.environ.get(name) != value}
        if command[1:3] != ["-m", "cdcd"] or others - {failpoints.VARIABLE}:
            return as_process(command, log, environment)
        crash_at = environment.get(failpoints.VARIABLE, "")
        return Forked(self, int(self.ask("start", log.name, crash_at, *command[3:])))

    def ask(self, *words: str) -> str:
        """Ask the process that forks."""
        with self._lock:
            assert self._server.stdin is not None
            assert self._server.stdout is not None
            if self._server.stdin.closed:
                return str(-signal.SIGKILL)  # they have ended with it
            self._server.stdin.write("\t".join(words) + "\n")
            self._server.stdin.flush()
            return self._server.stdout.readline().strip()

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._server.communicate(timeout=30)


class Forked:
    """One daemon, as `subprocess.Popen` has it."""

    def __init__(self, forks: Forks, pid: int) -> None:
        self._forks = forks
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status, None while it runs."""
        if self.returncode is None and (answer := self._forks.ask("poll", str(self.pid))):
            self.returncode = int(answer)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, when it has ended."""
        end_s = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if end_s is not None and time.monotonic() > end_s:
                raise subprocess.TimeoutExpired(f"cdcd {self.pid}", timeout or 0)
            time.sleep(PAUSE_S)
        return status

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it is there."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _serve() -> None:
    from cdcd.cli import main  # here, where it is wanted ready in every fork
    from cdcd.process import main as _whole_daemon  # noqa: F401

    ended: dict[int, int | None] = {}
    for line in sys.stdin:
        word, *rest = line.rstrip("\n").split("\t")
        if word == "start":
            pid = os.fork()
            if pid == 0:
                _crash_at(rest[1])
                _become(main, rest[0], rest[2:])
            ended[pid] = None
            print(pid, flush=True)
            continue
        pid = int(rest[0])
        if ended[pid] is None:  # who asks twice at once has the same answer
            found, status = os.waitpid(pid, os.WNOHANG)
            ended[pid] = os.waitstatus_to_exitcode(status) if found else None
        print("" if ended[pid] is None else ended[pid], flush=True)
    for pid, status_of in ended.items():
        if status_of is None:
            os.kill(pid, signal.SIGKILL)


def _crash_at(at: str) -> None:
    """The modules have what the variable said when they were imported, before the fork."""
    passed, hit = failpoints.hit, failpoints._wanted(at)
    for module in list(sys.modules.values()):
        if getattr(module, "hit", None) is passed:
            module.hit = hit


def _become(main: Any, log: str, arguments: list[str]) -> None:
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number in (1, 2):
        os.dup2(output, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    status = 1
    try:
        status = main(arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve()
