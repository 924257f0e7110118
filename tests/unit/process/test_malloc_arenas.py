"""The number of malloc arenas of a process with many threads, as glibc reports it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cdcd.process.malloc_arenas import MAX_ARENAS

PROGRAM = """
import ctypes, sys, threading
from cdcd.process.malloc_arenas import limit_malloc_arenas

if sys.argv[1] == "shared":
    limit_malloc_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
all_there = threading.Barrier(17)

def take():
    libc.malloc(5000)
    all_there.wait()
    all_there.wait()

for _ in range(16):
    threading.Thread(target=take, daemon=True).start()
all_there.wait()
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
all_there.wait()
"""


def arenas(how: str, **environment: str) -> int:
    """Return the number of heaps of a process with sixteen concurrent threads."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC", "GLIBC"))}
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, how],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return found.stdout.count("<heap nr=")


def test_many_threads_share_few_heaps() -> None:
    assert arenas("as glibc has it") > MAX_ARENAS
    assert arenas("shared") == MAX_ARENAS


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_a_configured_number_of_arenas_is_used(name: str) -> None:
    assert arenas("shared", **{name: "3" if name.startswith("MALLOC") else "glibc.malloc.arena_max=3"}) == 3
