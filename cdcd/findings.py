"""Finding: one line of a check made before a start, on either side of the daemon.

Comes in: what a room found out about a server, a topic, a slot or a setting.
Goes out: a plain value; `cdcd check` prints all of them at once and picks its exit code from the levels.
Invariant: a finding that is not "ok" always says what would mend it.
Must not: hold row values, passwords, or anything of a client library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "Level"]

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact of a check: how bad, about what, what was seen, and what mends it (empty when ok)."""

    level: Level
    subject: str
    message: str
    mend: str = ""

    def __post_init__(self) -> None:
        """Refuse a complaint without a remedy: an operator at night needs the next step."""
        if self.level != "ok" and not self.mend:
            raise ValueError(f"finding {self.subject!r} is {self.level} but says no mend")
