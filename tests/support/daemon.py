"""Run cdcd as its users do: a process with a configuration file, observed through its admin port.

In: a database, a broker, a registry.  Out: a running process, its exit status, its log.
Invariant: every wait has a deadline and a condition; a process that ends early fails the wait, which shows its log.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import yaml

from cdcd.demo.stack.ports import free_port
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.lsn import parse_lsn
from tests.support.stack import CONFIRMED_POSITION, WAL_POSITION, written_position
from tests.support.waiting import FIRST_PAUSE_S, eventually, next_pause

DEADLINE_S = 120.0
LASTING = frozenset({"streaming", "halted"})
"""States that last until the test does something."""

Spawn = Callable[[list[str], IO[bytes], dict[str, str]], Any]
Run = Callable[[list[str], Path, float], subprocess.CompletedProcess[str]]


def as_process(command: list[str], log: IO[bytes], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start the command as a child process."""
    return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def run_as_process(command: list[str], _folder: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run the command as a child process, without cdcd's environment variables."""
    environment = environment_without_cdcd()
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, env=environment, check=False
    )


def _answer(url: str, within_s: float) -> Any:
    """Return the response, also one with an error status."""
    try:
        return urllib.request.urlopen(url, timeout=within_s)
    except urllib.error.HTTPError as error:
        return error


STREAM_ONLY = {"rewritten_tables": "stream_only"}
"""The section `snapshot` of a test that counts records around an ALTER TABLE that changes rows: none are copied."""


