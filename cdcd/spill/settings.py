"""The settings of the spill package. Plain values only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SpillSettings:
    """The parent of the spill folder (None: the system's folder for temporary files), and the spill limit."""

    below: Path | None
    disk_bytes: int
