"""One child process: started in its own session, ended in order, and never running longer than this process.

In: a command line, a log file, the account to run as.  Out: a handle with `alive`, `stop`, `kill`.
Own session: Ctrl-C on the terminal reaches only cdcd, which then stops its servers in order.
End with the parent: the kernel sends `death_signal` when the *thread* that started the child ends
(PR_SET_PDEATHSIG), so every child is started by one thread that runs as long as the process.
Must not: wait without a deadline, or without checking that the child still runs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdcd.errors import StackError

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="server-starter")


@dataclass(frozen=True, slots=True)
class Account:
    """A user to run a server as, for servers that refuse to run as root."""

    name: str
    uid: int
    gid: int


class ServerProcess:
    """A running child process. `name` is for messages; its output is appended to `log`."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        cwd: Path,
        environment: Mapping[str, str] | None = None,
        account: Account | None = None,
        death_signal: signal.Signals = signal.SIGKILL,
        outlives_parent: bool = False,
    ) -> None:
        self.name = name
        self.log = log
        self._log_start = log.stat().st_size if log.exists() else 0
        before_exec = None if outlives_parent else _dying_with(os.getpid(), death_signal)

        def start() -> subprocess.Popen[bytes]:
            with log.open("ab") as output:
                return subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=cwd,
                    env=dict(environment) if environment is not None else None,
                    start_new_session=True,
                    preexec_fn=before_exec,
                    **as_account(account),
                )

        self._child = _starter.submit(start).result()

    @property
    def pid(self) -> int:
        """The child's process id, also its process group's."""
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether the child still runs."""
        return self._child.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the child alone."""
        if self.alive:
            self._child.send_signal(number)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; return False after `timeout_s`."""
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 30) -> None:
        """Send the signal for an orderly end; kill the process group after `timeout_s`."""
        self.send(number)
        if not self.wait(timeout_s):
            self.kill()

    def kill(self) -> None:
        """SIGKILL the child's whole process group and reap it."""
        if self.alive:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # the process ended between the two lines
        self._child.wait()

    def output(self) -> str:
        """The output that this child has written to its log."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def wait_until(self, ready: Callable[[], bool], deadline_s: float = 60) -> None:
        """Wait for a condition. Raises StackError with the last log lines if the child ends or at the deadline."""
        ends_s = time.monotonic() + deadline_s
        while not ready():
            if not self.alive:
                raise StackError(f"{self.name} ended while starting:\n{self._last_lines()}", log=self.log)
            if time.monotonic() > ends_s:
                raise StackError(
                    f"{self.name} was not ready after {deadline_s:g} s:\n{self._last_lines()}", log=self.log
                )
            time.sleep(0.05)

    def _last_lines(self) -> str:
        return "\n".join(self.output().splitlines()[-20:])


def as_account(account: Account | None) -> dict[str, Any]:
    """Return the arguments of `subprocess` that run a command as another user."""
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": []}


def _dying_with(parent: int, number: signal.Signals) -> Callable[[], None]:
    def before_exec() -> None:
        # After subprocess has changed the user: a change of credentials would clear the setting again.
        _libc.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # the parent died before the setting was made

    return before_exec
