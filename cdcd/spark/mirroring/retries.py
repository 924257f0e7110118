"""Which errors a mirror tries again after, and when.

In: the error that ended a session of the mirror.  Out: the pause before the next session, or the error.
Invariant: an error is tried again after only if it may heal without the mirror's user: its class says so
(`CdcdError.retry`), or Spark has lost a worker. After `retry_s` without progress each error ends the mirror.
Must not: open a session.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable, Iterator

from cdcd.errors import CdcdError, RegistryRefused, Retry
from cdcd.spark.session import reason_of

__all__ = ["LOGIN", "LOST_WORKER", "OTHER", "Retries", "code_of", "heals"]

FIRST_PAUSE_S = 1.0
MOST_PAUSE_S = 30.0
LOST_WORKER = "SPARK-WORKER-LOST"
"""The reason if Spark has lost an executor or a worker of Python."""
OTHER = "OTHER"
_LOST = re.compile(
    r"ExecutorLostFailure|Python worker exited unexpectedly|Python worker failed to connect back|FetchFailed|"
    r"worker lost|executor lost|Could not find block|Failed to get block",
    re.IGNORECASE,
)
_CODE = re.compile(r"CDCD-[A-Z-]*[A-Z]")
LOGIN = (401, 403)
"""The statuses with which a registry refuses a login, or a right."""
log = logging.getLogger("cdcd.spark.mirror")


def code_of(error: Exception) -> str:
    """Return the code of an error, also of one of cdcd's that a task of Spark has raised."""
    if isinstance(error, CdcdError):
        return error.code
    text = str(error)
    found = _CODE.match(reason_of(error))
    if found is not None and found[0] in _classes():
        return found[0]
    return LOST_WORKER if _LOST.search(text) else OTHER


def heals(error: Exception) -> bool:
    """Return whether an error may heal while the mirror runs."""
    if isinstance(error, RegistryRefused) and error.context.get("status") in LOGIN:
        return True  # the next session reads the credentials again
    code = code_of(error)
    if code == LOST_WORKER:
        return True
    kind = _classes().get(code)
    return kind is not None and kind.retry in (Retry.AUTO, Retry.LIMITED)


def _classes() -> dict[str, type[CdcdError]]:
    return {one.code: one for one in _below(CdcdError)}


def _below(kind: type[CdcdError]) -> Iterator[type[CdcdError]]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


class Retries:
    """The pauses of one mirror. `retry_s`: how long it tries again without progress, 0: never."""

    def __init__(self, retry_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._retry_s, self._clock = retry_s, clock
        self._failing_since_s: float | None = None
        self._pause_s = FIRST_PAUSE_S

    def advanced(self) -> None:
        """Note progress: a batch is visible, or the mirror has everything."""
        if self._failing_since_s is not None:
            log.info("the mirror continues after %.0f s", self._clock() - self._failing_since_s)
        self._failing_since_s, self._pause_s = None, FIRST_PAUSE_S

    def pause_after(self, error: Exception, *, may_heal: bool | None = None) -> float:
        """Return the pause before the next session; raise the error if there shall be none.

        `may_heal`: overrides `heals`.
        """
        if not (heals(error) if may_heal is None else may_heal) or self._retry_s <= 0:
            raise error
        now_s = self._clock()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        left_s = self._failing_since_s + self._retry_s - now_s
        if left_s <= 0:
            log.error("the mirror ends: no progress for %.0f s", self._retry_s)
            raise error
        pause_s = min(self._pause_s * random.uniform(0.8, 1.2), left_s)  # noqa: S311 - no secret
        self._pause_s = min(self._pause_s * 2, MOST_PAUSE_S)
        log.warning(
            "the mirror tries again in %.1f s, for %.0f s more at most: %s", pause_s, left_s, reason_of(error)
        )
        return pause_s
