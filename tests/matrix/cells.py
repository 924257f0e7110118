"""The options that each major of PostgreSQL supports, and the combinations that run together.

In: a major.  Out: `Cell`s: one configuration of cdcd each.
Invariant: the rules are those of PostgreSQL's documentation, not those of cdcd.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MAJORS = (12, 13, 14, 15, 16, 17, 18)
VERSIONS = {
    12: (1,),
    13: (1,),
    14: (1, 2),
    15: (1, 2, 3),
    16: (1, 2, 3, 4),
    17: (1, 2, 3, 4),
    18: (1, 2, 3, 4),
}
MODES = {1: ("off",), 2: ("off", "on"), 3: ("off", "on"), 4: ("off", "on", "parallel")}


@dataclass(frozen=True)
class Cell:
    """The options that cdcd requests from a server. `via_root`: partitions are published as their root."""

    version: int
    streaming: str
    binary: bool
    messages: bool
    two_phase: bool
    origin: str
    via_root: bool

    @property
    def protocol(self) -> dict[str, Any]:
        """The mapping `source.protocol` of the configuration."""
        return {
            "version": self.version,
            "streaming": self.streaming,
            "binary": self.binary,
            "messages": self.messages,
            "two_phase": self.two_phase,
            "origin": self.origin,
        }

    def __str__(self) -> str:
        parts = [f"version {self.version}", f"streaming {self.streaming}", f"origin {self.origin}"]
        switches = ("binary", "messages", "two_phase", "via_root")
        return ", ".join(parts + [name for name in switches if getattr(self, name)])


def cells_of(major: int) -> Iterator[Cell]:
    """Yield every combination that this major allows; `via_root` alternates."""
    turns = itertools.cycle((False, True))
    for version in VERSIONS[major]:
        for streaming, binary, messages, two_phase, origin in itertools.product(
            MODES[version],
            (False, True) if major >= 14 else (False,),
            (False, True) if major >= 14 else (False,),
            (False, True) if version >= 3 else (False,),
            ("any", "none") if major >= 16 else ("any",),
        ):
            via_root = next(turns) and major >= 13
            yield Cell(version, streaming, binary, messages, two_phase, origin, via_root)
        next(turns)  # so that no value of `via_root` coincides with one value of the last option


def few_of(major: int) -> tuple[Cell, ...]:
    """Return three cells that differ in every option, for daily runs."""
    cells = list(cells_of(major))
    newest = [cell for cell in cells if cell.version == VERSIONS[major][-1]]
    wanted = (
        (newest[-1].streaming, newest[-1].two_phase, False),
        ("on" if major >= 14 else "off", False, True),
        ("off", newest[-1].two_phase, False),
    )
    found = []
    for number, (streaming, two_phase, binary) in enumerate(wanted):
        like = [
            cell
            for cell in newest
            if (cell.streaming, cell.two_phase) == (streaming, two_phase)
            and cell.binary == (binary and major >= 14)
            and cell.origin == ("none" if number == 2 and major >= 16 else "any")
        ]
        found.append(like[-1])
    return tuple(dict.fromkeys(found))
