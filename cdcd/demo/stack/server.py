"""The base of the local servers: start, wait until ready, stop, kill, restart on the same ports.

In: from a subclass, how to launch the process, the check that it serves, and its log line for a taken port.
Out: a server that is a context manager.
Invariant: a server's ports are fixed once clients may know them; only the first start tries other ports.
Must not: know any server by name.
"""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import ClassVar, Self

from cdcd.demo.stack.process import ServerProcess
from cdcd.errors import StackError

START_ATTEMPTS = 5
STOP_WITHIN_S = 20.0


class LocalServer(ABC):
    """One server process. Use as a context manager, or `start` and `stop`."""

    PORT_TAKEN: ClassVar[tuple[str, ...]] = ("Address already in use",)
    """The texts of which one is in its log if another process has the port."""
    START_WITHIN_S: ClassVar[float] = 120

    def __init__(self) -> None:
        self._process: ServerProcess | None = None
        self._are_ports_known = False

    @abstractmethod
    def launch(self) -> None:
        """Start the process, unless it runs, without waiting for it."""

    @abstractmethod
    def _serves(self) -> bool:
        """Return whether the server accepts clients now."""

    @abstractmethod
    def _take_other_ports(self) -> None:
        """Choose other ports, before any client knows them."""

    @property
    def pid(self) -> int | None:
        """The process id, None if it is not running."""
        return self._process.pid if self._process and self._process.alive else None

    def start(self) -> None:
        """Start and wait until the server accepts clients; the first start tries other ports if these are taken."""
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                self.launch()
                self.wait_ready()
                self._are_ports_known = True
                return
            except StackError:
                output = self._process.output() if self._process is not None else ""
                is_taken = any(text in output for text in self.PORT_TAKEN)
                self.kill()
                if not is_taken or self._are_ports_known or attempt == START_ATTEMPTS:
                    raise
                self._take_other_ports()

    def wait_ready(self) -> None:
        """Wait until the server accepts clients. Raises StackError with the end of the server's log."""
        self._wait_until(self._serves)

    def _wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait for a condition of the running server. Raises StackError with the end of its log."""
        if self._process is None:
            raise StackError(f"{type(self).__name__} was not launched")
        self._process.wait_until(ready, self.START_WITHIN_S)

    def stop(self) -> None:
        """Stop in order; kill the server after STOP_WITHIN_S."""
        self._end(signal.SIGTERM, STOP_WITHIN_S)

    def kill(self) -> None:
        """SIGKILL the server and its child processes."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def restart(self) -> None:
        """Stop in order and start on the same ports with the same data."""
        self.stop()
        self.start()

    def _end(self, number: signal.Signals, timeout_s: float) -> None:
        if self._process is not None:
            self._process.stop(number, timeout_s)
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
