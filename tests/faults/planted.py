"""cdcd with a planted bug that the oracle has to find in a real process: `python -m tests.faults.planted BUG ...`.

In: the bug's name, then cdcd's own arguments.  Out: cdcd, with one function replaced.
Must not: need any support in cdcd itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from cdcd.ack.group import Chunk
from cdcd.cli import main
from cdcd.monitoring.lag import LagTracker
from cdcd.pipeline import pump
from cdcd.pipeline.writer import Writer


def confirmed_early() -> None:
    """Received transactions are confirmed before Kafka has them."""
    add = Writer.add

    async def add_and_confirm(self: Writer, chunk: Chunk) -> None:
        if chunk.commit_position is not None and chunk.commit_position.phase == "streaming":
            self._confirm(chunk.commit_position.end_lsn)
        await add(self, chunk)

    Writer.add = add_and_confirm  # type: ignore[method-assign]


def truncate_lost() -> None:
    """A TRUNCATE leaves no event."""
    pump.encode_truncate = lambda *args, **options: []  # type: ignore[attr-defined]


def row_lost() -> None:
    """The last record of every tenth row batch is lost."""
    encode = pump.encode_batch  # type: ignore[attr-defined]
    batches = [0]

    def encode_all_but_one(*args: Any) -> list[Any]:
        records = encode(*args)
        batches[0] += 1
        return records[:-1] if batches[0] % 10 == 0 else records

    pump.encode_batch = encode_all_but_one  # type: ignore[attr-defined]


def lag_never_reported() -> None:
    """Received changes that are not durable do not count in the lag."""
    LagTracker.began = lambda *args: None  # type: ignore[assignment,method-assign]


BUGS: dict[str, tuple[Callable[[], None], str]] = {
    "confirmed_early": (confirmed_early, "i"),
    "truncate_lost": (truncate_lost, "a"),
    "row_lost": (row_lost, "a"),
    "lag_never_reported": (lag_never_reported, "k"),
}
"""Each bug with the letter of the assertion that has to find it."""

if __name__ == "__main__":
    BUGS[sys.argv.pop(1)][0]()
    sys.exit(main())
