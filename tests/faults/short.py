"""cdcd in which a separate thread runs out of memory at SIGUSR1: `python -m tests.faults.short --config FILE`.

The operating system refuses the memory: the thread limits the address space to its present size and allocates more.
"""

from __future__ import annotations

import resource
import signal
import sys
import threading

from cdcd.cli import main

ASKED_BYTES = 1 << 30


def _ask() -> None:
    with open("/proc/self/statm") as file:
        mapped_bytes = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped_bytes, mapped_bytes))
    bytearray(ASKED_BYTES)


signal.signal(signal.SIGUSR1, lambda *_: threading.Thread(target=_ask).start())

sys.exit(main())
