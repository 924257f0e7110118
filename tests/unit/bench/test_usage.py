"""CPU and memory figures from /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.bench import usage
from tests.bench.usage import Cpu, Machine

STAT = "4711 (a) name (x) S 1 4711 4711 0 -1 4194560 100 0 0 0 250 50 30 20 20 0 8 0 100 1000 200 1844"


def test_a_name_with_brackets_and_blanks_ends_at_the_last_bracket() -> None:
    assert usage.parse_stat(STAT, 100) == ("a) name (x", Cpu(2.5, 0.5))
    assert usage.parse_ended_children(STAT, 100) == Cpu(0.3, 0.2)


def test_the_machine_counts_processes_interrupts_and_what_is_stolen_apart() -> None:
    line = "cpu  1000 100 500 90000 700 20 30 40 5 6"
    assert usage.parse_machine(line, 100) == Machine(processes_s=16.0, interrupts_s=0.5, stolen_s=0.4)


def test_the_peak_of_memory_is_in_bytes() -> None:
    assert usage.parse_peak_memory("Name:\tx\nVmPeak:\t  99 kB\nVmHWM:\t   12 kB\n") == 12 * 1024
    with pytest.raises(ValueError, match="VmHWM"):
        usage.parse_peak_memory("Name:\tkthreadd\n")


def test_threads_of_one_name_are_summed_and_a_new_one_began_at_nothing() -> None:
    before = {(1, "main"): Cpu(1.0, 1.0), (2, "rdk"): Cpu(0.5, 0.0)}
    after = {
        (1, "main"): Cpu(1.5, 1.0),
        (2, "rdk"): Cpu(0.5, 0.25),
        (3, "rdk"): Cpu(1.0, 0.0),
        (4, "idle"): Cpu(),
    }
    assert usage.by_name(before, after, 1.75) == {"main": 0.5, "rdk": 1.25}
    assert usage.by_name(before, after, 2.0) == {"main": 0.5, "rdk": 1.25, "ended threads": 0.25}


def test_a_process_is_read_while_it_lives_and_its_children_count_after_their_end() -> None:
    assert usage.cpu_of(os.getpid()) is not None
    assert (usage.peak_memory_of(os.getpid()) or 0) > 1 << 20
    assert "main" in {name for _, name in usage.threads_of(os.getpid())}
    before = usage.family_of(os.getpid())
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        assert busy.pid in usage.children_of(os.getpid())
        while (usage.cpu_of(busy.pid) or Cpu()).total_s < 0.25:  # more than asserted below
            time.sleep(0.01)
    finally:
        busy.kill()
        busy.wait()
    assert usage.cpu_of(busy.pid) is None
    assert (usage.family_of(os.getpid()) - before).total_s >= 0.2


def test_a_child_that_ends_while_it_is_looked_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its CPU time, a full core of a walsender, would count as that of other processes."""
    before = usage.family_of(os.getpid())
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    children_of = usage.children_of

    def ends_now(pid: int) -> list[int]:
        busy.kill()
        busy.wait()
        return children_of(pid)

    while (usage.cpu_of(busy.pid) or Cpu()).total_s < 0.25:  # more than asserted below
        time.sleep(0.01)
    monkeypatch.setattr(usage, "children_of", ends_now)
    assert (usage.family_of(os.getpid()) - before).total_s >= 0.2
    assert usage.with_ended_children_of(os.getpid()).total_s >= 0.2
