"""What processes and the machine have used: CPU and memory, read from /proc.

In: the text of files of /proc, or process ids.  Out: `Cpu`, `Machine`, bytes.
Invariant: parsing is pure; a process that has ended is None, never zero.
Must not: walk through all processes: this is called many times a second.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
ENDED = "ended threads"


@dataclass(frozen=True, slots=True)
class Cpu:
    """Seconds of one process or thread, in its own code and in the kernel's."""

    user_s: float = 0.0
    system_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Both together."""
        return self.user_s + self.system_s

    def __add__(self, other: Cpu) -> Cpu:
        return Cpu(self.user_s + other.user_s, self.system_s + other.system_s)

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(self.user_s - other.user_s, self.system_s - other.system_s)


@dataclass(frozen=True, slots=True)
class Machine:
    """Seconds of all cores. `interrupts_s` belongs to no process; `stolen_s` went to other machines."""

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
    """Name and CPU of /proc/PID/stat (or of a task's). The name may hold anything, brackets too."""
    name, _, rest = text.partition("(")[2].rpartition(")")
    user, system = rest.split()[11:13]
    return name, Cpu(int(user) / ticks_per_s, int(system) / ticks_per_s)


def parse_ended_children(text: str, ticks_per_s: int = TICKS_PER_S) -> Cpu:
    """What the children that a process has waited for have used: from the same file."""
    user, system = text.rpartition(")")[2].split()[13:15]
    return Cpu(int(user) / ticks_per_s, int(system) / ticks_per_s)


def parse_machine(text: str, ticks_per_s: int = TICKS_PER_S) -> Machine:
    """The first line of /proc/stat."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(one) for one in text.split()[1:9])
    return Machine((user + nice + system) / ticks_per_s, (irq + softirq) / ticks_per_s, steal / ticks_per_s)


def parse_peak_memory(text: str) -> int:
    """The most memory that was resident, in bytes: VmHWM of /proc/PID/status. Raises ValueError without one."""
    for line in text.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no VmHWM: not the status of a running process")


def cpu_of(pid: int) -> Cpu | None:
    """What a process with all its threads, also ended ones, has used so far."""
    text = _read(f"/proc/{pid}/stat")
    return parse_stat(text)[1] if text else None


def family_of(pid: int) -> Cpu:
    """What a process and its children, also ended ones, have used so far.

    A child that ends meanwhile is neither among the living nor yet among the ended, or among both: so it is looked
    again until none has ended in between.
    """
    while True:
        own = _own_and_ended(pid)
        living = [cpu for child in children_of(pid) if (cpu := cpu_of(child)) is not None]
        again = _own_and_ended(pid)
        if again[1] == own[1]:
            return sum(living, own[0] + own[1])


def with_ended_children_of(pid: int) -> Cpu:
    """What a process and those of its children that it has waited for have used so far."""
    own, ended = _own_and_ended(pid)
    return own + ended


def _own_and_ended(pid: int) -> tuple[Cpu, Cpu]:
    text = _read(f"/proc/{pid}/stat")
    return (parse_stat(text)[1], parse_ended_children(text)) if text else (Cpu(), Cpu())


def peak_memory_of(pid: int) -> int | None:
    """The most memory that a process has had resident, in bytes."""
    try:
        return parse_peak_memory(_read(f"/proc/{pid}/status"))
    except ValueError:
        return None  # it has ended


def threads_of(pid: int) -> dict[tuple[int, str], Cpu]:
    """CPU of each living thread by id and name; the main one is called so."""
    found: dict[tuple[int, str], Cpu] = {}
    for tid in _numbers(f"/proc/{pid}/task"):
        if text := _read(f"/proc/{pid}/task/{tid}/stat"):
            name, cpu = parse_stat(text)
            found[tid, "main" if tid == pid else name] = cpu
    return found


def by_name(
    before: dict[tuple[int, str], Cpu], after: dict[tuple[int, str], Cpu], total_s: float
) -> dict[str, float]:
    """CPU seconds between two looks, summed over threads of one name. One that is new began at nothing.

    What is missing from `total_s`, the whole process's, threads have used that ended in between.
    """
    spent: dict[str, float] = defaultdict(float)
    for thread, cpu in after.items():
        spent[thread[1]] += (cpu - before.get(thread, Cpu())).total_s
    spent[ENDED] = total_s - sum(spent.values())
    return {name: round(seconds, 3) for name, seconds in spent.items() if seconds >= 1 / TICKS_PER_S}


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and that still run."""
    return [
        int(one)
        for tid in _numbers(f"/proc/{pid}/task")
        for one in _read(f"/proc/{pid}/task/{tid}/children").split()
    ]


def machine() -> Machine:
    """What the whole machine has used so far."""
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
