"""What Spark sends to its tasks, with one clear error where the Python of a task has no cdcd.

In: a function, or an object of a class of cdcd.  Out: the same in a task.
Invariant: Spark's pickle of it refers to no module of cdcd: `unpacked` is sent by its code, and the rest as bytes,
which only `unpacked` reads. Otherwise Spark's own error is that of an import, without the host and what to do.
Must not: refer to other names of cdcd in `unpacked`; pickle a secret.
"""

from __future__ import annotations

import pickle
import socket
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from cdcd.errors import SparkReadError

_HOST, _PYTHON = "(the host of the task)", "(the python of the task)"


def unpacked(packed: bytes, missing: str) -> Any:
    """Return the content. `missing`: the error where this Python has no cdcd, with places for its host and path."""
    try:
        import cdcd  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "cdcd":
            raise
        here = missing.replace(_HOST, socket.gethostname()).replace(_PYTHON, sys.executable)
        raise ModuleNotFoundError(here, name="cdcd") from None
    return pickle.loads(packed)  # noqa: S301 - of Spark's own pickle, which is the source of this code


def for_tasks(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function of one argument for Spark's tasks. It is unpacked once in each task."""
    packed, missing = _packed(function), _missing()
    known: list[Callable[[Any], Any]] = []

    def in_task(argument: Any) -> Any:
        if not known:
            known.append(unpacked(packed, missing))
        return known[0](argument)

    in_task.__annotations__.clear()  # Spark chooses the form of a function by them, where there are any
    return _by_code(in_task)


class SentToTasks:
    """The base of a class whose objects Spark sends to its tasks."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _by_code(unpacked), (_packed(_State(type(self), self.__dict__)), _missing())


class _State:
    """An object of a class that has its own form in a pickle."""

    def __init__(self, of: type, state: dict[str, Any]) -> None:
        self._of, self._state = of, state

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self._of, self._state)


def _restored(of: type, state: dict[str, Any]) -> Any:
    made: Any = object.__new__(of)
    made.__dict__.update(state)
    return made


def _packed(content: object) -> bytes:
    from pyspark import cloudpickle

    packed: bytes = cloudpickle.dumps(content)
    return packed


def _by_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of this module, which Spark's pickle then sends by its code."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return function


@cache
def _missing() -> str:
    return str(
        SparkReadError(
            "the Python of an executor has no package cdcd, so a task cannot run",
            hint="install cdcd with its extra `spark` in the Python of each executor, and set PYSPARK_PYTHON to it",
            host=_HOST,
            python=_PYTHON,
        )
    )
