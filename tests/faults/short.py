"""cdcd that is refused memory in a thread of its own at SIGUSR1: `python -m tests.faults.short --config FILE`.

The refusal is the system's: the process may map no more than it has, and asks for more.
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
