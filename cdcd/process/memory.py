"""End the process if memory is refused where no code can catch the error: in a thread, in a callback.

In: errors that Python would only print.  Out: the end of the process with EXIT_MEMORY, if the error is MemoryError.
Invariant: no call waits for a thread that has died without memory: a daemon that hangs silently is worse than one
that restarts. If not even a hook can run, the liveness probe fails.
Must not: need memory itself, as far as that is possible.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from typing import Any

from cdcd.errors import EXIT_MEMORY, OutOfMemory

_SAID = str(OutOfMemory("the system refuses memory; after a restart cdcd continues from the stored position"))
_ENDED = {
    "event": "exiting",
    "level": "error",
    "logger": "cdcd.memory",
    "code": OutOfMemory.code,
    "error": _SAID,
}
_LAST_WORDS = json.dumps(_ENDED).encode() + b"\n"
"""Encoded while there is memory."""
_descriptor = 2


def last_words_to(descriptor: int) -> None:
    """Set the descriptor of the log: stderr may be redirected later."""
    global _descriptor
    _descriptor = descriptor


def end_where_memory_is_short() -> None:
    """Install the hooks of the process and of the running loop."""
    unraisable, in_thread = sys.unraisablehook, threading.excepthook

    def on_unraisable(found: Any) -> None:
        end_for(found.exc_type)
        unraisable(found)

    def on_thread(found: threading.ExceptHookArgs) -> None:
        end_for(found.exc_type)
        in_thread(found)

    def on_loop(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        end_for(type(context.get("exception")))
        loop.default_exception_handler(context)

    sys.unraisablehook, threading.excepthook = on_unraisable, on_thread
    asyncio.get_running_loop().set_exception_handler(on_loop)


def end_for(kind: type | None) -> None:
    """End the process if an error of this class is a MemoryError."""
    if kind is not None and issubclass(kind, MemoryError):
        try:
            os.set_blocking(_descriptor, False)  # the reader of the log may have stopped
            os.write(_descriptor, _LAST_WORDS)
        finally:
            os._exit(EXIT_MEMORY)
