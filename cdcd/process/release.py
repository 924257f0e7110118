"""Free the resources of an ended session before the next begins: Kafka clients with their threads, sockets, memory.

In: the error that ended the session.  Out: nothing is left of the session except that error, without its tracebacks.
Invariant: the daemon's resources do not depend on the number of its sessions (fault 35). Tracebacks refer to frames,
frames to the session's parts, and these to errors: a cycle that Python's garbage collector would free late, because
it counts objects and not the threads and descriptors behind them.
"""

from __future__ import annotations

import gc

from cdcd.errors.frames import drop_frames
from cdcd.threads import in_thread


async def release_session(error: BaseException | None) -> None:
    """Remove the tracebacks from the error and its causes, and collect the cycles.

    The collection runs in a thread: the end of a Kafka client waits for its own threads, and must not block the loop.
    """
    drop_frames(error)
    await in_thread(gc.collect)
