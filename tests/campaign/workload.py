"""The campaign's load: money that moves between two tables, lists that grow, registers that are overwritten.

In: a DSN, a seed, the weights of the kinds of transactions.  Out: sessions that write until `stop`.
Invariant: each committed transaction leaves the total of the accounts as it was; each element of a list and each
value of a register is written once.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import psycopg2

from tests.campaign.witness import OTHERS
from tests.faults.transfers import aborted, half_a_move, large, move, rekeyed, reopened, savepoints, transfer
from tests.faults.workload import Cursor, Writer


def append(cursor: Cursor, dice: random.Random) -> None:
    """Append an element to a list."""
    cursor.execute(
        "UPDATE lists SET elements = elements || nextval('new_values') || ',' WHERE id = %s",
        (dice.randrange(1, OTHERS + 1),),
    )


def overwrite(cursor: Cursor, dice: random.Random) -> None:
    """Give a register a new value, without reading it."""
    cursor.execute(
        "UPDATE registers SET value = nextval('new_values') WHERE id = %s", (dice.randrange(1, OTHERS + 1),)
    )


BACKLOG_BYTES = 1 << 20
ASK_EVERY_S = 0.3
STEPS = (append, overwrite, move)


def appended(_writer: Writer, cursor: Cursor, dice: random.Random) -> None:
    """Elements for some lists; a list may get several."""
    for _ in range(dice.randrange(1, 6)):
        append(cursor, dice)


def overwritten(_writer: Writer, cursor: Cursor, dice: random.Random) -> None:
    """New values for some registers."""
    for _ in range(dice.randrange(1, 4)):
        overwrite(cursor, dice)


def mixed(_writer: Writer, cursor: Cursor, dice: random.Random) -> None:
    """Changes of all tables."""
    for step in dice.choices(STEPS, k=dice.randrange(2, 12)):
        step(cursor, dice)


def nested(_writer: Writer, cursor: Cursor, dice: random.Random) -> None:
    """Savepoints in savepoints, of which one is rolled back with what is in it."""
    append(cursor, dice)
    for name in ("a", "b", "c")[: dice.randrange(1, 4)]:
        cursor.execute(f"SAVEPOINT {name}")
        dice.choice((append, overwrite))(cursor, dice)
    half_a_move(cursor, dice)
    cursor.execute("ROLLBACK TO SAVEPOINT a")
    overwrite(cursor, dice)


def many(_writer: Writer, cursor: Cursor, dice: random.Random) -> None:
    """All lists and registers change, several times: with the accounts of `large` the longest transaction."""
    for _ in range(dice.randrange(2, 30)):
        cursor.execute("UPDATE lists SET elements = elements || nextval('new_values') || ','")
        cursor.execute("UPDATE registers SET value = nextval('new_values')")


KINDS: dict[str, Callable[..., None]] = {
    kind.__name__: kind
    for kind in (
        transfer, appended, overwritten, mixed, nested, savepoints, rekeyed, reopened, aborted, large, many,
    )
}  # fmt: skip
WEIGHTS = {
    "transfer": 30, "appended": 20, "overwritten": 12, "mixed": 20, "nested": 8, "savepoints": 5, "rekeyed": 6,
    "reopened": 5, "aborted": 4, "large": 3, "many": 1,
}  # fmt: skip
"""The relative frequency of each kind of transaction, which a seed changes."""


class Room:
    """Whether the sessions may write on: the daemon is not too far behind, as of a moment ago."""

    def __init__(self, positions: Callable[[], tuple[int, int | None]]) -> None:
        """`positions`: the WAL position of the server, and the confirmed one."""
        self._positions = positions
        self._lock = threading.Lock()
        self._asked_s, self._has_room = 0.0, True

    def __call__(self) -> bool:
        """Return whether there is room; ask the server only sometimes, and not while it is down."""
        with self._lock:
            if time.monotonic() - self._asked_s > ASK_EVERY_S:
                self._asked_s = time.monotonic()
                with contextlib.suppress(psycopg2.Error):
                    written_lsn, confirmed_lsn = self._positions()
                    self._has_room = confirmed_lsn is None or written_lsn - confirmed_lsn < BACKLOG_BYTES
            return self._has_room


class Session(Writer):
    """One session. `weights`: of the kinds of `KINDS`."""

    def __init__(self, dsn: str, seed: str, weights: Mapping[str, int], pause_s: float, room: Room) -> None:
        super().__init__(dsn, seed, {}, pause_s=pause_s, has_room=room)
        self._kinds: Any = [KINDS[name] for name in weights]
        self._weights = list(weights.values())
