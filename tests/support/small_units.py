"""cdcd with small units of a snapshot: `python -m tests.support.small_units ...`, with cdcd's own arguments.

A table of some megabytes is then divided as one of gigabytes is.
"""

from __future__ import annotations

import sys
from typing import Any

from cdcd.cli import main
from cdcd.snapshot.table import SnapshotPlan, SnapshotReader

UNIT_PAGES = 16


def divide_small() -> None:
    """Let each unit have `UNIT_PAGES` blocks."""
    units = SnapshotReader.units

    def small(self: SnapshotReader, tables: Any, rank: Any = None) -> SnapshotPlan:
        return units(self, tables, rank, UNIT_PAGES)

    SnapshotReader.units = small  # type: ignore[assignment,method-assign]


if __name__ == "__main__":
    divide_small()
    sys.exit(main())