class Daemon:
    """One configuration; `start` may be called again after the process has ended."""

    def __init__(
        self, folder: Path, name: str, *, dsn: str, bootstrap: str, registry_url: str, **over: Any
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.name = name
        self.slot = f"cdcd_{name}"
        self.port = free_port()
        self.config: dict[str, Any] = {
            "name": name,
            "source": {"dsn": dsn},
            "sink": {"bootstrap_servers": bootstrap, "topics": {"partitions": 2, "replication_factor": 1}},
            "registry": {"url": registry_url},
            "admin": {"port": self.port},
            "shutdown_timeout_ms": 20000,
        }
        merge(self.config, over)
        self.entry: tuple[str, ...] = ("-m", "cdcd")
        """Arguments of the Python interpreter."""
        self.environment: dict[str, str] = {}
        """Variables in addition to those of this process."""
        self.spawn: Spawn = as_process
        self.run_command: Run = run_as_process
        self.process: subprocess.Popen[bytes] | None = None
        self.log_path = folder / "cdcd.log"

    @property
    def config_path(self) -> Path:
        """Write the configuration file; return its path."""
        path = self.folder / "cdcd.yaml"
        path.write_text(yaml.safe_dump(self.config))
        return path

    def start(self) -> Daemon:
        """Start the daemon's process."""
        log = self.log_path.open("ab")
        command = [sys.executable, *self.entry, "--config", str(self.config_path)]
        self.process = self.spawn(command, log, {**os.environ, **self.environment})
        log.close()
        return self

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of cdcd with the daemon's configuration and wait until it ends."""
        command = [sys.executable, "-m", "cdcd", words[0], "--config", str(self.config_path), *words[1:]]
        return self.run_command(command, self.folder, DEADLINE_S)

    def kill(self) -> None:
        """Send SIGKILL and wait for the end of the process."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, deadline_s: float = DEADLINE_S) -> int:
        """Send SIGTERM; return the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(deadline_s)

    def reload(self) -> None:
        """Send SIGHUP: the daemon checks everything again."""
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()

    # --- status and log ---

    def get(self, path: str, within_s: float = 5) -> tuple[int, str]:
        """Return status code and body of a page; (0, "") without a complete response."""
        try:
            with _answer(f"http://127.0.0.1:{self.port}{path}", within_s) as answer:
                is_cut_off = (
                    answer.length is None and not answer.chunked
                )  # the connection ended in the headers
                return (0, "") if is_cut_off else (answer.status, answer.read().decode())
        except (OSError, http.client.HTTPException):
            return 0, ""

    def waits_for(self, kind: str) -> dict[str, Any] | None:
        """Return the entry of /status about a wait of this kind, None without such a wait."""
        found = [wait for wait in self.status().get("waiting_for", []) if wait["kind"] == kind]
        return found[0] if found else None

    def status(self, within_s: float = 5) -> dict[str, Any]:
        """Return the status page; empty when the daemon does not answer."""
        code, body = self.get("/status", within_s)
        return json.loads(body) if code == 200 else {}

    def received_lsn(self) -> int:
        """Return received_lsn of the status page; 0 while it is unknown."""
        return parse_lsn(self.status().get("received_lsn") or "0/0")

    def log(self) -> str:
        """Return the text of the log so far."""
        return self.log_path.read_text() if self.log_path.exists() else ""

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the log lines of one event."""
        return [line for line in self.lines() if line["event"] == name]

    def lines(self) -> list[dict[str, Any]]:
        """Return each log line that is JSON."""
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    def wait_state(self, *states: str, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        """Wait until the pipeline is in one of these states; states that may end soon are asked for more often."""
        begun_s = time.monotonic()
        while time.monotonic() < begun_s + deadline_s:
            page = self.status()
            if page.get("state") in states and (page["state"] != "halted" or self._has_reported_halt()):
                return page
            self.assert_alive()
            time.sleep(next_pause(begun_s) if LASTING.issuperset(states) else FIRST_PAUSE_S)
        raise AssertionError(f"state never in {states}: {self.status()}:\n{self.log()[-4000:]}")

    def assert_alive(self) -> None:
        """Fail, with the end of the log, if the process has ended."""
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"cdcd ended with {self.process.returncode}:\n{self.log()[-4000:]}")

    def _has_reported_halt(self) -> bool:
        """Return whether the log already has the halt; its own thread writes it later than the status page."""
        known = [
            line["event"] for line in self.lines() if line["event"] in ("started", "streaming", "halted")
        ]
        return known[-1:] == ["halted"]

    def wait_exit(self, deadline_s: float = DEADLINE_S) -> int:
        """Wait until the process ends by itself; return its exit status."""
        assert self.process is not None
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired as error:
            pages = self.get("/status"), self.get("/snapshots")
            raise AssertionError(f"{error}: {pages}:\n{self.log()[-4000:]}") from None


def await_event(daemon: Daemon, event: str, **fields: Any) -> None:
    """Wait until the log has an event with these fields."""

    def is_there() -> bool:
        return any(fields.items() <= line.items() for line in daemon.events(event))

    eventually(is_there, f"{event} {fields}")


def await_received(server: PostgresServer, daemon: Daemon) -> None:
    """Wait until the daemon has received all WAL written so far."""
    end_lsn = written_position(server)
    eventually(lambda: daemon.received_lsn() >= end_lsn, "all WAL is received")


def await_confirmed(server: PostgresServer, daemon: Daemon, within_s: float = 120) -> None:
    """Wait until every transaction committed so far is confirmed to the server, and so is durable in Kafka."""
    with server.session() as execute:
        ((end_lsn,),) = execute(WAL_POSITION)

        def is_confirmed() -> bool:
            return any(
                lsn is not None and lsn >= end_lsn for (lsn,) in execute(CONFIRMED_POSITION, daemon.slot)
            )

        try:
            eventually(is_confirmed, "every committed transaction is confirmed", within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{daemon.log()[-4000:]}") from None


def merge(under: dict[str, Any], over: dict[str, Any]) -> None:
    """Merge `over` into `under`, also in nested mappings."""
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(under.get(key), dict):
            merge(under[key], value)
        else:
            under[key] = value


def memory_high_water_bytes(pid: int) -> int:
    """Return the peak resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no VmHWM of {pid}")


def environment_without_cdcd() -> dict[str, str]:
    """Return the environment without cdcd's own variables."""
    return {key: value for key, value in os.environ.items() if not key.startswith("CDCD_")}
