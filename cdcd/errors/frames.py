"""Release the objects that the tracebacks of an error refer to.

In: an error that is stored.  Out: the error, its causes and its contexts, without tracebacks.
Invariant: the walk ends even where errors refer to each other in a cycle. Such a cycle arises when an error is raised
again while an error that it caused is handled.
"""

from __future__ import annotations


def drop_frames(*errors: BaseException | None) -> None:
    """Remove the tracebacks of `errors`, their causes and their contexts."""
    waiting: list[BaseException | None] = [*errors]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            waiting += (one.__cause__, one.__context__)
