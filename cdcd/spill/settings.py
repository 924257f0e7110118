"""What the spill room has to be told. Plain values only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SpillSettings:
    """Below which folder (None: the system's for temporary files) cdcd makes its own, and the most it may hold."""

    below: Path | None
    disk_bytes: int
