"""The processes of a run, written to a file, so that a later command can stop them; leftovers are found, too.

In: a run's folder.  Out: `demo.json` in it; `stop` ends the processes in the file and removes the folder.
Invariant: a process is ended only if its start time is the recorded one, or if its working directory is in the run's
folder, which no other process uses.
Must not: end processes by name.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

STATE_FILE = "demo.json"
STOP_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class RunProcess:
    """One process of a run. `started_ticks` distinguishes it from a later process with the same id."""

    name: str
    pid: int
    signal: int
    started_ticks: int


class NotADemo(Exception):
    """The folder is not that of a demo that was left running."""


def describe_process(name: str, pid: int, number: signal.Signals = signal.SIGTERM) -> RunProcess:
    """Describe a running process; `number` is the signal for its orderly end."""
    return RunProcess(name, pid, int(number), _started_ticks(pid) or 0)


def write(folder: Path, processes: Sequence[RunProcess]) -> None:
    """Write the processes of a run to the file, in the order of stopping."""
    content = {"format": 1, "processes": [asdict(process) for process in processes]}
    (folder / STATE_FILE).write_text(json.dumps(content, indent=2) + "\n")


def stop(folder: Path) -> list[str]:
    """Stop the processes in the file, in order, and remove the folder; return the names of those that ran."""
    try:
        content = json.loads((folder / STATE_FILE).read_text())
        processes = [RunProcess(**process) for process in content["processes"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotADemo(f"{folder} is not the folder of a running demo ({type(error).__name__})") from None
    names = [process.name for process in processes if _end(process)]
    end_leftovers(folder)
    shutil.rmtree(folder, ignore_errors=True)
    return names


def end_leftovers(folder: Path) -> None:
    """SIGKILL every process whose working directory is in the run's folder."""
    inside = str(folder.resolve())
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            place = os.readlink(entry / "cwd")
        except OSError:
            continue  # ended meanwhile, or another user's process
        if place == inside or place.startswith(inside + os.sep):
            _send(int(entry.name), signal.SIGKILL)


def _end(process: RunProcess) -> bool:
    if not _is_same(process):
        return False
    _send(process.pid, process.signal)
    deadline_s = time.monotonic() + STOP_DEADLINE_S
    while _is_same(process):
        if time.monotonic() > deadline_s:
            _send(process.pid, signal.SIGKILL)
            break
        time.sleep(0.05)
    return True


def _is_same(process: RunProcess) -> bool:
    return _started_ticks(process.pid) == process.started_ticks


def _started_ticks(pid: int) -> int | None:
    """Return field 22 of /proc/PID/stat; None if the process has ended, also for a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may contain spaces and parentheses
    return None if fields[0] in "ZX" else int(fields[19])


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # the process has ended
