"""A MemoryError where no code can handle it ends the process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cdcd.errors import EXIT_MEMORY

DEADLINE_S = 20
PROGRAM = """
import asyncio, contextlib, os, sys, threading
from cdcd.process.memory import end_where_memory_is_short

class Short:
    def __init__(self, *_):
        raise MemoryError

class ShortAtItsEnd:
    def __del__(self):
        raise MemoryError

PLACES = {
    "thread": lambda: threading.Thread(target=Short).start(),
    "callback of the loop": lambda: asyncio.get_running_loop().call_soon(Short),
    "where nothing can be raised": ShortAtItsEnd,
}

async def main():
    end_where_memory_is_short()
    PLACES[sys.argv[1]]()
    await asyncio.Event().wait()

os.set_blocking(2, False)
with contextlib.suppress(BlockingIOError):
    while True:
        os.write(2, b"x" * 512)
os.set_blocking(2, True)
asyncio.run(main())
"""


@pytest.mark.parametrize("place", ["thread", "callback of the loop", "where nothing can be raised"])
def test_the_process_ends_also_when_nobody_reads_its_last_words(place: str) -> None:
    """Faults 17 and 32 together."""
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, place], stderr=writing)
        try:
            assert process.wait(DEADLINE_S) == EXIT_MEMORY
        finally:
            process.kill()
    finally:
        os.close(reading)
        os.close(writing)
