"""Let go what the tracebacks of an error hold.

In: an error that is kept.  Out: it and all that it came from, without tracebacks.
Invariant: ends also where errors lead to each other in a ring, as one that is raised again while another that came
from it is handled does.
"""

from __future__ import annotations


def drop_frames(*errors: BaseException | None) -> None:
    """Take the tracebacks off `errors`, their causes and their contexts."""
    waiting: list[BaseException | None] = [*errors]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            waiting += (one.__cause__, one.__context__)
