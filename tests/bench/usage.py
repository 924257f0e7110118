"""The resource usage of processes and the machine: CPU and memory, read from /proc.

In: the text of files of /proc, or process ids.  Out: `Cpu`, `Machine`, bytes.
Invariant: parsing is pure; the usage of an ended process is None, never zero.
Must not: walk through all processes: these functions are called many times a second.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
ENDED = "ended threads"


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU seconds of one process or thread, in user and in kernel mode."""

    user_s: float = 0.0
    system_s: float = 0.0

    @property
    def total_s(self) -> float:
        """The sum of both."""
        return self.user_s + self.system_s

    def __add__(self, other: Cpu) -> Cpu:
        return Cpu(self.user_s + other.user_s, self.system_s + other.system_s)

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(self.user_s - other.user_s, self.system_s - other.system_s)


@dataclass(frozen=True, slots=True)
class Machine:
    """CPU seconds of all cores. `interrupts_s` belongs to no process; `stolen_s` went to other virtual machines."""

    processes_s: float
    interrupts_s: float
    stolen_s: float

    def __sub__(self, other: Machine) -> Machine:
        return Machine(
            self.processes_s - other.processes_s,
            self.interrupts_s - other.interrupts_s,
            self.stolen_s - other.stolen_s,
        )


def parse_stat(text: str, ticks_per_s: int = TICKS_PER_S) -> tuple[str, Cpu]:
    """Return name and CPU of /proc/PID/stat (or of a task's). The name may contain any character, also brackets."""
    name, _, rest = text.partition("(")[2].rpartition(")")
    user, system = rest.split()[11:13]
    return name, Cpu(int(user) / ticks_per_s, int(system) / ticks_per_s)


def parse_ended_children(text: str, ticks_per_s: int = TICKS_PER_S) -> Cpu:
    """Return the CPU of the reaped children of a process, from the same file."""
    user, system = text.rpartition(")")[2].split()[13:15]
    return Cpu(int(user) / ticks_per_s, int(system) / ticks_per_s)


def parse_machine(text: str, ticks_per_s: int = TICKS_PER_S) -> Machine:
    """Return the first line of /proc/stat, parsed."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(one) for one in text.split()[1:9])
    return Machine((user + nice + system) / ticks_per_s, (irq + softirq) / ticks_per_s, steal / ticks_per_s)


def parse_peak_memory(text: str) -> int:
    """Return the maximum resident memory in bytes: VmHWM of /proc/PID/status. Raises ValueError without one."""
    for line in text.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no VmHWM: not the status of a running process")


def cpu_of(pid: int) -> Cpu | None:
    """Return the CPU used so far by a process with all its threads, also ended ones."""
    text = _read(f"/proc/{pid}/stat")
    return parse_stat(text)[1] if text else None


def descendants_of(pid: int) -> Cpu:
    """Return the CPU used so far by all processes below one, also ended ones."""
    return sum((with_ended_children_of(child) + descendants_of(child) for child in children_of(pid)), Cpu())


def family_of(pid: int) -> Cpu:
    """Return the CPU used so far by a process and its children, also ended ones.

    A child that ends during the reading may be missing, or be counted twice: the files are read again until no child
    ended in between.
    """
    while True:
        own = _own_and_ended(pid)
        living = [cpu for child in children_of(pid) if (cpu := cpu_of(child)) is not None]
        again = _own_and_ended(pid)
        if again[1] == own[1]:
            return sum(living, own[0] + own[1])


def with_ended_children_of(pid: int) -> Cpu:
    """Return the CPU used so far by a process and its reaped children."""
    own, ended = _own_and_ended(pid)
    return own + ended


def _own_and_ended(pid: int) -> tuple[Cpu, Cpu]:
    text = _read(f"/proc/{pid}/stat")
    return (parse_stat(text)[1], parse_ended_children(text)) if text else (Cpu(), Cpu())


def peak_memory_of(pid: int) -> int | None:
    """Return the maximum resident memory of a process, in bytes."""
    try:
        return parse_peak_memory(_read(f"/proc/{pid}/status"))
    except ValueError:
        return None  # the process has ended


def threads_of(pid: int) -> dict[tuple[int, str], Cpu]:
    """Return the CPU of each living thread by id and name; the main thread's name is `main`."""
    found: dict[tuple[int, str], Cpu] = {}
    for tid in _numbers(f"/proc/{pid}/task"):
        if text := _read(f"/proc/{pid}/task/{tid}/stat"):
            name, cpu = parse_stat(text)
            found[tid, "main" if tid == pid else name] = cpu
    return found


def by_name(
    before: dict[tuple[int, str], Cpu], after: dict[tuple[int, str], Cpu], total_s: float
) -> dict[str, float]:
    """Return the CPU seconds between two measurements, summed over threads of one name. A new thread starts at zero.

    The difference to `total_s`, that of the whole process, is the CPU of threads that ended in between.
    """
    spent: dict[str, float] = defaultdict(float)
    for thread, cpu in after.items():
        spent[thread[1]] += (cpu - before.get(thread, Cpu())).total_s
    spent[ENDED] = total_s - sum(spent.values())
    return {name: round(seconds, 3) for name, seconds in spent.items() if seconds >= 1 / TICKS_PER_S}


def children_of(pid: int) -> list[int]:
    """Return the running child processes of a process."""
    return [
        int(one)
        for tid in _numbers(f"/proc/{pid}/task")
        for one in _read(f"/proc/{pid}/task/{tid}/children").split()
    ]


def processes_below(pid: int) -> Iterator[int]:
    """Yield the running processes below a process: its children, and theirs."""
    for child in children_of(pid):
        yield child
        yield from processes_below(child)


def words_of(pid: int) -> list[str]:
    """Return the words of a process's command line, none of a process that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def machine() -> Machine:
    """Return the CPU used so far by the whole machine."""
    return parse_machine(_read("/proc/stat").partition("\n")[0])


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _numbers(folder: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder)]
    except (FileNotFoundError, ProcessLookupError):
        return []
