"""Memory that is refused where nobody can take the error, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from cdcd.errors import EXIT_MEMORY

DEADLINE_S = 20
PROGRAM = """
import asyncio, contextlib, os, threading
from cdcd.runtime.memory import end_where_memory_is_short

async def main():
    end_where_memory_is_short()
    def short():
        raise MemoryError
    threading.Thread(target=short).start()
    await asyncio.Event().wait()

os.set_blocking(2, False)
with contextlib.suppress(BlockingIOError):
    while True:
        os.write(2, b"x" * 512)
os.set_blocking(2, True)
asyncio.run(main())
"""


def test_the_process_ends_also_when_nobody_reads_its_last_words() -> None:
    """Faults 17 and 32 at once."""
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen([sys.executable, "-c", PROGRAM], stderr=writing)
        try:
            assert process.wait(DEADLINE_S) == EXIT_MEMORY
        finally:
            process.kill()
    finally:
        os.close(reading)
        os.close(writing)
