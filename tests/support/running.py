"""The threads of this process that one part has started. Those of other tests' clients come and go meanwhile."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

from cdcd import threads


def started_in_thread() -> set[int]:
    """Return the identifiers of the threads that run a call of `start_in_thread`."""
    return {ident for ident, frame in sys._current_frames().items() if _first_file(frame) == threads.__file__}


def _first_file(frame: FrameType) -> str:
    while (caller := frame.f_back) is not None:
        frame = caller
    return frame.f_code.co_filename


def of_librdkafka() -> set[str]:
    """Return the identifiers of the threads of all Kafka clients."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text()
        except OSError:  # it has ended
            continue
        if name.startswith("rdk:"):
            found.add(task.name)
    return found
