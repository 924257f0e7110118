"""Start daemons and commands without a second of imports: a process with all modules imported forks each of them.

In: the command of `Daemon.start` or `Daemon.run`: cdcd, or a module of `PATCHED`, which starts cdcd with other
constants. A command with another module or with other variables than the failpoint runs as an ordinary child process.
Out: a process with the interface of `subprocess.Popen`.
Invariant: a forked process has no open connections and only its main thread; from `cdcd.cli.main` on it is an
ordinary daemon. The forked processes end with the forking process, which ends with the test session.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import IO, Any

from cdcd import failpoints
from tests.support.daemon import as_process, environment_without_cdcd, run_as_process

PATCHED = (
    "tests.faults.clocked",
    "tests.faults.hasty",
    "tests.faults.impatient",
    "tests.faults.planted",
    "tests.support.quick",
    "tests.support.small_units",
)
"""Modules that set constants of modules and then start cdcd: they do the same where all modules are imported."""


class Forks:
    """The forking process; `spawn` is for `Daemon.spawn`. Use as a context manager."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._begun_with = _environment()
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forked"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def spawn(self, command: list[str], log: IO[bytes], environment: dict[str, str]) -> Any:
        """Fork `python -m cdcd` or a patched one with these arguments; start any other command as a child process."""
        others = {name for name, value in environment.items() if os.environ.get(name) != value}
        _, option, module, *arguments = command
        if option != "-m" or module not in ("cdcd", *PATCHED) or others - {failpoints.VARIABLE}:
            return as_process(command, log, environment)
        crash_at = environment.get(failpoints.VARIABLE, "")
        return Forked(self, int(self.ask("start", log.name, log.name, crash_at, module, *arguments)))

    def run(self, command: list[str], folder: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run `python -m cdcd` with these arguments to its end, without cdcd's environment variables."""
        if command[1:3] != ["-m", "cdcd"] or _environment() != self._begun_with:
            return run_as_process(command, folder, timeout_s)
        number = next(self._numbers)
        output, errors = (folder / f"command-{number}.{name}" for name in ("out", "err"))
        ran = Forked(self, int(self.ask("command", str(output), str(errors), "", *command[2:])))
        try:
            status = ran.wait(timeout_s)
        except subprocess.TimeoutExpired:
            ran.kill()
            raise
        return subprocess.CompletedProcess(command, status, output.read_text(), errors.read_text())

    def ask(self, *words: str) -> str:
        """Send a request to the forking process; return its answer."""
        with self._lock:
            assert self._server.stdin is not None
            assert self._server.stdout is not None
            if self._server.stdin.closed:
                return str(-signal.SIGKILL)  # all forked processes ended with it
            self._server.stdin.write(json.dumps(words) + "\n")
            self._server.stdin.flush()
            return self._server.stdout.readline().strip()

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._server.communicate(timeout=30)


def _environment() -> dict[str, str]:
    """Return the part of this process's environment that affects a command."""
    of_pytest = {"PYTEST_CURRENT_TEST", "PYTEST_VERSION"}
    return {name: value for name, value in environment_without_cdcd().items() if name not in of_pytest}


class Forked:
    """A forked daemon, with the interface of `subprocess.Popen`."""

    def __init__(self, forks: Forks, pid: int) -> None:
        self._forks = forks
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, None while the process runs."""
        if self.returncode is None and (answer := self._forks.ask("poll", str(self.pid))):
            self.returncode = int(answer)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process ends; return its exit status."""
        if (status := self.poll()) is not None:
            return status
        ends = os.pidfd_open(self.pid)  # valid until `poll` reaps the process
        try:
            ended = select.poll()
            ended.register(ends, select.POLLIN)
            if not ended.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(f"cdcd {self.pid}", timeout or 0)
        finally:
            os.close(ends)
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal if the process runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _serve() -> None:
    main = _import_all()
    gc.collect()
    gc.freeze()  # a collection in a fork would traverse the modules' objects, and so copy their pages
    ended: dict[int, int | None] = {}
    for line in sys.stdin:
        word, *rest = json.loads(line)
        if word in ("start", "command"):
            pid = os.fork()
            if pid == 0:
                if word == "command":
                    _forget_variables()
                output, errors, crash_at, module, *arguments = rest
                _crash_at(crash_at)
                _become(main if module == "cdcd" else partial(_run, module), output, errors, arguments)
            ended[pid] = None
            print(pid, flush=True)
            continue
        pid = int(rest[0])
        if ended[pid] is None:  # two requests at once get the same answer
            found, status = os.waitpid(pid, os.WNOHANG)
            ended[pid] = os.waitstatus_to_exitcode(status) if found else None
        print("" if ended[pid] is None else ended[pid], flush=True)
    for pid, status_of in ended.items():
        if status_of is None:
            os.kill(pid, signal.SIGKILL)


def _import_all() -> Any:
    """Import what daemons and the frequent commands import, so that each fork has it; return cdcd's main function."""
    import encodings.idna  # noqa: F401 - the first look-up of a host name imports it

    from cdcd.cli import check, command_log, init, main, resume  # noqa: F401
    from cdcd.process import main as _whole_daemon  # noqa: F401

    return main


def _crash_at(at: str) -> None:
    """Set the failpoint in each module: the modules read the variable at import, before the fork."""
    passed, hit = failpoints.hit, failpoints._wanted(at)
    for module in list(sys.modules.values()):
        if getattr(module, "hit", None) is passed:
            setattr(module, "hit", hit)  # noqa: B010 - mypy knows no module with this attribute


def _run(module: str, arguments: list[str]) -> None:
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__")


def _forget_variables() -> None:
    for name in [name for name in os.environ if name.startswith("CDCD_")]:
        del os.environ[name]


def _become(main: Any, output: str, errors: str, arguments: list[str]) -> None:
    for number, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    status: Any = 1
    try:
        status = main(arguments)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - end as the interpreter does
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve()
