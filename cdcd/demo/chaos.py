"""Repeated faults for `cdcd demo --chaos`: the seed determines kind and time of each fault.

In: the seconds since the start of the workload.  Out: faults of the processes of a `World`, counted by kind.
Invariant: each fault is one that cdcd promises to survive: cdcd and the mirror are killed and restarted, cdcd is
stopped and continued (SIGSTOP, SIGCONT), the server ends its walsender. `end` always continues a stopped process.
Must not: change the servers' data, or wait.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from random import Random

from cdcd.demo.world import DATABASE, SLOT, World

BETWEEN_S = (0.5, 4.0)
FROZEN_S = (0.5, 5.0)
FIRST_S = 3.0
MIRROR_EVERY_S = 25.0
"""A Spark job takes many seconds to start, so more frequent kills would prevent any progress."""

_END_WALSENDER = """
    SELECT count(pg_terminate_backend(active_pid)) FROM pg_replication_slots WHERE slot_name = %s AND active
"""


class Chaos:
    """The generator of faults. `strike` is called often and usually does nothing."""

    def __init__(self, world: World, seed: int, say: Callable[[str], None]) -> None:
        self._world = world
        self._random = Random(f"cdcd demo {seed} chaos")  # noqa: S311 - text seeds are the same in every process
        self._say = say
        self._next_s = FIRST_S
        self._mirror_s = MIRROR_EVERY_S / 2
        self._wake_s: float | None = None
        self.struck: Counter[str] = Counter()

    def strike(self, elapsed_s: float) -> bool:
        """Cause the faults that are due; return whether cdcd was restarted."""
        if self._wake_s is not None:
            if elapsed_s >= self._wake_s:
                self._wake()
            return False
        if elapsed_s < self._next_s:
            return False
        self._next_s = elapsed_s + self._random.uniform(*BETWEEN_S)
        if elapsed_s >= self._mirror_s:
            self._mirror_s = elapsed_s + MIRROR_EVERY_S
            self._kill_mirror()
            return False
        strike = self._random.choices(
            (self._kill_cdcd, self._end_walsender, self._freeze_cdcd), weights=(5, 3, 2)
        )[0]
        strike(elapsed_s)
        return strike == self._kill_cdcd

    def end(self) -> None:
        """Cause no more faults, and continue a stopped process."""
        if self._wake_s is not None:
            self._wake()

    def _kill_cdcd(self, _elapsed_s: float) -> None:
        self._world.kill_cdcd()
        self._world.start_cdcd()
        self._count("cdcd was killed (SIGKILL)", "and starts again")

    def _end_walsender(self, _elapsed_s: float) -> None:
        [(ended,)] = self._world.postgres.execute(_END_WALSENDER, SLOT, dbname=DATABASE)
        if ended:  # there is no walsender while cdcd starts
            self._count("cdcd's walsender was ended", "by PostgreSQL")

    def _freeze_cdcd(self, elapsed_s: float) -> None:
        assert self._world.cdcd is not None
        seconds = self._random.uniform(*FROZEN_S)
        self._world.cdcd.send(signal.SIGSTOP)
        self._wake_s = elapsed_s + seconds
        self._count("cdcd was frozen (SIGSTOP)", f"for {seconds:.1f} s")

    def _wake(self) -> None:
        self._wake_s = None
        assert self._world.cdcd is not None
        self._world.cdcd.send(signal.SIGCONT)

    def _kill_mirror(self) -> None:
        self._world.kill_mirror()
        self._world.start_mirror()
        self._count("the mirror was killed (SIGKILL)", "and starts again")

    def _count(self, what: str, how: str) -> None:
        self.struck[what] += 1
        self._say(f"{what} {how}")
