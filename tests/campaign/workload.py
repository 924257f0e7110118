"""The campaign's load: money that moves between two tables, lists that grow, registers that are overwritten.

In: a DSN, a seed, the weights of the kinds of transactions.  Out: sessions that write until `stop`.
Invariant: each committed transaction leaves the total of the accounts as it was; each element of a list and each
value of a register is written once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

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


class Session(Writer):
    """One session. `weights`: of the kinds of `KINDS`."""

    def __init__(self, dsn: str, seed: str, weights: Mapping[str, int], pause_s: float) -> None:
        super().__init__(dsn, seed, {}, pause_s=pause_s)
        self._kinds: Any = [KINDS[name] for name in weights]
        self._weights = list(weights.values())
