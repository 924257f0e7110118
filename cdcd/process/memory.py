"""What ends the process when memory is refused where nobody can take the error: in a thread, in a callback.

In: errors that Python would only print.  Out: the end of the process with EXIT_MEMORY, when it is memory.
Invariant: no call is waited for whose thread has died for want of memory: a daemon that stands still and says nothing
is worse than one that begins again.
What not even a hook can run in is left to the liveness probe, which is not answered then.
Must not: need memory itself, as far as that can be had.
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
"""Made while there is memory."""
_descriptor = 2


def last_words_to(descriptor: int) -> None:
    """Say where the log goes: what stderr is by then may lead nowhere any more."""
    global _descriptor
    _descriptor = descriptor


def end_where_memory_is_short() -> None:
    """Take the hooks of the process and of the running loop."""
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
    """End the process where an error of this kind is one of memory."""
    if kind is not None and issubclass(kind, MemoryError):
        try:
            os.set_blocking(_descriptor, False)  # nobody may read them
            os.write(_descriptor, _LAST_WORDS)
        finally:
            os._exit(EXIT_MEMORY)
