"""Free what an ended session held before the next begins: Kafka clients with their threads, sockets, memory.

In: the error that ended it.  Out: nothing is left of the session but that error, without its tracebacks.
Invariant: what the daemon holds does not depend on how many sessions it has had (fault 35). Tracebacks hold frames,
frames hold the session's parts, and these hold errors: a knot that Python's garbage collector unties only once in a
long while, because it counts objects and not the threads and descriptors behind them.
"""

from __future__ import annotations

import gc

from cdcd.errors.frames import drop_frames
from cdcd.threads import in_thread


async def release_session(error: BaseException | None) -> None:
    """Take the tracebacks off the error and all that it came from, and collect what is knotted.

    In a thread: a Kafka client's end waits for its own threads, and the loop does not wait with it.
    """
    drop_frames(error)
    await in_thread(gc.collect)
